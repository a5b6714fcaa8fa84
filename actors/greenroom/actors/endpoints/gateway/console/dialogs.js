// The dialogs that ask for something: a new session, and words to search for.

import { allAgents, isUsable } from "./agents.js";
import { byId, clean, count, h, oneLine, replace, setText, when } from "./dom.js";

/** `app` has `call`, `act`, `list`, `model`, `scopes`, `openSession(id)`, `showMessage(sessionId, id)`. */
export class Dialogs {
  constructor(app) {
    this.app = app;
    this.round = 0;
    byId("search").addEventListener("input", () => this.#search());
    byId("new-cancel").addEventListener("click", () => byId("new-dialog").close());
    byId("new-form").addEventListener("submit", () => this.#make());
  }

  async newSession(agentId) {
    if (!this.app.scopes.has("write")) return;
    const agents = await allAgents(this.app.call).catch(() => []);
    const usable = agents.filter(isUsable);
    replace(byId("new-agent"), usable.map((agent) => h("option", { value: agent.id, selected: agent.id === agentId }, oneLine(agent.name, 80))));
    const last = this.app.model?.settings ?? this.app.list.items[0]?.settings;
    byId("new-workspace").value = last?.workspace ?? "";
    byId("new-name").value = "";
    if (!document.querySelector("dialog[open]")) byId("new-dialog").showModal();
  }

  async #make() {
    const values = {
      workspace: byId("new-workspace").value.trim(),
      title: byId("new-name").value.trim(),
      agent: byId("new-agent").value,
      model: byId("new-model").value.trim(),
      permissionMode: byId("new-mode").value,
    };
    const params = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
    const answer = await this.app.act("begin a session", "session/create", params);
    if (!answer) return;
    this.app.list.readSoon();
    this.app.openSession(answer.session.id);
  }

  openSearch() {
    byId("search-dialog").showModal();
    byId("search").select();
  }

  // Of several answers that of the last question counts.
  async #search() {
    const round = ++this.round;
    const query = byId("search").value.trim();
    let hits = [];
    let told = "";
    try {
      if (query) ({ hits } = await this.app.call("session/search", { query, limit: 30 }));
      if (query) told = hits.length ? count(hits.length, "message") : "Nothing was found.";
    } catch (error) {
      told = clean(error.message);
    }
    if (round !== this.round) return;
    setText(byId("search-state"), told);
    replace(byId("hits"), hits.map((hit) => this.#hit(hit)));
  }

  #hit(hit) {
    const open = () => {
      byId("search-dialog").close();
      this.app.showMessage(hit.sessionId, hit.messageId);
    };
    return h("li", null, h("button", { type: "button", on: { click: open } },
      h("span", { class: "name", dir: "auto" }, oneLine(hit.title, 80) || "Untitled"), h("time", null, when(hit.updatedAt)),
      h("span", { class: "snippet", dir: "auto" }, oneLine(hit.snippet, 240))));
  }
}
