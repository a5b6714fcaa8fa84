// A card for each permission or question that waits: all of what would be allowed, and
// what can be answered.

import { argumentList } from "./blocks.js";
import { button, clean, h, oneLine, seconds, setText } from "./dom.js";
import { diffView } from "./prose.js";

/** Milliseconds until a card can be answered. */
const MOMENT = 350;

/** One of them. `app` has `act(label, method, params)` and `scopes`. */
export class Card {
  constructor({ sessionId, block, tool }, folder, app) {
    this.block = block;
    this.folder = folder;
    this.isNext = null;
    this.isAnswered = false;
    this.until = h("span", { class: "until" });
    this.answered = (label, answer) => this.#answer(app.act, sessionId, label, answer);
    const permission = block.action === "tool_call_permission";
    // A question may have a word or two above it; what is asked is then its detail.
    const [above, asked] = permission || !block.detail ? [null, headOf(block)] : [block.title, block.detail];
    this.asked = oneLine(asked, 120);
    const id = `ask-${block.id}`;
    this.later = h("p", { class: "quiet", hidden: true }, "Answer the one above first.");
    this.element = h("section", { class: `ask ${permission ? "permission" : "question"}`, tabIndex: -1, "aria-labelledby": id, data: { id: block.id } },
      h("header", null, h("span", { class: "mark" }, permission ? "Permission" : block.origin === "budget" ? "Budget" : "Question"),
        above ? h("span", { class: "above", dir: "auto" }, oneLine(above, 80)) : null, this.until),
      h("h2", { id, dir: "auto" }, clean(asked.slice(0, 2000))),
      permission ? this.#detail(tool, asked) : null,
      (this.form = this.#form(permission, app.scopes.has("write"))),
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

  #form(permission, may) {
    if (!may) return h("p", { class: "quiet" }, "This token may only read: somebody else has to answer.");
    return permission ? this.#permission() : this.#question();
  }

  // Whoever allows something sees all of it: what doesn't fit can be scrolled.
  #detail(tool, asked) {
    const { detail } = this.block;
    const said = detail && detail !== asked ? h("pre", { class: "raw detail", tabIndex: 0, dir: "ltr" }, clean(detail)) : null;
    if (!tool) return said;
    const diffs = (tool.diffs ?? []).slice(0, 10).map((diff) => diffView(diff, this.folder));
    const call = h("details", { class: "call" }, h("summary", null, `All arguments of ${oneLine(tool.name, 80)}`), argumentList(tool));
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

// What stands below it is not said twice.
function headOf({ title, detail }) {
  const head = detail && title.endsWith(detail) ? title.slice(0, -detail.length).replace(/[:\s]+$/, "") : title;
  return head || title || "May it do this?";
}

const choiceOf = ({ label, description }) =>
  h("span", { dir: "auto" }, oneLine(label, 200), description ? h("small", null, oneLine(description, 300)) : null);

function keyed(label, key, onClick, name) {
  const made = button(label, onClick, { class: name, data: key ? { key } : {} });
  if (key) made.append(h("kbd", { "aria-hidden": "true" }, key));
  return made;
}
