// What stands above the prompt box: permissions and questions that wait for an answer, the
// plan, and the input that waits for its turn.

import { argumentList, titleOf } from "./blocks.js";
import { button, byId, clean, h, icon, oneLine, replace, seconds, setText } from "./dom.js";
import { diffView } from "./prose.js";

/** Milliseconds until a card can be answered. */
const MOMENT = 350;

/** `act(label, method, params)` sends a request and shows what goes wrong with it. */
export class Dock {
  constructor(act) {
    this.act = act;
    this.cards = new Map();
    this.editing = null;
    this.asks = byId("asks");
    this.planBox = byId("plan");
    this.inbox = byId("inbox");
    this.planOpen = false;
    setInterval(() => this.#tick(), 1000);
  }

  draw(model, dirty) {
    if (dirty.asks) this.#drawAsks(model);
    if (dirty.plan) this.#drawPlan(model.plan);
    if (dirty.inputs) this.#drawInbox(model);
  }

  reset() {
    this.cards.clear();
    this.editing = null;
    replace(this.asks);
    replace(this.inbox);
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
    for (const id of this.cards.keys()) if (!model.interactions.has(id)) this.cards.delete(id);
    for (const [id, ask] of model.interactions) {
      if (!this.cards.has(id)) this.cards.set(id, new Card(ask, model.settings?.workspace, this.act));
    }
    const elements = [...this.cards.values()].map((card, at) => {
      card.setNext(at === 0);
      return card.element;
    });
    const same = elements.length === this.asks.children.length && elements.every((each, at) => this.asks.children[at] === each);
    if (!same) replace(this.asks, elements);
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

  #drawInbox(model) {
    const rows = [...model.inputs.values()].filter((row) => row.state !== "claimed").sort(inOrder);
    this.inbox.hidden = rows.length === 0;
    const focused = this.inbox.contains(document.activeElement) ? document.activeElement : null;
    const [focusedRow, focusedName] = [focused?.closest("li")?.dataset.id, focused?.getAttribute("aria-label")];
    const draft = focused?.tagName === "TEXTAREA" ? focused.value : null;
    const held = rows.some((row) => row.held);
    replace(this.inbox,
      h("div", { class: "inbox-head" },
        h("h3", null, held ? "Held until you go on" : "Waits for its turn", h("span", { class: "tag" }, String(rows.length))),
        held ? button("Send now", () => this.act("send what waits", "input/release", { sessionId: model.id }), { class: "small" }) : null),
      h("ol", null, rows.map((row, at) => this.#row(model, row, at, rows, draft))));
    if (focusedRow) {
      const row = this.inbox.querySelector(`li[data-id="${CSS.escape(focusedRow)}"]`);
      (row?.querySelector(`[aria-label="${CSS.escape(focusedName ?? "")}"]`) ?? row?.querySelector("button, textarea") ?? byId("prompt")).focus();
    }
  }

  #row(model, row, at, rows, draft) {
    const text = textOf(row.parts);
    const ref = { sessionId: model.id, inputId: row.id };
    const redraw = () => this.#drawInbox(model);
    const send = async (label, method, params) => {
      const answer = await this.act(label, method, params);
      if (!answer) return;
      model.inputs = new Map(answer.inputs.map((each) => [each.id, each]));
      redraw();
    };
    if (this.editing === row.id) {
      return h("li", { data: { id: row.id } }, this.#editor(draft ?? text, (content) => {
        this.editing = null;
        if (content === null || content === text) redraw();
        else send("change it", "input/edit", { ...ref, content });
      }));
    }
    const queued = row.mode === "queue";
    const place = queued ? rows.filter((each) => each.mode === "queue").indexOf(row) + 1 : 0;
    const last = rows.filter((each) => each.mode === "queue").length;
    const tool = (name, label, act, disabled = false) =>
      h("button", { type: "button", class: "tool-button", "aria-label": label, title: label, disabled, on: { click: act } }, icon(name));
    return h("li", { data: { id: row.id, state: row.state } },
      h("span", { class: "mode" }, row.held ? "held" : row.mode === "steer" ? "steers" : String(place)),
      h("span", { class: "said", dir: "auto" }, oneLine(text, 240) || "(an image)"),
      row.blocking?.length ? h("span", { class: "why" }, oneLine(row.blocking.join("; "), 200),
        button("Retry", () => send("try it again", "input/retry", ref), { class: "link" }),
        button("Send without it", () => send("send what can be sent", "input/degrade", ref), { class: "link" })) : null,
      h("span", { class: "tools" },
        queued ? tool("up", "Move up", () => send("move it", "input/move", { ...ref, to: place - 1 }), place <= 1) : null,
        queued ? tool("down", "Move down", () => send("move it", "input/move", { ...ref, to: place + 1 }), place >= last) : null,
        queued ? tool("edit", "Edit", () => {
          this.editing = row.id;
          redraw();
          this.inbox.querySelector("textarea")?.focus();
        }) : null,
        queued ? tool("bolt", "Steer the running turn with it", () => send("promote it", "input/promote", ref), model.status.state !== "generating") : null,
        tool("close", "Delete", () => send("delete it", "input/delete", ref))));
  }

  #editor(text, done) {
    const area = h("textarea", { value: text, rows: Math.min(8, text.split("\n").length + 1), "aria-label": "Input that waits", dir: "auto" });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done(null);
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(area.value);
      else return;
      event.stopPropagation();
      event.preventDefault();
    });
    return h("div", { class: "editor" }, area,
      h("div", { class: "row" }, button("Save", () => done(area.value), { class: "small primary" }), button("Leave as it was", () => done(null), { class: "small" })));
  }
}

const inOrder = (a, b) => (a.mode === b.mode ? (a.order ?? 0) - (b.order ?? 0) : a.mode === "steer" ? -1 : 1);
const textOf = (parts) => (parts ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\n\n");

class Card {
  constructor({ sessionId, block, tool }, folder, act) {
    this.block = block;
    this.folder = folder;
    this.isNext = null;
    this.isAnswered = false;
    this.until = h("span", { class: "until" });
    this.answered = (label, answer) => this.#answer(act, sessionId, label, answer);
    const permission = block.action === "tool_call_permission";
    // A question may have a word or two above it; what is asked is then its detail.
    const [above, asked] = permission || !block.detail ? [null, block.title || "May it do this?"] : [block.title, block.detail];
    const id = `ask-${block.id}`;
    this.later = h("p", { class: "quiet", hidden: true }, "Answer the one above first.");
    this.element = h("section", { class: `ask ${permission ? "permission" : "question"}`, tabIndex: -1, "aria-labelledby": id, data: { id: block.id } },
      h("header", null, h("span", { class: "mark" }, permission ? "Permission" : block.origin === "budget" ? "Budget" : "Question"),
        above ? h("span", { class: "above", dir: "auto" }, oneLine(above, 80)) : null, this.until),
      h("h2", { id, dir: "auto" }, clean(asked.slice(0, 2000))),
      permission ? this.#detail(tool) : null,
      (this.form = permission ? this.#permission() : this.#question()),
      this.later);
    this.tick();
  }

  // What was meant for something else, a moment before the card was there, answers nothing.
  setNext(isNext) {
    if (isNext === this.isNext) return;
    this.isNext = isNext;
    this.form.hidden = !isNext;
    this.later.hidden = isNext;
    if (!isNext) return;
    this.#enable(false);
    setTimeout(() => this.isAnswered || this.#enable(true), MOMENT);
  }

  tick() {
    const { expiresAt } = this.block;
    if (expiresAt != null) setText(this.until, `ends in ${seconds(Math.max(0, Math.ceil(expiresAt - Date.now() / 1000)))}`);
  }

  /** What a key alone does; true when it did something. */
  press(key) {
    const target = this.element.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (!target || target.disabled || this.form.hidden) return false;
    target.click();
    return true;
  }

  async #answer(act, sessionId, label, answer) {
    this.isAnswered = true;
    this.#enable(false);
    this.isAnswered = Boolean(await act(label, "interaction/answer", { sessionId, interactionId: this.block.id, answer }));
    if (!this.isAnswered) this.#enable(true);
  }

  #enable(on) {
    for (const each of this.form.querySelectorAll("button, input")) each.disabled = !on;
  }

  // Whoever allows something sees all of it: what doesn't fit can be scrolled.
  #detail(tool) {
    const { detail, title } = this.block;
    const said = detail && detail !== title ? h("pre", { class: "raw detail", tabIndex: 0, dir: "ltr" }, clean(detail)) : null;
    if (!tool) return said;
    const diffs = (tool.diffs ?? []).slice(0, 10).map((diff) => diffView(diff, this.folder));
    const call = h("details", { class: "call" }, h("summary", null, oneLine(titleOf(tool), 120)), argumentList(tool));
    return h("div", { class: "about" }, said, diffs, call);
  }

  #permission() {
    const why = h("input", { type: "text", placeholder: "Why not (optional)", "aria-label": "Why not", maxLength: 2000, dir: "auto" });
    const deny = () => this.answered("deny it", { type: "deny", reason: why.value.trim() });
    why.addEventListener("keydown", (event) => event.key === "Enter" && deny());
    return h("div", { class: "answers" },
      keyed("Allow", "a", () => this.answered("allow it", { type: "grant" }), "primary"),
      keyed("Deny", "d", deny, ""), why);
  }

  #question() {
    const { block } = this;
    const reply = (text) => this.answered("answer", { type: "reply", text });
    const options = block.options ?? [];
    const own = block.custom !== false || !options.length
      ? h("input", { type: "text", placeholder: "Your own words", "aria-label": "Your own words", maxLength: 20000, dir: "auto" }) : null;
    own?.addEventListener("keydown", (event) => event.key === "Enter" && own.value.trim() && reply(own.value.trim()));
    const choices = block.multiple ? this.#several(options, reply) : options.slice(0, 50).map((option, at) =>
      keyed(choiceOf(option), at < 9 ? String(at + 1) : null, () => reply(option.label), "choice"));
    return h("div", { class: "answers" }, choices, own,
      own ? button("Answer", () => own.value.trim() && reply(own.value.trim()), { class: "small" }) : null,
      block.origin === "question" ? button("Write a message instead", () => this.answered("leave it", { type: "other" }), { class: "link" }) : null);
  }

  #several(options, reply) {
    const boxes = options.slice(0, 50).map((option, at) => h("input", { type: "checkbox", value: option.label, data: { key: at < 9 ? String(at + 1) : "" } }));
    const chosen = () => boxes.filter((box) => box.checked).map((box) => box.value).join(", ");
    return [
      h("div", { class: "boxes" }, boxes.map((box, at) => h("label", null, box, choiceOf(options[at])))),
      button("Answer with these", () => chosen() && reply(chosen()), { class: "small primary" }),
    ];
  }
}

const choiceOf = ({ label, description }) =>
  h("span", { dir: "auto" }, oneLine(label, 200), description ? h("small", null, oneLine(description, 300)) : null);

function keyed(label, key, onClick, name) {
  const made = button(label, onClick, { class: name, data: key ? { key } : {} });
  if (key) made.append(h("kbd", { "aria-hidden": "true" }, key));
  return made;
}
