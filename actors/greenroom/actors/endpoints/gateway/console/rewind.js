// The dialog that takes a conversation back: what would be lost is looked at first, and
// said, before anything is done.

import { byId, clean, count, h, oneLine, replace, setText } from "./dom.js";
import { isImage } from "./images.js";
import { diffView } from "./prose.js";

const ACTIONS = { restore: "put back", remove: "removed", unchanged: "as it was", refused: "can't be put back" };

/** `app` has `model`, `call`, `act`, `say`, `complain`, `writeAgain(text, images)`. */
export class RewindDialog {
  constructor(app) {
    this.app = app;
    this.dialog = byId("rewind-dialog");
    /** What it was opened for, last. */
    this.asked = null;
    byId("rewind-cancel").addEventListener("click", () => this.dialog.close());
    byId("rewind-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#rewind();
    });
  }

  /** Ask whether `message` is to be the last one; one of the user's goes too, to be written again. */
  async open(message) {
    const { model } = this.app;
    const asked = { model, message, through: message.id, last: null, wait: false };
    if (message.role === "user") asked.through = await this.#before(model, message);
    if (this.app.model !== model || asked.through === undefined) return;
    this.asked = asked;
    await this.#look();
  }

  // The message before one; null: there is none. Undefined when it can't be known.
  async #before(model, message) {
    if (model.order[0] === message.id && model.older) await this.app.loadOlder();
    const at = model.order.indexOf(message.id);
    if (at > 0) return model.order[at - 1];
    return at === 0 && !model.older ? null : undefined;
  }

  get #params() {
    const { model, through } = this.asked;
    return through === null ? { sessionId: model.id } : { sessionId: model.id, through };
  }

  async #look() {
    const { asked } = this;
    asked.last = asked.model.lastMessage?.id;
    const told = await this.app.act("rewind", "session/rewind", { ...this.#params, files: true, dryRun: true });
    if (this.asked !== asked || this.app.model !== asked.model) return;
    if (!told || told.count === 0) {
      if (told) this.app.say("Nothing was said after this.");
      this.dialog.close();
      return;
    }
    this.#draw(asked, told);
    if (!this.dialog.open) this.dialog.showModal();
  }

  #draw({ message, model }, { count: gone, files = [], commands = 0 }) {
    const changed = files.filter((file) => file.action !== "unchanged");
    const refused = changed.some((file) => file.action === "refused");
    const isUser = message.role === "user";
    setText(byId("rewind-what"), `${count(gone, "message")} will be taken back${isUser ? "; what you said is put into the message box" : ""}. The model won't see them again.`);
    byId("rewind-files-row").hidden = !changed.length;
    byId("rewind-files").disabled = refused;
    byId("rewind-files").checked = false;
    setText(byId("rewind-files-text"), refused ? "The files can't be put back:" : `Put ${count(changed.length, "file")} back as before, too`);
    replace(byId("rewind-list"), changed.slice(0, 50).map((file) => fileRow(file, model.settings?.workspace)));
    setText(byId("rewind-commands"), commands ? `What ${count(commands, "command")} did stays done.` : "");
  }

  async #rewind() {
    const { asked } = this;
    if (!asked || asked.wait) return;
    // What would be lost is what was shown, nothing that was said meanwhile.
    if (asked.model.lastMessage?.id !== asked.last) {
      this.app.say("The conversation has changed meanwhile: please look again.");
      await this.#look();
      return;
    }
    asked.wait = true;
    const said = asked.message.role === "user" ? [...asked.message.blocks.values()] : [];
    const told = await this.app.act("rewind", "session/rewind", { ...this.#params, files: byId("rewind-files").checked });
    asked.wait = false;
    if (this.asked !== asked || !told) return;
    this.dialog.close();
    this.app.say(`${count(told.count, "message")} ${told.count === 1 ? "was" : "were"} taken back.`);
    if (this.app.model === asked.model) this.app.writeAgain(textOf(said), said.filter(isImage).map((image) => ({ ...image, name: "the image" })));
  }
}

const textOf = (blocks) => blocks.filter((block) => block.type === "text").map((block) => block.text).join("\n\n");

function fileRow({ path, action, reason, diff }, folder) {
  return h("li", { data: { action } },
    h("p", null, h("code", { dir: "ltr" }, oneLine(path, 300)), " ", h("span", { class: "mark" }, ACTIONS[action] ?? oneLine(action, 40))),
    reason ? h("p", { class: "quiet", dir: "auto" }, clean(reason.slice(0, 500))) : null,
    diff ? h("details", { class: "call" }, h("summary", null, "Show the change"), diffView(diff, folder)) : null);
}
