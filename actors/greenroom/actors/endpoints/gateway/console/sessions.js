// The list of sessions: what each does or waits for. It is read again every few seconds,
// which is also how a dead connection is found out.

import { byId, count, h, oneLine, setText, when } from "./dom.js";

const LIST_EVERY = 3000;
const SOON = 250;
const HEARTBEAT_LIMIT = 15000;

const WAITS = {
  connect: "connecting to the provider", first_byte: "waiting for the first word", stream: "waiting for the model",
  backoff: "trying again", rate_gate: "rate limited", tool: "running a tool", compaction: "compacting",
  review: "a reviewer looks at a call", permission: "waits for your permission", question: "waits for your answer", cleanup: "cleaning up",
};

/** Return the state and its words; `outcome` of the last turn, where it is known. */
export function standing({ state, waitingFor, hasOpenInteraction, archivedAt, outcome }) {
  if (hasOpenInteraction || waitingFor === "permission" || waitingFor === "question") return ["asks", WAITS[waitingFor] ?? "needs you"];
  if (state === "generating") return ["works", WAITS[waitingFor] ?? "working"];
  if (outcome === "aborted") return ["idle", "stopped"];
  if (state === "error") return ["error", outcome ? "ended in an error" : "ended early"];
  return archivedAt ? ["away", "archived"] : ["idle", "idle"];
}

/** `app` has `call`, `complain`, `openSession(id)`, `drawEmpty()`, `model`, `isConnected`. */
export class SessionList {
  constructor(app) {
    this.app = app;
    this.items = [];
    this.next = null;
    this.rows = new Map();
    this.timer = 0;
    this.lastError = null;
    this.shown = null;
    setInterval(() => document.hidden || this.read(), LIST_EVERY);
    byId("filter").addEventListener("input", () => {
      this.items = [];
      this.readSoon();
    });
    byId("archived").addEventListener("change", () => {
      this.items = [];
      this.read();
    });
    byId("more-sessions").addEventListener("click", () => this.read({ more: true }));
    byId("sessions").addEventListener("keydown", onArrow);
  }

  readSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), SOON);
  }

  async read({ more = false } = {}) {
    clearTimeout(this.timer);
    if (!this.app.isConnected) return;
    const limit = more ? 50 : Math.min(100, Math.max(50, this.items.length));
    const params = { limit, title: byId("filter").value.trim() };
    if (!byId("archived").checked) params.archived = false;
    if (more && this.next) params.before = this.next;
    try {
      const { sessions, next } = await this.app.call("session/list", params, { again: false, limit: HEARTBEAT_LIMIT });
      this.#take(sessions, next ?? null, more);
      this.lastError = null;
      this.draw();
    } catch (error) {
      if (error.code === "lost" || error.code === "not_connected") return;
      // It is asked again soon; what goes wrong is said once.
      if (this.lastError !== error.message) this.app.complain(`Could not list the sessions: ${error.message}`);
      this.lastError = error.message;
    }
  }

  // A page that is read again takes the place of what it covers; what is below stays.
  #take(sessions, next, more) {
    const known = new Set(sessions.map((item) => item.id));
    const others = this.items.filter((item) => !known.has(item.id));
    const last = sessions.at(-1)?.updatedAt;
    const isPart = !more && next !== null && this.items.length > sessions.length;
    if (more) this.items = [...others, ...sessions];
    else this.items = [...sessions, ...(isPart ? others.filter((item) => item.updatedAt <= last) : [])];
    if (!isPart) this.next = next;
  }

  draw() {
    const list = byId("sessions");
    const focused = list.contains(document.activeElement) ? document.activeElement : null;
    const wanted = new Set(this.items.map((item) => item.id));
    for (const [id, row] of this.rows) {
      if (wanted.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    for (const [at, item] of this.items.entries()) {
      let row = this.rows.get(item.id);
      if (!row) this.rows.set(item.id, (row = this.#row(item.id)));
      fill(row, item, item.id === this.app.model?.id);
      if (list.children[at] !== row) list.insertBefore(row, list.children[at] ?? null);
    }
    // A row that moved has lost it; one that is gone gives it to its neighbour.
    if (focused && document.activeElement !== focused) (focused.isConnected ? focused : (list.querySelector("button") ?? byId("filter"))).focus();
    this.#reveal(this.app.model?.id ?? null);
    byId("more-sessions").hidden = !this.next;
    if (!this.app.model) this.app.drawEmpty();
  }

  // The open one comes into sight, once: after that somebody may look elsewhere.
  #reveal(id) {
    if (id === this.shown || (id !== null && !this.rows.has(id))) return;
    this.shown = id;
    this.rows.get(id)?.scrollIntoView({ block: "nearest" });
  }

  #row(id) {
    return h("li", null, h("button", { type: "button", class: "session", data: { id }, on: { click: () => this.app.openSession(id) } },
      h("span", { class: "dot", "aria-hidden": "true" }), h("span", { class: "name", dir: "auto" }), h("time"),
      h("span", { class: "doing" })));
  }
}

function fill(row, item, isOpen) {
  const [dot, name, time, doing] = row.firstChild.children;
  const [state, words] = standing(item);
  dot.dataset.state = row.firstChild.dataset.state = state;
  setText(name, oneLine(item.settings.title, 80) || "Untitled");
  setText(time, when(item.updatedAt));
  const folder = oneLine(item.settings.workspace.split("/").at(-1), 30);
  setText(doing, state === "idle" ? `${count(item.messageCount, "message")} \u00b7 ${folder}` : words);
  if (isOpen) row.firstChild.setAttribute("aria-current", "true");
  else row.firstChild.removeAttribute("aria-current");
}

function onArrow(event) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const row = next && event.target.closest("li")?.[next];
  if (!row) return;
  row.firstChild.focus();
  event.preventDefault();
}
