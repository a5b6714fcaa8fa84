// The gateway's protocol. Generated; see docs/guides/gateway.md.

export interface Methods {
  "_greenroom/authenticate": { params: Authenticate; result: Authenticated };
  "_greenroom/session/list": { params: ListSessions; result: SessionList };
  "_greenroom/session/get": { params: SessionRef; result: OneSession };
  "_greenroom/session/create": { params: CreateSession; result: OneSession };
  "_greenroom/session/attach": { params: Attach; result: Attached };
  "_greenroom/session/detach": { params: SessionRef; result: Nothing };
  "_greenroom/session/snapshot": { params: SessionRef; result: Attached };
  "_greenroom/session/messages": { params: ReadMessages; result: MessagePage };
  "_greenroom/session/message": { params: ReadMessage; result: OneMessage };
  "_greenroom/session/block": { params: ReadBlock; result: BlockSlice };
  "_greenroom/session/search": { params: SearchMessages; result: SearchResult };
  "_greenroom/session/settings": { params: SessionRef; result: Settings };
  "_greenroom/session/configure": { params: Configure; result: Settings };
  "_greenroom/session/fork": { params: ForkSession; result: OneSession };
  "_greenroom/session/archive": { params: ArchiveSession; result: OneSession };
  "_greenroom/session/move": { params: MoveSession; result: Settings };
  "_greenroom/session/assess_move": { params: AssessMove; result: MoveImpact };
  "_greenroom/session/move_all": { params: MoveAll; result: MovedAll };
  "_greenroom/session/delete": { params: SessionRef; result: Nothing };
  "_greenroom/session/rewind": { params: Rewind; result: RewindResult };
  "_greenroom/session/clear": { params: SessionRef; result: Nothing };
  "_greenroom/session/compact": { params: Compact; result: CompactResult };
  "_greenroom/session/undo_compaction": { params: SessionRef; result: Undone };
  "_greenroom/prompt": { params: SendPrompt; result: PromptResult };
  "_greenroom/queue": { params: QueueInput; result: InputAccepted };
  "_greenroom/steer": { params: SteerTurn; result: InputAccepted };
  "_greenroom/cancel": { params: SessionRef; result: Nothing };
  "_greenroom/input/list": { params: SessionRef; result: InputList };
  "_greenroom/input/edit": { params: EditPendingInput; result: InputList };
  "_greenroom/input/move": { params: MovePendingInput; result: InputList };
  "_greenroom/input/delete": { params: InputRef; result: InputList };
  "_greenroom/input/promote": { params: InputRef; result: InputList };
  "_greenroom/input/retry": { params: InputRef; result: InputList };
  "_greenroom/input/degrade": { params: InputRef; result: InputList };
  "_greenroom/input/release": { params: SessionRef; result: InputList };
  "_greenroom/interaction/list": { params: SessionRef; result: InteractionList };
  "_greenroom/interaction/answer": { params: AnswerPending; result: Nothing };
  "_greenroom/agent/list": { params: ListAgents; result: AgentList };
  "_greenroom/agent/get": { params: AgentRef; result: OneAgent };
  "_greenroom/agent/add": { params: AddAgent; result: OneAgent };
  "_greenroom/agent/set": { params: SetAgent; result: OneAgent };
  "_greenroom/agent/reset": { params: AgentRef; result: OneAgent };
  "_greenroom/agent/remove": { params: AgentRef; result: Nothing };
  "_greenroom/skill/list": { params: ListSkills; result: SkillList };
  "_greenroom/tree": { params: NoParams; result: ActorTree };
  "_greenroom/metrics": { params: NoParams; result: Metrics };
  "_greenroom/journal": { params: ReadJournal; result: JournalPage };
  "_greenroom/legacy/import": { params: ImportLegacy; result: ImportResult };
}

export interface Notifications {
  "_greenroom/event": { params: EventNotice };
  "_greenroom/ended": { params: EndedNotice };
}

/**
 * A permission or question that waits for, or had, the user's answer.
 */
export interface ActionBlock {
  type: "action";
  id: string;
  action: "question_request" | "tool_call_permission";
  origin: "acp-permission" | "budget" | "post-call-permission" | "pre-check-permission" | "question" | "skill-draft-confirmation";
  toolBlockId: string;
  title: string;
  detail?: string;
  options?: (QuestionOption)[];
  multiple?: boolean;
  custom?: boolean;
  stopLabel?: string | null;
  round?: number;
  status?: "denied" | "error" | "granted" | "loading" | "pending" | "success";
  answer?: string | null;
  end?: "answered" | "cancelled" | "closed" | "deleted" | "denied" | "expired" | "granted" | "interrupted" | "process_exit" | null;
  expiresAt?: number | null;
  excess?: BudgetExcess | null;
}

/**
 * One actor, or one operation. Times are seconds, as of this answer.
 */
export interface ActorItem {
  path: string;
  grade: string;
  state: string;
  age: number;
  work?: number;
  control?: number;
  current?: string | null;
  remaining?: number | null;
  cancelCause?: string | null;
  restarts?: number;
}

/**
 * Every actor, parents before children; cut after so many.
 */
export interface ActorTree {
  actors: (ActorItem)[];
  leftOut?: number;
}

/**
 * Make an agent: a native one, or with a command one in a process of its own.
 *
 * ``kind`` may be said by its old names too, ``type`` and ``agentType``.
 */
export interface AddAgent {
  name: string;
  description?: string;
  kind?: "acp" | "deepchat" | "native" | null;
  type?: "acp" | "deepchat" | "native" | null;
  agentType?: "acp" | "deepchat" | "native" | null;
  config?: Record<string, unknown> | null;
  command?: string | null;
  args?: (string)[];
  env?: Record<string, string>;
}

/**
 * An agent, as a client sees it.
 */
export interface AgentDto {
  id: string;
  kind: string;
  type: string;
  agentType: string;
  source: string;
  name: string;
  enabled: boolean;
  protected: boolean;
  description: string;
  icon: string;
  avatar: unknown;
  config: Record<string, unknown> | null;
  unavailable: string | null;
}

/**
 * A page, with those that can't be run; without ``next`` it is the last one.
 */
export interface AgentList {
  agents: (AgentDto)[];
  next?: string | null;
}

/**
 * Names an agent.
 */
export interface AgentRef {
  agentId: string;
}

/**
 * Answer a permission or question; the first valid answer holds.
 */
export interface AnswerPending {
  sessionId: string;
  interactionId: string;
  answer: Grant | Deny | Reply | Other;
}

/**
 * Put a session away, or take it back.
 */
export interface ArchiveSession {
  sessionId: string;
  archived: boolean;
}

/**
 * What `MoveAll` would do with the sessions of an agent.
 */
export interface AssessMove {
  agent: string;
}

/**
 * Follow a session: `Attached`, then `EventNotice` without gap or duplicate.
 */
export interface Attach {
  sessionId: string;
  after?: number | null;
  incarnation?: string | null;
}

/**
 * Where the events begin: right after ``seq``.
 */
export interface Attached {
  snapshot?: Snapshot | null;
  seq: number;
  interactions?: (Interaction)[];
  older?: boolean;
  cut?: (Cut)[];
}

/**
 * Who the client is; where a token is needed, the first frame.
 */
export interface Authenticate {
  token?: string | null;
  clientId?: string | null;
}

/**
 * Who the client is, and what it may do.
 */
export interface Authenticated {
  clientId: string;
  scopes: ("admin" | "read" | "write")[];
  resumed: boolean;
}

/**
 * The slice; what is no text is sliced as JSON.
 */
export interface BlockSlice {
  text: string;
  total: number;
}

/**
 * Limits; what is absent has none.
 */
export interface Budget {
  tokens?: number | null;
  money?: number | null;
  seconds?: number | null;
}

/**
 * A limit that was reached, or that can't be watched.
 */
export interface BudgetExcess {
  scope: "session" | "turn";
  kind: "money" | "seconds" | "tokens";
  limit: number;
  spent: number | null;
  raiseBy: number;
}

/**
 * Hide what was said behind a summary.
 */
export interface Compact {
  sessionId: string;
  focus?: string;
}

/**
 * What came of it; without a summary ``why`` says why.
 */
export interface CompactResult {
  outcome: string;
  why?: string;
  tokensBefore?: number;
  tokensAfter?: number;
}

/**
 * What the model is shown begins elsewhere; the transcript is the same (CTX-20).
 */
export interface CompactionChanged {
  type: "session/compaction_changed";
  sessionId: string;
  seq: number;
  trigger: string;
  outcome: "boundary_only" | "reset" | "summarized" | "undone";
  cursor: number;
  tokensBefore?: number | null;
  tokensAfter?: number | null;
  summary?: string;
  reason?: string;
}

/**
 * Change settings, by their names in `SessionSettings`; ``null`` unsets one.
 */
export interface Configure {
  sessionId: string;
  changes: Record<string, unknown>;
}

/**
 * What is absent is the agent's; the workspace is a folder of the gateway.
 */
export interface CreateSession {
  workspace?: string | null;
  agent?: string | null;
  title?: string;
  provider?: string | null;
  model?: string | null;
  permissionMode?: "auto_approve" | "default" | "full_access" | null;
  systemPrompt?: string | null;
  maxRounds?: number | null;
}

/**
 * A field that is longer than what was sent of it; `ReadBlock` has it whole.
 */
export interface Cut {
  messageId?: string | null;
  blockId?: string | null;
  inputId?: string | null;
  field: string;
  total: number;
}

/**
 * The user refuses this one call; the reason reaches the model.
 */
export interface Deny {
  type: "deny";
  reason?: string;
}

/**
 * A change to one file; ``old_text`` is ``None`` for a new file.
 */
export interface Diff {
  path: string;
  newText: string;
  oldText?: string | null;
}

/**
 * Replace what a queued input says.
 */
export interface EditPendingInput {
  sessionId: string;
  inputId: string;
  content: string | (TextPart | ImagePart)[];
}

/**
 * The parameters of ``_greenroom/ended``: no more events of this session.
 */
export interface EndedNotice {
  sessionId: string;
  reason: "closed" | "deleted" | "rewound" | "slow" | "unloaded";
  after?: number | null;
}

/**
 * Why a turn did not end well.
 */
export interface ErrorBlock {
  type: "error";
  id: string;
  code: string;
  text: string;
  round?: number;
  status?: "denied" | "error" | "granted" | "loading" | "pending" | "success";
}

/**
 * The parameters of ``_greenroom/event``.
 */
export interface EventNotice {
  event: StreamUpdated | StatusChanged | MessagesChanged | MessageRetracted | StreamCompleted | StreamFailed | InteractionSettled | PlanUpdated | SessionUpdated | InputsChanged | CompactionChanged;
  cut?: (Cut)[];
  more?: boolean;
}

/**
 * A session that begins with what was sent in this one, up to a message.
 *
 * With ``rounds`` only so many of that message, an answer: requests to the model with
 * the results of their calls.
 */
export interface ForkSession {
  sessionId: string;
  through?: string | null;
  rounds?: number | null;
}

/**
 * The user allows this one call.
 */
export interface Grant {
  type: "grant";
}

/**
 * An image, base64.
 */
export interface ImageBlock {
  type: "image";
  id: string;
  mediaType: string;
  data: string;
  round?: number;
  status?: "denied" | "error" | "granted" | "loading" | "pending" | "success";
}

/**
 * An image, base64.
 */
export interface ImagePart {
  type: "image";
  mediaType: string;
  data: string;
}

/**
 * Take the conversations of an older system's database over.
 */
export interface ImportLegacy {
  path: string;
  workspace: string;
  dryRun?: boolean;
}

/**
 * What became of each conversation.
 */
export interface ImportResult {
  total: number;
  threads: (ImportedThread)[];
  problemCount: number;
  problems: (string)[];
}

/**
 * What became of one conversation.
 */
export interface ImportedThread {
  id: string;
  title: string;
  messages: number;
  outcome: string;
  reason?: string;
}

/**
 * The input is durable, and where it stands.
 */
export interface InputAccepted {
  inputId: string;
  delivery: "blocked" | "deleted" | "delivered" | "held" | "in_flight" | "returned" | "waiting";
  input?: PendingInput | null;
}

/**
 * What waits, in the order in which it is let in.
 */
export interface InputList {
  inputs: (PendingInput)[];
  cut?: (Cut)[];
}

/**
 * How a user's message was taken in, and when the model was given it.
 */
export interface InputReceipt {
  mode: "queue" | "steer";
  readAt?: number | null;
  inputId?: string | null;
}

/**
 * Names an input that waits.
 */
export interface InputRef {
  sessionId: string;
  inputId: string;
}

/**
 * A pending input has a new revision; one that is consumed has left (PIN-01).
 */
export interface InputsChanged {
  type: "session/inputs_changed";
  sessionId: string;
  seq: number;
  input: PendingInput;
}

/**
 * A pending permission or question, as a client sees it.
 */
export interface Interaction {
  sessionId: string;
  messageId: string;
  block: TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ActionBlock | ErrorBlock;
  tool?: TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ActionBlock | ErrorBlock | null;
}

/**
 * What waits for an answer, the next one first.
 */
export interface InteractionList {
  interactions: (Interaction)[];
}

/**
 * A permission or question waits no longer; once for each (INT-14).
 */
export interface InteractionSettled {
  type: "interaction/settled";
  sessionId: string;
  seq: number;
  messageId: string;
  interactionId: string;
  end: "answered" | "cancelled" | "closed" | "deleted" | "denied" | "expired" | "granted" | "interrupted" | "process_exit";
}

/**
 * One thing that was done; which fields it has depends on its kind.
 */
export interface JournalEntry {
  seq: number;
  at: number;
  kind: "attempt" | "compaction" | "dispatch" | "outcome" | "recovery" | "request" | "retraction" | "run_ended" | "run_started";
  runId?: string | null;
  messageId?: string | null;
  runKind?: string | null;
  requestSeq?: number | null;
  round?: number | null;
  attempt?: number | null;
  provider?: string | null;
  model?: string | null;
  status?: string | null;
  reason?: string | null;
  retryDelay?: number | null;
  usage?: Usage | null;
  cost?: number | null;
  callId?: string | null;
  tool?: string | null;
  isError?: boolean | null;
  tokensBefore?: number | null;
  tokensAfter?: number | null;
}

/**
 * Entries, oldest first; with ``next`` there may be older ones before it.
 */
export interface JournalPage {
  entries: (JournalEntry)[];
  next?: number | null;
}

/**
 * Agents by their ids, from the one behind ``after`` on.
 */
export interface ListAgents {
  after?: string | null;
}

/**
 * Sessions, last used first.
 */
export interface ListSessions {
  limit?: number;
  before?: SessionKey | null;
  agent?: string | null;
  archived?: boolean | null;
  title?: string;
}

/**
 * Skills by their names, from the one behind ``after`` on.
 */
export interface ListSkills {
  after?: string | null;
}

/**
 * A place in a file that a tool touches.
 */
export interface Location {
  path: string;
  line?: number | null;
}

/**
 * What a turn was and cost (RUN-25). Absent means not known.
 */
export interface MessageMetadata {
  runId?: string | null;
  runOutcome?: "aborted" | "completed" | "error" | "paused" | null;
  runStopReason?: string | null;
  errorCode?: string | null;
  errorText?: string | null;
  providerRounds?: number;
  maxProviderRounds?: number | null;
  requestSeq?: number;
  toolCalls?: number;
  noProgressToolLoop?: ProgressSnapshot | null;
  inputTokens?: number | null;
  outputTokens?: number | null;
  totalTokens?: number | null;
  cachedTokens?: number | null;
  cacheWriteTokens?: number | null;
  reasoningTokens?: number | null;
  cost?: number | null;
  generationTime?: number | null;
  firstTokenTime?: number | null;
  reasoningStartTime?: number | null;
  reasoningEndTime?: number | null;
  tokensPerSecond?: number | null;
  model?: string | null;
  provider?: string | null;
  messageType?: "compaction" | null;
  compactionStatus?: "compacted" | "compacting" | null;
  summaryUpdatedAt?: number | null;
  inputReceipt?: InputReceipt | null;
}

/**
 * Messages, oldest first; with ``next`` there are older ones before it.
 */
export interface MessagePage {
  messages: (MessageRecord)[];
  next?: number | null;
  cut?: (Cut)[];
}

/**
 * One message of the transcript; every revision of it is a fact (TAP-05).
 *
 * As a fact, and as an event, a revision carries the header whole and of the blocks
 * only those that are new or changed since the revision before, so that a long turn
 * does not write itself again each round; the transcript holds them all, in the order
 * of their ids' numbers.
 */
export interface MessageRecord {
  id: string;
  orderSeq: number;
  role: "assistant" | "user";
  status: "error" | "pending" | "sent";
  blocks?: (TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ActionBlock | ErrorBlock)[];
  metadata?: MessageMetadata;
  createdAt: number;
  updatedAt: number;
}

/**
 * A message left the transcript: it was taken back, or never had its turn.
 */
export interface MessageRetracted {
  type: "session/message_retracted";
  sessionId: string;
  seq: number;
  messageId: string;
}

/**
 * A message has a new revision.
 */
export interface MessagesChanged {
  type: "session/messages_changed";
  sessionId: string;
  seq: number;
  message: MessageRecord;
}

/**
 * Counters and gauges, by name, as ``/metrics`` has them.
 */
export interface Metrics {
  values: Record<string, number>;
}

/**
 * Give all sessions of an agent to another one; empty ones are deleted.
 */
export interface MoveAll {
  agent: string;
  target: string;
}

/**
 * How many sessions would be moved, deleted because empty, and bar the move.
 */
export interface MoveImpact {
  moved: number;
  deleted: number;
  blocked: number;
  samples: (MoveSample)[];
}

/**
 * Move a queued input to a place, from 1; beyond the ends it is clamped.
 */
export interface MovePendingInput {
  sessionId: string;
  inputId: string;
  to: number;
}

/**
 * One session that would be moved, or bars the move.
 */
export interface MoveSample {
  sessionId: string;
  title: string;
  blocked?: "active" | "pending-input" | null;
}

/**
 * Give a session to another agent.
 */
export interface MoveSession {
  sessionId: string;
  agent: string;
}

/**
 * What was done.
 */
export interface MovedAll {
  moved: number;
  deleted: number;
}

/**
 * There is nothing to say.
 */
export interface NoParams {
}

/**
 * It is done, and there is nothing to say.
 */
export interface Nothing {
}

/**
 * An agent.
 */
export interface OneAgent {
  agent: AgentDto;
}

/**
 * A message with a part of its blocks; with ``next`` more follow from there.
 */
export interface OneMessage {
  message: MessageRecord;
  total: number;
  next?: number | null;
  cut?: (Cut)[];
}

/**
 * A session that was made, or changed.
 */
export interface OneSession {
  session: SessionItem;
}

/**
 * The identity of one tool operation (TOL-01).
 */
export interface OperationId {
  runId: string;
  requestSeq: number;
  providerToolCallId: string;
}

/**
 * The user will write a message of their own instead (INT-09).
 */
export interface Other {
  type: "other";
}

/**
 * One row: an input that was accepted and has not had its turn (PIN-01).
 */
export interface PendingInput {
  id: string;
  mode: "queue" | "steer";
  state?: "blocked" | "claimed" | "consumed" | "pending";
  sent?: boolean;
  order?: number;
  parts?: (TextPart | ImagePart)[] | null;
  messageIds?: (string)[];
  assistantMessageId?: string | null;
  blocking?: (string)[];
  held?: boolean;
  returned?: boolean;
  end?: "deleted" | "delivered" | "promoted" | null;
  createdAt: number;
  updatedAt: number;
  claimedAt?: number | null;
}

/**
 * The whole plan; a newer revision replaces it.
 */
export interface Plan {
  revision: number;
  entries: (PlanEntry)[];
  reason?: "max_steps" | null;
}

/**
 * One step of a plan.
 */
export interface PlanEntry {
  content: string;
  status?: "completed" | "in_progress" | "pending";
  priority?: "high" | "low" | "medium";
}

/**
 * The plan was replaced.
 */
export interface PlanUpdated {
  type: "plan/updated";
  sessionId: string;
  seq: number;
  plan: Plan;
}

/**
 * What the guards remember; kept in the message's metadata (TOL-22).
 */
export interface ProgressSnapshot {
  fingerprint: string;
  repeatedBatchCount?: number;
  evidence?: "strong" | "weak";
  callsFingerprint?: string;
  repeatedCallsCount?: number;
}

/**
 * How the turn ended.
 */
export interface PromptResult {
  messageId: string;
  outcome: "aborted" | "completed" | "error" | "paused";
  stopReason: string;
  text: string;
  error?: string | null;
  usage?: Usage | null;
  cost?: number | null;
}

/**
 * One choice of a question (INT-08).
 */
export interface QuestionOption {
  label: string;
  description?: string;
}

/**
 * Let an input wait for its turn; at once when the session is idle.
 */
export interface QueueInput {
  sessionId: string;
  content: string | (TextPart | ImagePart)[];
  commandId: string;
}

/**
 * A slice of a field of a block, in characters; see `Cut`.
 */
export interface ReadBlock {
  sessionId: string;
  messageId: string;
  blockId: string;
  field?: string;
  offset?: number;
  limit?: number;
}

/**
 * What was done in a session, of one run or of all, the newest page first.
 */
export interface ReadJournal {
  sessionId: string;
  runId?: string | null;
  before?: number | null;
}

/**
 * One message, of its blocks those from ``offset`` on that go into a frame.
 */
export interface ReadMessage {
  sessionId: string;
  messageId: string;
  offset?: number;
}

/**
 * The newest messages before ``before``, by their ``orderSeq``.
 */
export interface ReadMessages {
  sessionId: string;
  before?: number | null;
  limit?: number;
}

/**
 * What the model thought aloud.
 */
export interface ReasoningBlock {
  type: "reasoning";
  id: string;
  text: string;
  round?: number;
  status?: "denied" | "error" | "granted" | "loading" | "pending" | "success";
  options?: Record<string, unknown> | null;
}

/**
 * The answer to a question: labels of options, or the user's own text.
 */
export interface Reply {
  type: "reply";
  text: string;
}

/**
 * What is done with a file.
 */
export interface RestoredFile {
  path: string;
  action: string;
  reason?: string;
  diff?: Diff | null;
}

/**
 * Take the conversation back; ``through`` is the last message then.
 */
export interface Rewind {
  sessionId: string;
  through?: string | null;
  files?: boolean;
  dryRun?: boolean;
}

/**
 * What was taken back, or would be.
 */
export interface RewindResult {
  through?: string | null;
  count: number;
  messages: (string)[];
  files?: (RestoredFile)[];
  commands?: number;
  done: boolean;
}

/**
 * A message that was found.
 */
export interface SearchHit {
  sessionId: string;
  messageId: string;
  orderSeq: number;
  role: "assistant" | "user";
  title: string;
  snippet: string;
  updatedAt: number;
}

/**
 * Messages that hold all words of a query.
 */
export interface SearchMessages {
  query: string;
  sessionId?: string | null;
  limit?: number;
}

/**
 * The best first.
 */
export interface SearchResult {
  hits: (SearchHit)[];
}

/**
 * Send a message, and be answered when its turn ends.
 *
 * The turn goes on without its client. The same id with the same content joins it.
 */
export interface SendPrompt {
  sessionId: string;
  content: string | (TextPart | ImagePart)[];
  commandId: string;
}

/**
 * A session in the list; looking at it loads nothing.
 */
export interface SessionItem {
  id: string;
  settings: SessionSettings;
  head: number;
  createdAt: number;
  updatedAt: number;
  messageCount: number;
  archivedAt?: number | null;
  state: "error" | "generating" | "idle";
  statusVersion?: number;
  waitingFor?: "backoff" | "cleanup" | "compaction" | "connect" | "first_byte" | "permission" | "question" | "rate_gate" | "review" | "stream" | "tool" | null;
  hasOpenInteraction?: boolean;
  isLoaded?: boolean;
  inputTokens?: number | null;
  outputTokens?: number | null;
}

/**
 * Where a page of the list ended.
 */
export interface SessionKey {
  updatedAt: number;
  id: string;
}

/**
 * A page; without ``next`` it is the last one.
 */
export interface SessionList {
  sessions: (SessionItem)[];
  next?: SessionKey | null;
}

/**
 * Names a session.
 */
export interface SessionRef {
  sessionId: string;
}

/**
 * What a session durably knows of itself (SES-13).
 */
export interface SessionSettings {
  agentId: string;
  title: string;
  workspace: string;
  provider: string;
  model: string;
  permissionMode?: "auto_approve" | "default" | "full_access";
  systemPrompt?: string;
  temperature?: number | null;
  topP?: number | null;
  maxOutputTokens?: number | null;
  contextLength?: number | null;
  reasoningEffort?: string | null;
  verbosity?: string | null;
  maxRounds?: number | null;
  permissionSeconds?: number | null;
  questionSeconds?: number | null;
  turnBudget?: Budget | null;
  sessionBudget?: Budget | null;
  disabledTools?: (string)[];
}

/**
 * The session's settings changed.
 */
export interface SessionUpdated {
  type: "session/updated";
  sessionId: string;
  seq: number;
  settings: SessionSettings;
}

/**
 * Change an agent; what is absent stays. ``config`` is a merge patch (RFC 7396).
 */
export interface SetAgent {
  agentId: string;
  name?: string | null;
  description?: string | null;
  icon?: string | null;
  enabled?: boolean | null;
  config?: Record<string, unknown> | null;
}

/**
 * The settings in force.
 */
export interface Settings {
  settings: SessionSettings;
}

/**
 * A Skill that is installed.
 */
export interface SkillItem {
  name: string;
  description?: string | null;
  agents: (string)[];
}

/**
 * A page, by name; without ``next`` it is the last one.
 */
export interface SkillList {
  skills: (SkillItem)[];
  next?: string | null;
}

/**
 * Where a watcher starts: everything up to ``seq``, then the live feed.
 */
export interface Snapshot {
  sessionId: string;
  seq: number;
  incarnation: string;
  settings: SessionSettings;
  state: "error" | "generating" | "idle";
  statusVersion: number;
  messages: (MessageRecord)[];
  plan?: Plan | null;
  inputs?: (PendingInput)[];
}

/**
 * The session's state; of two, the one with the higher version holds (SES-22).
 */
export interface StatusChanged {
  type: "session/status_changed";
  sessionId: string;
  version: number;
  state: "error" | "generating" | "idle";
  runId?: string | null;
  waitingFor?: "backoff" | "cleanup" | "compaction" | "connect" | "first_byte" | "permission" | "question" | "rate_gate" | "review" | "stream" | "tool" | null;
  remaining?: number | null;
  notice?: string | null;
}

/**
 * Say something to the turn that runs.
 */
export interface SteerTurn {
  sessionId: string;
  content: string | (TextPart | ImagePart)[];
  commandId: string;
  expectedTurn?: string | null;
}

/**
 * A turn ended well; ``message`` is its last revision.
 */
export interface StreamCompleted {
  type: "stream/completed";
  sessionId: string;
  seq: number;
  message: MessageRecord;
}

/**
 * A turn was aborted or ended in an error; ``message`` is its last revision.
 */
export interface StreamFailed {
  type: "stream/failed";
  sessionId: string;
  seq: number;
  message: MessageRecord;
}

/**
 * An item grew by ``text`` at ``offset``, or is now ``block``.
 */
export interface StreamUpdated {
  type: "stream/updated";
  sessionId: string;
  runId: string;
  messageId: string;
  itemId: string;
  kind: "action" | "error" | "reasoning" | "text" | "tool_call" | "tool_output";
  offset?: number;
  text?: string;
  block?: TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ActionBlock | ErrorBlock | null;
}

/**
 * Text, of the user or of the model.
 */
export interface TextBlock {
  type: "text";
  id: string;
  text: string;
  round?: number;
  status?: "denied" | "error" | "granted" | "loading" | "pending" | "success";
  options?: Record<string, unknown> | null;
}

/**
 * Text.
 */
export interface TextPart {
  type: "text";
  text: string;
}

/**
 * One tool call that the model announced, and its one result.
 */
export interface ToolCallBlock {
  type: "tool_call";
  id: string;
  callId: string;
  name: string;
  arguments: string;
  round?: number;
  requestSeq?: number;
  status?: "denied" | "error" | "granted" | "loading" | "pending" | "success";
  response?: string | null;
  title?: string;
  kind?: "delete" | "edit" | "execute" | "fetch" | "move" | "other" | "read" | "search" | "think";
  locations?: (Location)[];
  diffs?: (Diff)[];
  options?: Record<string, unknown> | null;
  note?: string | null;
  inDoubt?: OperationId | null;
}

/**
 * Whether there was a compaction to undo.
 */
export interface Undone {
  undone: boolean;
}

/**
 * Tokens of one attempt, or a sum of attempts. Unknown is not zero.
 */
export interface Usage {
  input: number;
  output: number;
  total: number;
  cacheRead?: number | null;
  cacheWrite?: number | null;
  reasoning?: number | null;
}
