// The page's parts put together: one connection, one open session, the list beside it.

import { Composer } from "./composer.js";
import { Dialogs } from "./dialogs.js";
import { Dock } from "./dock.js";
import { announce, byId, freshId, icon, oneLine, seconds, setText } from "./dom.js";
import { Inspector } from "./inspector.js";
import { listenKeys } from "./keyboard.js";
import { SessionModel } from "./model.js";
import { RewindDialog } from "./rewind.js";
import { SessionList, standing } from "./sessions.js";
import { complain, say } from "./toasts.js";
import { Transcript } from "./transcript.js";
import { Wire } from "./wire.js";

const BLOCK_LIMIT = 4_000_000;
const TOKEN = "greenroom.token";

const app = {
  wire: null,
  model: null,
  scopes: new Set(),
  list: null,
  isConnected: false,
  hasStopped: false,
  attach: 0,
  journalPages: 1,
  call: (method, params, options) => app.wire.call(`_greenroom/${method}`, params, options),
  act, say, complain, openSession, closeSession, showMessage, drawEmpty,
  showEnd: () => transcript.end(),
  loadOlder,
  writeAgain(text, images) {
    composer.add(text, images);
    byId("prompt").focus();
  },
  newSession: (agentId) => dialogs.newSession(agentId),
  changed: () => {
    app.list.readSoon();
    inspector.refresh();
  },
};

app.list = new SessionList(app);
const dialogs = new Dialogs(app);

const rewindDialog = new RewindDialog(app);
const composer = new Composer(app);
const dock = new Dock(app);
const inspector = new Inspector(app);
const transcript = new Transcript(byId("scroller"), byId("messages"), byId("to-end"), {
  get model() {
    return app.model;
  },
  readBlock, loadOlder, fork,
  rewind: (id) => rewindDialog.open(app.model.messages.get(id)),
  showAsk: (id) => dock.focus(id),
});

//// Connection

// One identity for as long as the page lives, so that its sessions stay bound to it.
const clientId = `console-${freshId()}`;

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  app.wire = new Wire(`${scheme}//${location.host}/acp`, {
    greeting() {
      const token = sessionStorage.getItem(TOKEN);
      return token ? { clientId, token } : { clientId };
    },
    onOpen: greeted,
    onLost: ({ delay, code }) => {
      // What is known of the first loss holds for the tries that fail after it.
      if (app.isConnected) app.hasStopped = code === 1001;
      lamp("lost", app.hasStopped ? "the gateway has stopped" : "not connected");
      banner(`${app.hasStopped ? "The gateway has stopped." : "The connection is lost."} Trying again in ${seconds(delay / 1000)}.`, true);
    },
    onRefused: refused,
    onNotice: notice,
  });
  app.wire.start();
}

function greeted({ scopes }) {
  // The token may be another one now, and what waits for an answer is shown accordingly.
  if (String(scopes) !== String([...app.scopes])) dock.reset();
  app.scopes = new Set(scopes);
  document.body.classList.toggle("reader", !app.scopes.has("write"));
  lamp("open", "connected");
  banner(null);
  byId("token-dialog").close();
  composer.draw();
  app.list.read();
  if (app.model) attach();
  else openFromAddress();
  inspector.refresh();
}

function refused({ code, reason }) {
  lamp("lost", "refused");
  if (code === 4403) {
    banner(`The gateway refuses this page: ${oneLine(reason || "its origin is not allowed", 200)}.`, true);
    return;
  }
  banner(null);
  const had = sessionStorage.getItem(TOKEN) !== null;
  sessionStorage.removeItem(TOKEN);
  setText(byId("token-why"), had ? "The one it was given is not right." : "It is in the file or the variable that the gateway was started with.");
  if (!byId("token-dialog").open) byId("token-dialog").showModal();
}

function lamp(state, text) {
  app.isConnected = state === "open";
  byId("lamp").dataset.state = state;
  setText(byId("lamp-text"), text);
  document.body.dataset.connection = state;
}

function banner(text, canRetry = false) {
  if (text === null && byId("banner").contains(document.activeElement)) byId("prompt").focus();
  byId("banner").hidden = text === null;
  setText(byId("banner-text"), text ?? "");
  byId("banner-retry").hidden = !canRetry;
}

/** Send a request for somebody who watches: its failure is said. Null when it failed. */
async function act(label, method, params) {
  try {
    return await app.call(method, params, { again: "commandId" in params });
  } catch (error) {
    if (error.code === "already_answered") say("It was answered already, somewhere else.");
    else complain(`Could not ${label}: ${error.message}${error.hint ? `. ${error.hint}` : ""}`);
    return null;
  }
}

//// Sessions

function openFromAddress() {
  const id = decodeURIComponent(/^#\/session\/(.{1,200})$/.exec(location.hash)?.[1] ?? "");
  if (id && id !== app.model?.id) openSession(id);
}

async function openSession(id) {
  shut("sidebar");
  if (app.model?.id === id) return;
  leave();
  app.model = new SessionModel(id);
  app.journalPages = 1;
  location.hash = `#/session/${encodeURIComponent(id)}`;
  composer.exchange(null, id);
  byId("empty").hidden = true;
  transcript.reset();
  app.list.draw();
  if (app.isConnected) await attach();
  draw();
  if (!matchMedia("(pointer: coarse)").matches) byId("prompt").focus({ preventScroll: true });
  inspector.refresh();
}

function leave() {
  const { model } = app;
  if (!model) return;
  composer.exchange(model.id, null);
  if (app.isConnected) app.call("session/detach", { sessionId: model.id }, { again: false }).catch(() => {});
  dock.reset();
  app.model = null;
}

function closeSession() {
  leave();
  location.hash = "";
  transcript.list.replaceChildren();
  byId("rewind-dialog").close();
  drawEmpty();
  draw();
  app.list.readSoon();
  inspector.refresh();
  if (document.activeElement === document.body) byId("empty-new").focus();
}

function drawEmpty() {
  byId("empty").hidden = false;
  setText(byId("empty-title"), app.list.items.length ? "No session is open" : "No sessions yet");
  byId("empty-list").hidden = app.list.items.length === 0;
  setText(byId("empty-text"), emptyWords(app.list.items.length > 0, app.scopes.has("write")));
  setText(byId("title"), "greenroom");
  byId("state").dataset.state = "none";
  setText(byId("state-text"), "");
  document.title = "greenroom";
  byId("plan").hidden = byId("inbox").hidden = true;
  composer.draw();
}

function emptyWords(hasSome, mayWrite) {
  if (!mayWrite) return hasSome ? "Choose one of the list." : "Somebody who may write has to begin one.";
  return hasSome ? "Choose one of the list, or begin a new one." : "Begin one: it works in a folder, and asks before it changes something.";
}

/** Follow the open session, from where it was left or anew. */
async function attach(after = app.model.seq) {
  const { model } = app;
  const round = ++app.attach;
  const params = { sessionId: model.id };
  if (after != null) params.after = after;
  if (after != null && model.incarnation) params.incarnation = model.incarnation;
  if (after != null) model.resume();
  let attached;
  try {
    attached = await app.call("session/attach", params, { again: false });
  } catch (error) {
    if (round !== app.attach || app.model !== model || error.code === "lost") return;
    if (error.code === "unknown_cursor" && after != null) return attach(null);
    complain(`Could not open the session: ${error.message}`);
    closeSession();
    return;
  }
  if (app.model !== model) return;
  model.attached(attached);
  if (attached.snapshot) transcript.reset();
  schedule();
}

const RUN_EVENTS = new Set(["session/status_changed", "stream/completed", "stream/failed"]);

function notice(method, params) {
  if (method === "_greenroom/event") told(params);
  else if (method === "_greenroom/ended" && params.sessionId === app.model?.id) ended(params);
}

function told({ event, cut, more }) {
  const { model } = app;
  if (!model || event?.sessionId !== model.id) return;
  model.apply(event, more);
  model.noteCuts(cut);
  schedule();
  if (event.type === "session/status_changed" || event.type === "session/updated") app.list.readSoon();
  if (RUN_EVENTS.has(event.type)) inspector.refreshSoon();
}

function ended({ reason, after }) {
  if (reason === "deleted") {
    say("The session was deleted.");
    closeSession();
  } else {
    attach(after ?? null);
  }
}

async function loadOlder() {
  const { model } = app;
  const first = model.messages.get(model.order[0]);
  if (!first) return;
  try {
    const page = await app.call("session/messages", { sessionId: model.id, before: first.orderSeq, limit: 30 });
    const before = model.order.length;
    model.prepend(page);
    transcript.prepended(model.order.length - before);
  } catch (error) {
    complain(`Could not read older messages: ${error.message}`);
  }
}

async function readBlock(messageId, blockId, field) {
  const { model } = app;
  const parts = [];
  let read = 0;
  try {
    for (let total = 1; read < total && read < BLOCK_LIMIT; ) {
      const slice = await app.call("session/block", { sessionId: model.id, messageId, blockId, field, offset: read });
      total = slice.total;
      parts.push(slice.text);
      if (!slice.text) break;
      read += Array.from(slice.text).length;
    }
    model.complete(messageId, blockId, field, parts.join(""));
    schedule();
  } catch (error) {
    complain(`Could not read it: ${error.message}`);
  }
}

async function showMessage(sessionId, messageId) {
  await openSession(sessionId);
  for (let page = 0; page < 20 && !app.model.messages.has(messageId) && app.model.older; page++) await loadOlder();
  draw();
  if (!transcript.show(messageId)) say("The message is further back in the conversation.");
}

async function fork(messageId) {
  const answer = await act("fork here", "session/fork", { sessionId: app.model.id, through: messageId });
  if (!answer) return;
  say("A fork was made; this is it.");
  openSession(answer.session.id);
}

//// Drawing

let scheduled = false;

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}

function draw() {
  const { model } = app;
  if (!model) return;
  const dirty = model.take();
  if (dirty.status || dirty.settings || dirty.asks) drawStatus(model);
  transcript.draw(dirty);
  dock.draw(model, dirty);
  if (dirty.asks) announceAsk(model);
  if (dirty.settings) inspector.settingsChanged();
  for (const { event } of dirty.notes ? model.notes.splice(0) : []) say(compactionWords(event));
}

function drawStatus(model) {
  const { status, settings } = model;
  const asked = model.interactions.values().next().value;
  const kind = asked?.block.action === "tool_call_permission" ? "permission" : "question";
  const waitingFor = status.waitingFor ?? (asked ? kind : null);
  const [state, words] = standing({ ...status, waitingFor, hasOpenInteraction: Boolean(asked), outcome: model.lastOutcome });
  const title = oneLine(settings?.title ?? "", 120) || "Untitled";
  setText(byId("title"), title);
  document.title = `${{ asks: "\u25c6 ", works: "\u25cf " }[state] ?? ""}${title} \u00b7 greenroom`;
  if (byId("state").dataset.state !== state) announce(words);
  byId("state").dataset.state = state;
  byId("messages").setAttribute("aria-busy", String(state === "works"));
  setText(byId("state-text"), `${words}${state === "error" && model.failure ? `: ${oneLine(model.failure, 200)}` : timing(status, state)}`);
  composer.draw();
}

// When it tries again; of everything else how long it has gone on, and its deadline when that is near.
function timing({ until, since, waitingFor }, state) {
  if (state !== "works") return "";
  const left = until == null ? Infinity : Math.max(0, Math.ceil((until - Date.now()) / 1000));
  if (waitingFor === "backoff" || waitingFor === "rate_gate") return left < Infinity ? ` in ${seconds(left)}` : "";
  const spent = since ? Math.floor((Date.now() - since) / 1000) : 0;
  return `${spent > 1 ? ` \u00b7 ${seconds(spent)}` : ""}${left < 60 ? ` \u00b7 ends in ${seconds(left)}` : ""}`;
}

setInterval(() => {
  if (app.model && !document.hidden && app.model.status.state === "generating") drawStatus(app.model);
}, 1000);

let announced = null;

function announceAsk(model) {
  const ask = model.interactions.values().next().value;
  if (ask && ask.block.id !== announced) announce(`Waits for your answer: ${oneLine(ask.block.title || ask.block.detail, 200)}`);
  announced = ask?.block.id ?? null;
}

function compactionWords({ outcome, tokensBefore, tokensAfter }) {
  if (outcome === "undone") return "The compaction was undone.";
  if (outcome === "reset") return "The whole conversation is sent again.";
  const what = outcome === "summarized" ? "Earlier messages are summarised" : "Earlier messages are left out";
  return tokensBefore == null ? `${what}.` : `${what}: about ${tokensBefore} tokens became ${tokensAfter ?? 0}.`;
}

//// Keyboard

const KEYS = [
  ["/", "write a message", () => byId("prompt").focus()],
  ["a", "allow what is asked", () => dock.first?.press("a")],
  ["d", "deny it", () => dock.first?.press("d")],
  ["1 \u2026 9", "choose an answer", null],
  ["w", "go to what waits for an answer", () => dock.focus()],
  ["x", "stop the turn", () => composer.stop()],
  ["j", "next session", () => step(1)],
  ["k", "session before", () => step(-1)],
  ["n", "new session", () => dialogs.newSession()],
  ["s", "search messages", () => dialogs.openSearch()],
  ["f", "filter sessions", () => (reveal("sidebar"), byId("filter").focus())],
  ["i", "inspector", () => toggle("inspector")],
  ["g", "go to the latest message", () => transcript.end()],
  ["?", "this list", () => byId("help-dialog").showModal()],
];

function escape(event) {
  if (event.target.matches("input, textarea")) event.target.blur();
  shut("sidebar");
  if (isNarrow()) shut("inspector");
}

function step(by) {
  const at = app.list.items.findIndex((item) => item.id === app.model?.id);
  const item = app.list.items[at < 0 ? 0 : at + by];
  if (item) openSession(item.id);
}

//// Panels that fold

const isNarrow = () => matchMedia("(max-width: 1080px)").matches;
const toggles = { sidebar: "toggle-sidebar", inspector: "toggle-inspector" };

function fold(name, open) {
  byId("frame").classList.toggle(`with-${name}`, open);
  byId("frame").classList.toggle(`without-${name}`, !open);
  byId(toggles[name]).setAttribute("aria-expanded", String(open));
  if (name === "inspector" && open) inspector.refresh();
}

const isOpen = (name) => byId(name).getClientRects().length > 0;
const toggle = (name) => fold(name, !isOpen(name));
const reveal = (name) => fold(name, true);

// Beside the conversation a panel stays; over it, it goes.
function shut(name) {
  const over = matchMedia(name === "sidebar" ? "(max-width: 760px)" : "(max-width: 1080px)").matches;
  if (over && isOpen(name)) fold(name, false);
}

//// Beginning

function listen() {
  for (const [id, name] of [["open-search", "search"], ["open-new", "plus"], ["toggle-sidebar", "menu"], ["toggle-inspector", "panel"], ["open-help", "help"], ["close-inspector", "close"]]) {
    byId(id).append(icon(name));
  }
  const on = (id, type, act) => byId(id).addEventListener(type, act);
  on("banner-retry", "click", () => app.wire.retry());
  on("open-search", "click", () => dialogs.openSearch());
  on("open-new", "click", () => dialogs.newSession());
  on("empty-list", "click", () => reveal("sidebar"));
  on("empty-new", "click", () => dialogs.newSession());
  on("open-help", "click", () => byId("help-dialog").showModal());
  on("toggle-sidebar", "click", () => toggle("sidebar"));
  on("toggle-inspector", "click", () => toggle("inspector"));
  on("close-inspector", "click", () => fold("inspector", false));
  on("token-form", "submit", () => {
    sessionStorage.setItem(TOKEN, byId("token").value);
    byId("token").value = "";
    app.wire.retry();
  });
  on("token-dialog", "cancel", (event) => event.preventDefault());
  listenKeys(KEYS, { stop: () => composer.stop(), escape, choose: (digit) => dock.first?.press(digit) });
  addEventListener("hashchange", () => (location.hash ? openFromAddress() : app.model && closeSession()));
}

listen();
composer.draw();
connect();
