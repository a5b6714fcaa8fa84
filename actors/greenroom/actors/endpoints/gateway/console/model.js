// What is known of one session, made of a snapshot and events. No DOM here; what changed
// since the last look is in `dirty`, which a view takes with `take`.

import { charCount, dropChars } from "./dom.js";

/** Messages that are kept; older ones are read again when somebody scrolls there. */
const KEPT_MESSAGES = 300;

/** Live output that is kept of a tool; the result has what counts. */
const KEPT_OUTPUT = 40000;

const DEFAULT_STATUS = { tool_call: "pending", action: "pending", error: "error" };
const TEXT_OF = { text: "text", reasoning: "text", tool_call: "arguments" };

const ENDS_OF_STATUS = { granted: "granted", denied: "denied", success: "answered" };
/** Return how the interaction of a block that does not wait has ended. */
export const endIn = (block) => block.end ?? ENDS_OF_STATUS[block.status] ?? "interrupted";

export class SessionModel {
  constructor(id) {
    this.id = id;
    this.seq = null;
    /** Which tape `seq` is a place of; a session that is cleared gets another one. */
    this.incarnation = null;
    this.dirty = allDirty();
    this.#empty();
  }

  #empty() {
    this.settings = null;
    this.status = { version: -1, state: "idle", waitingFor: null, until: null, since: 0, runId: null };
    this.messages = new Map();
    this.order = [];
    this.outputs = new Map();
    this.inputs = new Map();
    /** What became of those that wait no longer. */
    this.inputEnds = new Map();
    this.interactions = new Map();
    this.settled = new Map();
    this.plan = null;
    this.older = false;
    this.cuts = new Map();
    this.notes = [];
    /** Why the last turn failed, where that is known. */
    this.failure = null;
  }

  /** Take the answer to an attach: with a snapshot everything begins anew. */
  attached({ snapshot, seq, interactions = [], older = false, cut = [] }) {
    if (snapshot) {
      this.#empty();
      this.settings = snapshot.settings;
      this.status.state = snapshot.state;
      this.plan = snapshot.plan ?? null;
      this.older = older;
      for (const message of snapshot.messages) this.#merge(message);
      for (const input of snapshot.inputs ?? []) this.inputs.set(input.id, input);
      this.seq = seq;
      this.incarnation = snapshot.incarnation;
    }
    this.noteCuts(cut);
    this.setInteractions(interactions);
    const { messages, blocks } = this.dirty;
    this.dirty = { ...allDirty(), messages, blocks };
  }

  /** What was never durable may be gone with the gateway; what is left is told again. */
  resume() {
    this.status.version = -1;
    for (const message of this.messages.values()) {
      for (const [id, block] of message.blocks) {
        if (block.isTold) continue;
        message.blocks.delete(id);
        this.dirty.messages.add(message.id);
        this.#note(message.id, id);
      }
    }
    this.outputs.clear();
  }

  /** Take the whole of a field that was cut. */
  complete(messageId, blockId, field, text) {
    const block = this.messages.get(messageId)?.blocks.get(blockId);
    if (!block) return;
    block[field] = text;
    if (field === TEXT_OF[block.type]) block.chars = charCount(text);
    this.cuts.delete(`${blockId}/${field}`);
    this.#note(messageId, blockId);
  }

  setInteractions(interactions) {
    for (const { messageId } of this.interactions.values()) this.dirty.messages.add(messageId);
    this.interactions = new Map(interactions.map((each) => [each.block.id, each]));
    for (const { messageId } of this.interactions.values()) this.dirty.messages.add(messageId);
    this.dirty.asks = true;
  }

  noteCuts(cuts) {
    for (const each of cuts ?? []) this.cuts.set(`${each.blockId ?? each.messageId ?? each.inputId}/${each.field}`, each);
  }

  cutOf(id, field) {
    return this.cuts.get(`${id}/${field}`) ?? null;
  }

  /** Put a page of older messages in front. */
  prepend({ messages, next, cut }) {
    for (const message of messages) if (!this.messages.has(message.id)) this.#merge(message);
    this.noteCuts(cut);
    this.older = next != null;
    this.dirty.order = true;
  }

  get lastMessage() {
    return this.messages.get(this.order.at(-1)) ?? null;
  }

  get lastOutcome() {
    return this.lastMessage?.metadata.runOutcome ?? null;
  }

  /** The reply that is being made, if one is. */
  get openTurn() {
    const last = this.lastMessage;
    return last?.role === "assistant" && last.status === "pending" ? last : null;
  }

  /** Forget the oldest messages beyond the bound. */
  trim() {
    for (const id of this.order.splice(0, Math.max(0, this.order.length - KEPT_MESSAGES))) {
      for (const block of this.messages.get(id).blocks.keys()) this.outputs.delete(block);
      this.messages.delete(id);
      this.older = true;
    }
  }

  take() {
    const { dirty } = this;
    this.dirty = noneDirty();
    return dirty;
  }

  /** Take an event. `more`: another of the same fact follows, so the cursor waits for it. */
  apply(event, more = false) {
    if (event.seq != null) {
      if (this.seq != null && event.seq < this.seq) return;
      if (!more) this.seq = event.seq;
    }
    this[HANDLERS[event.type]]?.(event);
  }

  #merge(message) {
    const old = this.messages.get(message.id);
    // A message that has ended stays so.
    if (old && old.status !== "pending" && message.status === "pending") return old;
    if (!old) this.#place(message);
    const blocks = old?.blocks ?? new Map();
    for (const block of message.blocks ?? []) {
      blocks.set(block.id, { ...normal(block), isTold: true });
      this.#note(message.id, block.id);
      if (block.response != null) this.outputs.delete(block.id);
    }
    this.messages.set(message.id, { metadata: {}, ...message, blocks });
    this.dirty.messages.add(message.id);
    return this.messages.get(message.id);
  }

  // Nearly always it is the newest.
  #place(message) {
    let at = this.order.length;
    while (at > 0 && this.messages.get(this.order[at - 1]).orderSeq > message.orderSeq) at--;
    this.order.splice(at, 0, message.id);
    this.dirty.order = true;
  }

  #note(messageId, blockId) {
    const known = this.dirty.blocks.get(messageId);
    if (known) known.add(blockId);
    else this.dirty.blocks.set(messageId, new Set([blockId]));
  }

  onMessage({ message }) {
    const merged = this.#merge(message);
    for (const block of message.blocks ?? []) if (block.type === "action") this.#ask(merged, merged.blocks.get(block.id));
    this.dirty.status = true;
  }

  #ask(message, block) {
    if (block.status === "pending") {
      const tool = block.toolBlockId === block.id ? null : message.blocks.get(block.toolBlockId);
      this.interactions.set(block.id, { sessionId: this.id, messageId: message.id, block, tool });
    } else {
      // Told by the next event, too, which may come after the page is drawn.
      this.settled.set(block.id, endIn(block));
      this.interactions.delete(block.id);
    }
    this.#note(message.id, block.toolBlockId);
    this.dirty.messages.add(message.id);
    this.dirty.asks = true;
  }

  /** Whether a call waits for somebody to allow it, or to answer it. */
  isAsked(toolBlockId) {
    for (const { block } of this.interactions.values()) if (block.toolBlockId === toolBlockId) return true;
    return false;
  }

  /** Whether something of a message waits for an answer. */
  isAskedIn(messageId) {
    for (const each of this.interactions.values()) if (each.messageId === messageId) return true;
    return false;
  }

  onSettled({ messageId, interactionId, end }) {
    this.settled.set(interactionId, end);
    this.dirty.messages.add(messageId);
    this.interactions.delete(interactionId);
    this.dirty.asks = true;
  }

  onRetracted({ messageId }) {
    this.messages.delete(messageId);
    this.order = this.order.filter((id) => id !== messageId);
    for (const [id, each] of this.interactions) if (each.messageId === messageId) this.interactions.delete(id);
    this.dirty.order = this.dirty.asks = true;
  }

  onStatus({ version, state, runId, waitingFor, remaining }) {
    if (version < this.status.version) return;
    const same = state === this.status.state && (waitingFor ?? null) === this.status.waitingFor;
    this.status = {
      version,
      state,
      runId: runId ?? null,
      waitingFor: waitingFor ?? null,
      until: remaining == null ? null : Date.now() + remaining * 1000,
      since: same ? this.status.since : Date.now(),
    };
    if (state === "generating") this.failure = null;
    this.dirty.status = true;
  }

  // It may be the only trace of the turn: a message that failed is taken back, and waits.
  onFailed({ message }) {
    const { runOutcome, errorText, errorCode } = message?.metadata ?? {};
    if (runOutcome === "error") this.failure = errorText || errorCode || null;
    this.dirty.status = true;
  }

  onPlan({ plan }) {
    this.plan = plan;
    this.dirty.plan = true;
  }

  onSettings({ settings }) {
    this.settings = settings;
    this.dirty.settings = true;
  }

  onInput({ input }) {
    if (input.state === "consumed") {
      this.inputs.delete(input.id);
      this.inputEnds.set(input.id, input.end);
    } else {
      const parts = input.parts ?? this.inputs.get(input.id)?.parts ?? [];
      this.inputs.set(input.id, { ...input, parts });
    }
    this.dirty.inputs = true;
  }

  onCompaction(event) {
    this.notes.push({ after: this.order.at(-1) ?? null, event });
    if (this.notes.length > 20) this.notes.shift();
    this.dirty.notes = true;
  }

  onStream(event) {
    if (event.kind === "tool_output") {
      this.#output(event);
      return;
    }
    const message = this.messages.get(event.messageId);
    if (!message) return;
    const known = message.blocks.get(event.itemId);
    if (event.block) {
      const block = { ...normal(event.block), isTold: known?.isTold ?? false };
      message.blocks.set(block.id, block);
      if (block.type === "action") this.#ask(message, block);
    } else if (known) {
      grow(known, TEXT_OF[known.type], event);
    } else {
      const block = normal(begun(event));
      if (!block) return;
      message.blocks.set(block.id, block);
      grow(block, TEXT_OF[block.type], event);
    }
    this.#note(message.id, event.itemId);
  }

  #output({ messageId, itemId, offset = 0, text = "" }) {
    const output = this.outputs.get(itemId) ?? { text: "", chars: 0 };
    const start = offset + charCount(text);
    if (start <= output.chars) return;
    const fresh = offset < output.chars ? dropChars(text, output.chars - offset) : text;
    output.chars = start;
    output.text = (output.text + fresh).slice(-KEPT_OUTPUT);
    this.outputs.set(itemId, output);
    this.#note(messageId, itemId);
  }
}

const HANDLERS = {
  "stream/updated": "onStream",
  "session/status_changed": "onStatus",
  "session/messages_changed": "onMessage",
  "session/message_retracted": "onRetracted",
  "interaction/settled": "onSettled",
  "plan/updated": "onPlan",
  "session/updated": "onSettings",
  "session/inputs_changed": "onInput",
  "session/compaction_changed": "onCompaction",
  "stream/failed": "onFailed",
};
// stream/completed repeats a message that session/messages_changed told.

function normal(block) {
  if (!block) return null;
  const status = block.status ?? DEFAULT_STATUS[block.type] ?? "success";
  const field = TEXT_OF[block.type];
  return { ...block, status, chars: field ? charCount(block[field] ?? "") : 0 };
}

function begun({ itemId, kind }) {
  if (kind === "text" || kind === "reasoning") return { type: kind, id: itemId, text: "", status: "loading" };
  return null;
}

// Text that is known already is skipped; offsets count characters as Python does.
function grow(block, field, { offset = 0, text = "" }) {
  if (!field) return;
  const end = offset + charCount(text);
  if (end <= block.chars) return;
  block[field] = (block[field] ?? "") + (offset < block.chars ? dropChars(text, block.chars - offset) : text);
  block.chars = end;
}

function noneDirty() {
  return {
    order: false, status: false, inputs: false, asks: false, plan: false, settings: false, notes: false,
    messages: new Set(), blocks: new Map(),
  };
}

function allDirty() {
  return { ...noneDirty(), order: true, status: true, inputs: true, asks: true, plan: true, settings: true, notes: true };
}

/** What the whole of `messages` used, as far as it is known. */
export function usageOf(messages) {
  const sum = { turns: 0, rounds: 0, tools: 0, input: 0, output: 0, cached: 0, reasoning: 0, cost: null, seconds: 0 };
  for (const { role, metadata = {} } of messages) {
    if (role !== "assistant") continue;
    sum.turns += 1;
    sum.rounds += metadata.providerRounds ?? 0;
    sum.tools += metadata.toolCalls ?? 0;
    sum.input += metadata.inputTokens ?? 0;
    sum.output += metadata.outputTokens ?? 0;
    sum.cached += metadata.cachedTokens ?? 0;
    sum.reasoning += metadata.reasoningTokens ?? 0;
    sum.seconds += metadata.generationTime ?? 0;
    if (metadata.cost != null) sum.cost = (sum.cost ?? 0) + metadata.cost;
  }
  return sum;
}
