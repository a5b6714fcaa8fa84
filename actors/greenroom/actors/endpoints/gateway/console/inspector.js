// The panel beside the conversation: what happened (the journal), what is alive (the tree of
// actors), what it cost, and how the session is set up.

import { agentsView } from "./agents.js";
import { button, byId, clean, clock, compact, count, h, money, number, oneLine, replace, seconds, sureButton } from "./dom.js";
import { usageOf } from "./model.js";

const TABS = ["journal", "actors", "usage", "settings", "agents"];
const SOON = 300;
const REFRESH = { journal: 2500, actors: 1000, usage: 3000 };

/** `app` has `model`, `call(method, params)`, `act(label, method, params)`, `scopes`, `openSession(id)`, … */
export class Inspector {
  constructor(app) {
    this.app = app;
    this.tab = "journal";
    this.panel = byId("panel");
    this.element = byId("inspector");
    this.tabs = new Map(TABS.map((name) => [name, byId(`tab-${name}`)]));
    for (const [name, tab] of this.tabs) tab.addEventListener("click", () => this.show(name));
    byId("tabs").addEventListener("keydown", (event) => this.#arrow(event));
    setInterval(() => this.#tick(), 500);
    this.refreshed = 0;
    this.round = 0;
    this.soon = 0;
  }

  show(name) {
    this.tab = name;
    for (const [each, tab] of this.tabs) {
      tab.setAttribute("aria-selected", String(each === name));
      tab.tabIndex = each === name ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${name}`);
    replace(this.panel);
    this.refresh();
  }

  get isShown() {
    return this.element.getClientRects().length > 0;
  }

  /** Read again what the open tab shows. */
  async refresh() {
    this.refreshed = Date.now();
    if (!this.isShown) return;
    const round = ++this.round;
    try {
      const content = await PANELS[this.tab](this.app);
      if (round === this.round) this.#fill(content);
    } catch (error) {
      if (round === this.round) this.#fill([h("p", { class: "quiet" }, clean(error.message))]);
    }
  }

  /** Read again what the open tab shows of what goes on, unless somebody is in it. */
  refreshSoon() {
    if (!REFRESH[this.tab] || this.soon || this.#isEntered) return;
    this.soon = setTimeout(() => {
      this.soon = 0;
      if (REFRESH[this.tab] && !this.#isEntered) this.refresh();
    }, SOON);
  }

  /** The session's settings are others: show them, unless somebody is changing them. */
  settingsChanged() {
    if (this.tab === "agents" || (this.tab === "settings" && !this.#isEntered)) this.refresh();
  }

  get #isEntered() {
    return this.panel.contains(document.activeElement) && document.activeElement !== this.panel;
  }

  // Somebody may have opened something, or stand on a button: that stays.
  #fill(content) {
    const entered = this.#isEntered ? document.activeElement : null;
    const open = new Set([...this.panel.querySelectorAll("details[open][data-id]")].map((each) => each.dataset.id));
    const { scrollTop } = this.panel;
    replace(this.panel, content);
    for (const each of this.panel.querySelectorAll("details[data-id]")) if (open.has(each.dataset.id)) each.open = true;
    this.panel.scrollTop = scrollTop;
    if (!entered) return;
    const same = [...this.panel.querySelectorAll("button, input, select, summary")].find((each) => keyOf(each) === keyOf(entered));
    if (same?.tagName === "INPUT") same.value = entered.value;
    (same ?? this.panel).focus({ preventScroll: true });
  }

  #tick() {
    const every = REFRESH[this.tab];
    if (!every || document.hidden || Date.now() - this.refreshed < every) return;
    if (this.#isEntered) return;
    if (this.app.isConnected) this.refresh();
  }

  #arrow(event) {
    const now = TABS.indexOf(this.tab);
    const at = { ArrowRight: (now + 1) % TABS.length, ArrowLeft: (now + TABS.length - 1) % TABS.length, Home: 0, End: TABS.length - 1 }[event.key];
    if (at === undefined) return;
    this.show(TABS[at]);
    this.tabs.get(TABS[at]).focus();
    event.preventDefault();
  }
}

const keyOf = (element) => element.getAttribute("aria-label") || element.name || element.textContent;

const quiet = (text) => h("p", { class: "quiet" }, text);

const PANELS = {
  async journal(app) {
    const { model } = app;
    if (!model) return quiet("Open a session to see what happened in it.");
    const entries = [];
    let before = null;
    for (let page = 0; page < app.journalPages && (page === 0 || before != null); page++) {
      const told = await app.call("journal", before == null ? { sessionId: model.id } : { sessionId: model.id, before });
      entries.unshift(...told.entries);
      before = told.next ?? null;
    }
    if (!entries.length) return quiet("Nothing has run here yet.");
    const more = () => {
      app.journalPages += 1;
      app.changed();
    };
    return [...runsOf(entries).reverse().map(runView), before == null ? null : button("Earlier runs", more, { class: "link" })];
  },

  async actors({ call, model }) {
    const { actors, leftOut, left_out: old } = await call("tree");
    const more = leftOut ?? old;
    return [
      h("ul", { class: "actors", "aria-label": "Actors" }, actors.map((actor) => actorRow(actor, model))),
      more ? quiet(`${number(more)} more are not shown.`) : null,
    ];
  },

  async usage({ model }) {
    if (!model) return quiet("Open a session to see what it cost.");
    return usageView(model);
  },

  async settings(app) {
    return app.model?.settings ? settingsView(app) : quiet("Open a session to see its settings.");
  },

  agents: agentsView,
};

//// The journal

// Each run with its entries; what happens while one is open belongs to it. Oldest first.
function runsOf(entries) {
  const runs = [];
  let open = null;
  for (const entry of entries) {
    const id = entry.runId ?? open?.id ?? null;
    if (!open || open.id !== id) {
      open = { id, entries: [] };
      runs.push(open);
    }
    open.entries.push(entry);
    if (entry.kind === "run_ended") open = null;
  }
  return runs;
}

function runView({ id, entries }) {
  const [first] = entries;
  const ended = entries.find((entry) => entry.kind === "run_ended");
  const now = Date.now() / 1000;
  const last = id === null ? entries.at(-1).at : (ended?.at ?? now);
  const state = id === null ? "" : (ended?.status ?? "open");
  const about = first.kind === "run_started" ? joined(RUN_KINDS[first.runKind] ?? first.runKind, first.model) : "";
  const length = Math.max(0.001, last - first.at);
  return h("section", { class: "run", data: { state } },
    h("h3", null, id === null ? "Session" : `Run ${clean(id.slice(0, 8))}`, h("span", { class: "mark" }, oneLine(state, 40)),
      h("span", { class: "kind" }, oneLine(about, 40)), h("span", { class: "at" }, clock(first.at)), h("span", { class: "took" }, id === null ? "" : seconds(Math.max(0, last - first.at)))),
    h("ol", { class: "timeline" }, spansOf(entries, now).map((span) => spanRow(span, first.at, length))));
}

/** What took time, from when to when: attempts of requests, and tools. The rest are moments. */
export function spansOf(entries, now) {
  const spans = [];
  const requests = new Map();
  const tools = new Map();
  const add = (entry, end, what, about, kind = entry.kind) => {
    const span = { kind, start: entry.at, end, what, about, bad: entry.isError || BAD.has(entry.status) };
    spans.push(span);
    return span;
  };
  for (const entry of entries) {
    if (entry.kind === "run_started") {
      continue; // the run's own heading says it
    } else if (entry.kind === "request") {
      requests.set(entry.requestSeq, add(entry, now, `request ${entry.requestSeq}`, joined("under way", entry.model)));
    } else if (entry.kind === "attempt") {
      const open = requests.get(entry.requestSeq);
      const again = (entry.attempt ?? 1) > 1 ? `, attempt ${entry.attempt}` : "";
      const start = open && open.kind === "request" ? open.start : (open?.next ?? entry.at);
      if (open?.kind === "request") spans.splice(spans.indexOf(open), 1);
      const span = add({ ...entry, at: start }, entry.at, `request ${entry.requestSeq ?? ""}${again}`, TELL.attempt(entry)[1]);
      span.next = entry.at + (entry.retryDelay ?? 0);
      requests.set(entry.requestSeq, span);
    } else if (entry.kind === "dispatch") {
      tools.set(entry.callId, add(entry, now, oneLine(entry.tool ?? "tool", 60), "dispatched", "tool"));
    } else if (entry.kind === "outcome" && tools.has(entry.callId)) {
      const span = tools.get(entry.callId);
      Object.assign(span, { end: entry.at, bad: entry.isError, about: joined(entry.isError ? "failed" : "done", entry.reason) });
    } else {
      const [what, about] = TELL[entry.kind]?.(entry) ?? [oneLine(entry.kind, 40), ""];
      add(entry, entry.at, what, about);
    }
  }
  return spans;
}

const RUN_KINDS = { loop: "", deferred_tool: "allowed tool" };
const BAD = new Set(["error", "context_overflow"]);

function spanRow({ kind, start, end, what, about, bad }, from, length) {
  const share = (at) => Math.min(100, Math.max(0, ((at - from) / length) * 100));
  const bar = h("i", { class: end > start ? "span" : "moment" });
  bar.style.insetInlineStart = `${share(start)}%`;
  if (end > start) bar.style.inlineSize = `${Math.max(2, share(end) - share(start))}%`;
  const took = end > start ? seconds(end - start) : `+${seconds(Math.max(0, start - from))}`;
  return h("li", { data: { kind, bad: String(Boolean(bad)) } },
    h("span", { class: "what" }, what), h("span", { class: "bar", "aria-hidden": "true" }, bar), h("span", { class: "offset" }, took),
    about ? h("span", { class: "about", dir: "auto" }, oneLine(about, 200)) : null);
}

const joined = (...parts) => parts.filter((part) => part != null && part !== "").join(" \u00b7 ");
const used = (usage) => (usage ? `${compact(usage.input)} in, ${compact(usage.output)} out` : null);

const TELL = {
  run_ended: (e) => ["ended", joined(e.status, e.reason === e.status ? null : e.reason, e.cost == null ? null : money(e.cost), used(e.usage))],
  attempt: (e) => ["attempt", joined(e.status === "completed" ? null : e.status, e.reason, used(e.usage), e.retryDelay == null ? null : `tries again in ${seconds(e.retryDelay)}`)],
  outcome: (e) => [oneLine(e.tool ?? "tool", 60), joined(e.isError ? "failed" : "done", e.reason)],
  compaction: (e) => ["compaction", joined(e.status, e.tokensBefore == null ? null : `${compact(e.tokensBefore)} \u2192 ${compact(e.tokensAfter ?? 0)} tokens`, e.reason)],
  retraction: (e) => ["taken back", joined(e.reason)],
  recovery: (e) => ["recovery", joined(e.status, e.reason)],
};

//// Actors

function actorRow(actor, model) {
  const depth = actor.path.split("/").length - 1;
  // Of an id its beginning is enough here; the whole path is told on demand.
  const name = actor.path.split("/").at(-1).replace(/([0-9a-f]{8})-[0-9a-f-]{27}/, "$1");
  const waiting = (actor.work ?? 0) + (actor.control ?? 0);
  const row = h("li", { data: { grade: actor.grade, state: actor.state }, title: clean(actor.path.slice(0, 300)) },
    h("span", { class: "name" }, oneLine(name || "engine", 60)),
    h("span", { class: "doing" }, oneLine(joined(actor.state, actor.current, actor.cancelCause ? `cancelled: ${actor.cancelCause}` : null), 80)),
    waiting ? h("span", { class: "mail", title: `${count(waiting, "message")} in the mailbox` }, `${compact(waiting)} \u2709`) : null,
    actor.restarts ? h("span", { class: "restarts" }, `${actor.restarts} restarts`) : null,
    actor.remaining != null ? h("span", { class: "deadline", title: "until its deadline" }, seconds(Math.max(0, actor.remaining))) : null,
    h("span", { class: "age" }, seconds(Math.max(0, actor.age))));
  row.style.setProperty("--depth", String(Math.min(8, depth)));
  row.setAttribute("aria-level", String(depth + 1));
  if (model && actor.path.includes(model.id)) row.classList.add("mine");
  return row;
}

//// Usage

function usageView(model) {
  const messages = model.order.map((id) => model.messages.get(id));
  const all = usageOf(messages);
  const turns = messages.filter((message) => message.role === "assistant" && message.metadata.inputTokens != null).slice(-40).reverse();
  const most = Math.max(1, ...turns.map(({ metadata }) => metadata.inputTokens + (metadata.outputTokens ?? 0)));
  const tile = (label, value) => h("div", { class: "tile" }, h("dt", null, label), h("dd", null, value));
  return [
    h("dl", { class: "tiles" },
      tile("Cost", all.cost == null ? "not known" : money(all.cost)),
      tile("Input", compact(all.input)), tile("of it cached", compact(all.cached)),
      tile("Output", compact(all.output)), tile("of it thinking", compact(all.reasoning)),
      tile("Turns", number(all.turns)), tile("Rounds", number(all.rounds)), tile("Tool calls", number(all.tools)),
      tile("Model time", seconds(all.seconds))),
    model.older ? quiet("Of the messages that are loaded; older ones are not counted.") : null,
    turns.length ? h("h3", null, "Tokens of each turn") : null,
    h("ol", { class: "turns" }, turns.map(({ metadata, updatedAt }) => {
      const bar = h("i");
      bar.style.width = `${((metadata.inputTokens + (metadata.outputTokens ?? 0)) / most) * 100}%`;
      return h("li", null, h("span", { class: "at" }, clock(updatedAt)), h("span", { class: "bar" }, bar),
        h("span", { class: "sum" }, joined(`${compact(metadata.inputTokens)} + ${compact(metadata.outputTokens ?? 0)}`, metadata.cost == null ? null : money(metadata.cost))));
    })),
  ];
}

//// Settings

const MODES = [["default", "Ask before writing and running"], ["auto_approve", "Approve what is harmless"], ["full_access", "Never ask"]];

function settingsView(app) {
  const { model, act, scopes } = app;
  const { settings } = model;
  const readOnly = !scopes.has("write");
  const set = async (changes) => {
    const answer = await act("change the settings", "session/configure", { sessionId: model.id, changes });
    if (answer) app.changed();
  };
  const text = (label, key, kind = "text") => row(label, h("input", {
    type: kind, value: settings[key] ?? "", readOnly, name: key, dir: "auto",
    on: { change: (event) => set({ [key]: kind === "number" ? (event.target.value === "" ? null : Number(event.target.value)) : event.target.value }) },
  }));
  const mode = h("select", { disabled: readOnly, name: "permissionMode", on: { change: (event) => set({ permissionMode: event.target.value }) } },
    MODES.map(([value, label]) => h("option", { value, selected: (settings.permissionMode ?? "default") === value }, label)));
  return [
    h("div", { class: "form" },
      text("Title", "title"), text("Model", "model"), row("Permissions", mode), text("Round limit", "maxRounds", "number"),
      fact("Provider", settings.provider), fact("Agent", settings.agentId), fact("Workspace", settings.workspace), fact("Id", model.id)),
    readOnly ? quiet("This token may only read.") : deeds(app),
  ];
}

const row = (label, control) => h("label", { class: "row" }, h("span", null, label), control);
const fact = (label, value) => h("div", { class: "row" }, h("span", null, label), h("code", { dir: "ltr" }, oneLine(value, 300)));

function deeds(app) {
  const { model, act, scopes } = app;
  const ref = { sessionId: model.id };
  const isArchived = app.list.items.some((item) => item.id === model.id && item.archivedAt != null);
  const deed = (label, done, method, params = ref, then = () => app.changed()) =>
    button(label, async () => {
      const answer = await act(label.toLowerCase(), method, params);
      if (!answer) return;
      app.say(typeof done === "function" ? done(answer) : done);
      then(answer);
    }, { class: "small" });
  return h("div", { class: "deeds" },
    deed("Fork", "A fork was made.", "session/fork", ref, ({ session }) => app.openSession(session.id)),
    deed("Compact", ({ outcome, why }) => (why ? `Not compacted: ${why}` : `Compacted: ${outcome}`), "session/compact"),
    deed("Undo compaction", ({ undone }) => (undone ? "The compaction was undone." : "There is none to undo."), "session/undo_compaction"),
    isArchived
      ? deed("Take out of the archive", "The session is back.", "session/archive", { ...ref, archived: false })
      : deed("Archive", "The session was archived.", "session/archive", { ...ref, archived: true }, () => app.closeSession()),
    sureButton("Clear the conversation", deedOf(app, "session/clear", () => app.changed()), { class: "small danger" }),
    scopes.has("admin") ? sureButton("Delete the session", deedOf(app, "session/delete", () => app.closeSession()), { class: "small danger" }) : null);
}

const deedOf = (app, method, then) => async () => {
  if (await app.act("do it", method, { sessionId: app.model.id })) then();
};
