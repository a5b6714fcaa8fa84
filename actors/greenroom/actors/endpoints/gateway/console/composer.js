// The prompt box: what is written for each session, with its images, and how it is said.

import { byId, freshId, icon, setText } from "./dom.js";
import { listenImages, Tray } from "./images.js";

/** `app` has `model`, `scopes`, `act(label, method, params)`, `say`, `complain`, `showEnd()`. */
export class Composer {
  constructor(app) {
    this.app = app;
    this.prompt = byId("prompt");
    this.tray = new Tray(app);
    this.drafts = new Map();
    byId("attach").append(icon("image"));
    listenImages(() => this.#isOpen && !document.querySelector("dialog[open]"), (files) => this.tray.add(files));
    byId("stop").addEventListener("click", () => this.stop());
    byId("steer").addEventListener("click", () => this.#submit("steer"));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit("queue");
    });
    this.prompt.addEventListener("input", () => this.#grow());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit((event.ctrlKey || event.metaKey) && this.#works ? "steer" : "queue");
    });
  }

  get #works() {
    return this.app.model?.status.state === "generating";
  }

  get #isOpen() {
    return Boolean(this.app.model) && this.app.scopes.has("write");
  }

  /** Put away what is written for a session, and show what was written for another one. */
  exchange(from, to) {
    if (from) this.drafts.set(from, { text: this.prompt.value, images: this.tray.images });
    const { text, images } = this.drafts.get(to) ?? { text: "", images: [] };
    this.drafts.delete(to);
    this.prompt.value = text;
    this.tray.set(images);
    this.#grow();
  }

  /** Put `text` and images into the box, behind what is there. */
  add(text, images = []) {
    if (images.length) this.tray.set([...this.tray.images, ...images]);
    this.prompt.value = [this.prompt.value, text].filter((each) => each.trim()).join("\n\n");
    this.#grow();
  }

  draw() {
    const { model, scopes } = this.app;
    const may = scopes.has("write");
    byId("composer").hidden = !model;
    this.prompt.disabled = !may;
    this.prompt.placeholder = !may ? "This token may only read" : this.#works ? "Queue the next message, or steer this turn" : "Say what to do";
    byId("stop").hidden = byId("steer").hidden = !this.#works || !may;
    byId("send").hidden = byId("attach").hidden = byId("hint").hidden = !may;
    setText(byId("send"), this.#works ? "Queue" : "Send");
    setText(byId("hint"), this.#works ? "Enter queues, Ctrl+Enter steers" : "Enter sends, Shift+Enter begins a line");
  }

  async stop() {
    const { model, act } = this.app;
    if (!this.#works || !this.#isOpen) return;
    byId("stop").disabled = true;
    await act("stop", "cancel", { sessionId: model.id });
    byId("stop").disabled = false;
  }

  async #submit(method) {
    const { model, act } = this.app;
    const text = this.prompt.value;
    const { images, parts } = this.tray;
    if (!this.#isOpen || !(text.trim() || images.length)) return;
    this.prompt.value = "";
    this.tray.set([]);
    this.#grow();
    this.app.showEnd();
    const said = text.trim() ? [{ type: "text", text }] : [];
    const params = { sessionId: model.id, content: images.length ? [...parts, ...said] : text, commandId: freshId() };
    if (method === "steer" && model.openTurn) params.expectedTurn = model.openTurn.id;
    if (!(await act(method === "steer" ? "steer" : "send it", method, params))) this.#restore(model.id, text, images);
  }

  // What could not be sent is there again, unless something else is written by then.
  #restore(id, text, images) {
    if (this.app.model?.id !== id) {
      if (!this.drafts.has(id)) this.drafts.set(id, { text, images });
    } else if (!this.prompt.value && !this.tray.images.length) {
      this.prompt.value = text;
      this.tray.set(images);
      this.#grow();
    }
  }

  #grow() {
    this.prompt.style.height = "auto";
    if (!this.prompt.scrollHeight) return;
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight + 2, innerHeight * 0.4)}px`;
  }
}
