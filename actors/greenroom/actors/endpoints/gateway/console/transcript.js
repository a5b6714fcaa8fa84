// The conversation on the page: a bounded window of messages that follows the end until
// somebody scrolls up. Changes are drawn once per animation frame.

import { endingWords, viewOf } from "./blocks.js";
import { button, compact, h, number, oneLine, setText, when } from "./dom.js";

const WINDOW = 60;
const STEP = 30;
const MOST = 150;
const BLOCKS = 120;
const NEAR_END = 60;

export class Transcript {
  /** `context` as `viewOf` takes it, and `loadOlder()`. */
  constructor(scroller, list, toEnd, context) {
    Object.assign(this, { scroller, list, toEnd, context });
    this.views = new Map();
    this.first = 0;
    this.last = 0;
    this.follows = true;
    this.loading = false;
    this.top = 0;
    this.earlier = button("Earlier messages", () => this.#earlier(), { class: "link earlier" });
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    toEnd.addEventListener("click", () => this.end());
    // What is inside grows by itself, too: images are there a moment later.
    const watch = new ResizeObserver(() => this.follows && this.#stick());
    for (const each of [scroller, list]) watch.observe(each);
  }

  get model() {
    return this.context.model;
  }

  /** Show another session, or the same anew. */
  reset() {
    this.views.clear();
    this.list.replaceChildren();
    this.follows = true;
    this.#window();
  }

  end() {
    if (!this.model) return;
    this.follows = true;
    this.#window();
    this.draw({ order: true, messages: new Set(), blocks: new Map() });
    this.#stick();
  }

  draw(dirty) {
    if (dirty.order) {
      if (this.follows) this.#window();
      else this.last = Math.min(this.last, this.model.order.length);
      this.#place();
    }
    for (const id of dirty.messages) this.views.get(id)?.head();
    for (const [id, blocks] of dirty.blocks) this.views.get(id)?.blocks(blocks);
    if (this.follows) this.#stick();
    else this.toEnd.hidden = false;
  }

  /** Bring a message into sight; false when it is not known. */
  show(messageId) {
    const at = this.model.order.indexOf(messageId);
    if (at < 0) return false;
    this.follows = false;
    this.first = Math.max(0, at - 10);
    this.last = Math.min(this.model.order.length, this.first + WINDOW);
    this.#place();
    const { element } = this.views.get(messageId);
    element.scrollIntoView({ block: "start" });
    element.focus();
    return true;
  }

  // The window at the end.
  #window() {
    this.model.trim();
    this.last = this.model.order.length;
    this.first = Math.max(0, this.last - WINDOW);
  }

  // Make the elements be those of the window, in its order.
  #place() {
    const ids = this.model.order.slice(this.first, this.last);
    const wanted = new Set(ids);
    for (const [id, view] of this.views) {
      if (wanted.has(id) && this.model.messages.get(id)) continue;
      view.element.remove();
      this.views.delete(id);
    }
    const hasEarlier = this.first > 0 || this.model.older;
    if (!hasEarlier) this.earlier.remove();
    else if (this.list.firstElementChild !== this.earlier) this.list.prepend(this.earlier);
    let after = hasEarlier ? this.earlier : null;
    for (const id of ids) {
      let view = this.views.get(id);
      if (!view) this.views.set(id, (view = new MessageView(id, this.context)));
      const next = after ? after.nextElementSibling : this.list.firstElementChild;
      if (next !== view.element) this.list.insertBefore(view.element, next);
      after = view.element;
    }
  }

  #scrolled() {
    if (!this.model) return;
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const isNear = scrollHeight - scrollTop - clientHeight < NEAR_END;
    // Only somebody who goes up leaves the end: what is below may also grow or shrink.
    const isUp = scrollTop < this.top;
    this.top = scrollTop;
    if (isNear && this.last < this.model.order.length) this.#later();
    else if (isNear) this.follows = true;
    else if (isUp) this.follows = false;
    this.toEnd.hidden = this.follows;
    if (scrollTop < 40 && !this.follows && scrollHeight > clientHeight + 100) this.#earlier();
  }

  #later() {
    this.#keepPlace(() => {
      this.last = Math.min(this.model.order.length, this.last + STEP);
      this.first = Math.max(this.first, this.last - MOST);
      this.#place();
    });
  }

  async #earlier() {
    if (this.loading) return;
    this.loading = true;
    this.follows = false;
    if (this.first === 0 && this.model.older) await this.context.loadOlder();
    const added = Math.min(this.first, STEP);
    this.#keepPlace(() => {
      this.first -= added;
      this.last = Math.min(this.last, this.first + MOST);
      this.#place();
    });
    this.loading = false;
  }

  /** Account for `count` messages that were put in front of the model's. */
  prepended(count) {
    this.first += count;
    this.last += count;
  }

  #keepPlace(change) {
    // One that stays: the first in sight.
    const top = this.scroller.getBoundingClientRect().top;
    const anchor = [...this.list.children].find((each) => each !== this.earlier && each.getBoundingClientRect().bottom > top);
    const before = anchor?.getBoundingClientRect().top ?? 0;
    change();
    if (anchor?.isConnected) this.scroller.scrollTop += anchor.getBoundingClientRect().top - before;
  }

  #stick() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
    this.toEnd.hidden = true;
  }
}

class MessageView {
  constructor(id, context) {
    this.id = id;
    this.context = context;
    this.shown = new Map();
    this.limit = BLOCKS;
    const { role } = this.message;
    this.who = h("h3", { class: "who" }, role === "user" ? "You" : "Agent");
    this.note = h("span", { class: "note" });
    this.time = h("time");
    this.body = h("div", { class: "blocks" });
    this.foot = h("footer");
    this.hidden = button("", () => this.#all(), { class: "link", hidden: true });
    const before = role === "user";
    const deeds = h("span", { class: "deeds for-writers" },
      button("Fork here", () => context.fork(id), { class: "link", title: "Begin another session with what was said up to here" }),
      button("Rewind here", () => context.rewind(id), { class: "link", title: before ? "Take this message and all behind it back" : "Take all behind this message back" }));
    this.element = h("article", { class: `message ${role}`, tabIndex: -1, data: { id } },
      h("header", null, this.who, this.note, deeds, this.time), this.hidden, this.body, this.foot);
    this.head();
    this.#place();
  }

  get message() {
    return this.context.model.messages.get(this.id);
  }

  head() {
    const { message } = this;
    const { metadata, createdAt, role } = message;
    setText(this.time, when(createdAt));
    this.time.dateTime = new Date(createdAt * 1000).toISOString();
    if (role === "assistant" && metadata.model) setText(this.who, oneLine(metadata.model, 60));
    setText(this.note, noteOf(metadata));
    this.element.dataset.status = message.status;
    // While it goes on, what is told of an end is that of an earlier run of the turn.
    const isOver = message.status !== "pending" || (metadata.runOutcome === "paused" && this.context.model.isAskedIn(this.id));
    this.element.dataset.outcome = isOver ? (metadata.runOutcome ?? "") : "";
    setText(this.foot, role === "assistant" && isOver ? endingWords(message) : "");
  }

  blocks(ids) {
    const { message } = this;
    for (const id of ids) {
      const view = this.shown.get(id);
      const block = message.blocks.get(id);
      if (view && block) view.update(block);
      else if (view || block) return this.#place();
    }
  }

  #all() {
    this.limit += 4 * BLOCKS;
    this.#place();
  }

  #place() {
    const { message } = this;
    const all = [...message.blocks.values()];
    const missing = this.context.model.cutOf(this.id, "blocks");
    const blocks = all.slice(-this.limit);
    const hidden = all.length - blocks.length;
    this.hidden.hidden = !hidden;
    if (hidden) setText(this.hidden, `Show ${number(hidden)} earlier steps`);
    if (missing) setText(this.note, `the last ${compact(all.length)} of ${compact(missing.total)} steps`);
    const wanted = new Set(blocks.map((block) => block.id));
    for (const [id, view] of this.shown) {
      if (!wanted.has(id)) {
        view.element.remove();
        this.shown.delete(id);
      }
    }
    let after = null;
    for (const block of blocks) {
      let view = this.shown.get(block.id);
      if (!view) this.shown.set(block.id, (view = viewOf(block, message, this.context)));
      view.update(block);
      const next = after ? after.nextElementSibling : this.body.firstElementChild;
      if (next !== view.element) this.body.insertBefore(view.element, next);
      after = view.element;
    }
  }
}

function noteOf({ messageType, inputReceipt }) {
  if (messageType === "compaction") return "summary";
  if (inputReceipt?.mode === "steer") return inputReceipt.readAt ? "steered, read" : "steered";
  return "";
}
