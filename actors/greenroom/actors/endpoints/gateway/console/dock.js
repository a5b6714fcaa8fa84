// What stands above the prompt box: permissions and questions that wait for an answer, the
// plan, and the input that waits for its turn.

import { Card } from "./asks.js";
import { endOf } from "./blocks.js";
import { arrange, byId, h, oneLine, replace } from "./dom.js";
import { Inbox } from "./inbox.js";

// The ends that somebody gave an interaction; the others come by themselves.
const ANSWERS = new Set(["granted", "denied", "answered"]);

/** `app` has what a card and the inbox need of it. */
export class Dock {
  constructor(app) {
    this.app = app;
    this.cards = new Map();
    this.inbox = new Inbox(app);
    this.asks = byId("asks");
    this.planBox = byId("plan");
    this.planOpen = false;
    setInterval(() => this.#tick(), 1000);
  }

  draw(model, dirty) {
    if (dirty.asks) this.#drawAsks(model);
    if (dirty.plan) this.#drawPlan(model.plan);
    if (dirty.inputs || dirty.status) this.inbox.draw(model);
  }

  reset() {
    this.cards.clear();
    replace(this.asks);
    this.inbox.reset();
  }

  /** The card that is to be answered next. */
  get first() {
    return this.cards.values().next().value ?? null;
  }

  focus(id) {
    const card = this.cards.get(id) ?? this.first;
    (card?.form.querySelector("button:enabled, input:enabled") ?? card?.element)?.focus();
  }

  // A card keeps its element as long as it waits, and with it what was typed into it.
  #drawAsks(model) {
    const hadFocus = this.asks.contains(document.activeElement);
    for (const [id, card] of this.cards) {
      if (model.interactions.has(id)) continue;
      this.cards.delete(id);
      if (card.isAnswered) continue;
      const end = model.settled.get(id);
      this.app.say(`${endOf(end)}${ANSWERS.has(end) ? ", not here" : ""}: ${card.asked}`);
    }
    for (const [id, ask] of model.interactions) {
      if (!this.cards.has(id)) this.cards.set(id, new Card(ask, model.settings?.workspace, this.app));
    }
    const elements = [...this.cards.values()].map((card, at) => {
      card.setNext(at === 0);
      return card.element;
    });
    arrange(this.asks, elements);
    if (hadFocus && !this.asks.contains(document.activeElement)) (elements[0] ?? byId("prompt")).focus();
  }

  #tick() {
    for (const card of this.cards.values()) card.tick();
  }

  #drawPlan(plan) {
    const entries = plan?.entries ?? [];
    this.planBox.hidden = entries.length === 0;
    if (!entries.length) return;
    const done = entries.filter((entry) => entry.status === "completed").length;
    const current = entries.find((entry) => entry.status === "in_progress");
    const details = h("details", { open: this.planOpen, on: { toggle: (event) => (this.planOpen = event.target.open) } },
      h("summary", null, h("span", { class: "label" }, `Plan ${done} of ${entries.length}`),
        h("span", { class: "gist", dir: "auto" }, current ? oneLine(current.content) : "")),
      h("ol", null, entries.slice(0, 100).map((entry) =>
        h("li", { data: { status: entry.status ?? "pending" }, dir: "auto" }, oneLine(entry.content, 300),
          h("span", { class: "sr" }, ` (${(entry.status ?? "pending").replace("_", " ")})`)))));
    replace(this.planBox, details);
  }
}
