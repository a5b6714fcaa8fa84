// The input that waits for its turn: it can be changed, moved, promoted and deleted, here
// and by others at the same time.

import { arrange, button, byId, h, icon, oneLine, replace, setText } from "./dom.js";

/** `app` has `act(label, method, params)`, `say(text)`, `scopes`, `writeAgain(text)`. */
export class Inbox {
  constructor(app) {
    this.app = app;
    this.element = byId("inbox");
    this.list = h("ol");
    /** What is being changed: the row's id, its text when that began, and its element. */
    this.editor = null;
    /** The element of each row, as long as it stays the same: somebody may be pressing on it. */
    this.rows = new Map();
  }

  reset() {
    this.editor = null;
    this.rows.clear();
    replace(this.element);
    replace(this.list);
  }

  draw(model) {
    const rows = [...model.inputs.values()].filter((row) => row.state !== "claimed").sort(inOrder);
    this.element.hidden = rows.length === 0;
    this.#checkEditor(model, rows);
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    const [focusedRow, focusedName] = [focused?.closest("li")?.dataset.id, focused?.getAttribute("aria-label")];
    const held = rows.some((row) => row.held);
    const elements = rows.map((row) => this.#kept(row.id, [row, placeOf(row, rows), rows.length, model.status.state], () => this.#row(model, row, rows)));
    arrange(this.element, [this.#kept("head", [rows.length, held], () => this.#head(model, rows.length, held)), this.list]);
    arrange(this.list, elements);
    for (const id of this.rows.keys()) if (id !== "head" && !rows.some((row) => row.id === id)) this.rows.delete(id);
    if (!focused || document.activeElement === focused) return;
    const row = focusedRow && this.list.querySelector(`li[data-id="${CSS.escape(focusedRow)}"]`);
    const same = row?.querySelector(`[aria-label="${CSS.escape(focusedName ?? "")}"]:enabled`);
    (same ?? row?.querySelector("button:enabled, textarea") ?? this.element.querySelector("button:enabled") ?? byId("prompt")).focus();
  }

  #head(model, length, held) {
    const release = () => this.app.act("send what waits", "input/release", { sessionId: model.id });
    return h("div", { class: "inbox-head" },
      h("h3", null, held ? "Held until you go on" : "Waits for its turn", h("span", { class: "tag" }, String(length))),
      held && this.app.scopes.has("write") ? button("Send now", release, { class: "small", "aria-label": "Send now" }) : null);
  }

  #kept(id, shown, make) {
    if (this.editor?.id === id) return this.editor.element;
    const told = JSON.stringify([this.app.scopes.has("write"), ...shown]);
    const known = this.rows.get(id);
    if (known?.told === told) return known.element;
    const element = make();
    this.rows.set(id, { told, element });
    return element;
  }

  // Somebody else may have changed what is being changed here, or its turn may have come.
  #checkEditor(model, rows) {
    const { editor } = this;
    if (!editor) return;
    const row = rows.find((each) => each.id === editor.id);
    if (row) {
      editor.note.hidden = textOf(row.parts) === editor.begun;
      setText(editor.note, `Meanwhile it was changed elsewhere, to: ${oneLine(textOf(row.parts), 200)}`);
      return;
    }
    this.editor = null;
    const end = ENDS[model.inputEnds.get(editor.id)] ?? ENDS.delivered;
    const isChanged = editor.area.value !== editor.begun;
    this.app.say(`${end} while you changed it${isChanged ? ": your text is in the message box" : ""}.`);
    if (isChanged) this.app.writeAgain(editor.area.value);
  }

  #row(model, row, rows) {
    const ref = { sessionId: model.id, inputId: row.id };
    const send = async (label, method, params) => {
      const answer = await this.app.act(label, method, params);
      if (!answer) return false;
      model.inputs = new Map(answer.inputs.map((each) => [each.id, each]));
      model.noteCuts(answer.cut);
      if (this.app.model === model) this.draw(model);
      return true;
    };
    const images = (row.parts ?? []).filter((part) => part.type === "image").length;
    const text = oneLine(textOf(row.parts), 240);
    const mayWrite = this.app.scopes.has("write");
    return h("li", { data: { id: row.id, state: row.state } },
      h("span", { class: "mode" }, row.held ? "held" : row.mode === "steer" ? "steers" : String(placeOf(row, rows))),
      h("span", { class: "said", dir: "auto" }, text),
      images ? h("span", { class: "tag" }, images === 1 ? "an image" : `${images} images`) : null,
      row.blocking?.length ? h("span", { class: "why" }, oneLine(row.blocking.join("; "), 200),
        mayWrite ? button("Retry", () => send("try it again", "input/retry", ref), { class: "link" }) : null,
        mayWrite ? button("Send without it", () => send("send what can be sent", "input/degrade", ref), { class: "link" }) : null) : null,
      mayWrite ? h("span", { class: "tools" }, this.#tools(model, row, rows, send, ref)) : null);
  }

  #tools(model, row, rows, send, ref) {
    const tool = (name, label, act, disabled = false) =>
      h("button", { type: "button", class: "tool-button", "aria-label": label, title: label, disabled, on: { click: act } }, icon(name));
    const remove = tool("close", "Delete", () => send("delete it", "input/delete", ref));
    if (row.mode !== "queue") return remove;
    const place = placeOf(row, rows);
    const last = rows.filter((each) => each.mode === "queue").length;
    const isCut = model.cutOf(row.id, "parts") !== null;
    return [
      tool("up", "Move up", () => send("move it", "input/move", { ...ref, to: place - 1 }), place <= 1),
      tool("down", "Move down", () => send("move it", "input/move", { ...ref, to: place + 1 }), place >= last),
      tool("edit", isCut ? "Too long to be changed here" : "Edit", () => this.#edit(model, row, send, ref), isCut),
      tool("bolt", "Steer the running turn with it", () => send("promote it", "input/promote", ref), model.status.state !== "generating"),
      remove,
    ];
  }

  #edit(model, row, send, ref) {
    const begun = textOf(row.parts);
    const close = () => {
      const hadFocus = this.editor?.element.contains(document.activeElement);
      this.editor = null;
      this.draw(model);
      if (hadFocus) (this.list.querySelector(`li[data-id="${CSS.escape(row.id)}"] [aria-label="Edit"]`) ?? byId("prompt")).focus();
    };
    const save = async () => {
      const text = area.value;
      const images = (row.parts ?? []).filter((part) => part.type === "image");
      close();
      if (text === begun) return;
      const content = images.length ? [...images, { type: "text", text }] : text;
      if (!(await send("change it", "input/edit", { ...ref, content })) && this.app.model === model) this.app.writeAgain(text);
    };
    const area = h("textarea", { value: begun, rows: Math.min(8, begun.split("\n").length + 1), "aria-label": "Input that waits", dir: "auto" });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
      else return;
      event.stopPropagation();
      event.preventDefault();
    });
    const note = h("p", { class: "why", role: "status", hidden: true });
    const buttons = h("div", { class: "row" }, button("Save", save, { class: "small primary" }), button("Leave as it was", close, { class: "small" }));
    const element = h("li", { data: { id: row.id } }, h("div", { class: "editor" }, area, note, buttons));
    this.editor = { id: row.id, begun, area, note, element };
    this.draw(model);
    area.focus();
  }
}

const ENDS = {
  delivered: "Its turn began", deleted: "It was deleted elsewhere", promoted: "It was sent to the running turn",
};

const placeOf = (row, rows) => rows.filter((each) => each.mode === "queue").indexOf(row) + 1;
const inOrder = (a, b) => (a.mode === b.mode ? (a.order ?? 0) - (b.order ?? 0) : a.mode === "steer" ? -1 : 1);
const textOf = (parts) => (parts ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\n\n");
