// What the page has to say for a moment, on top of everything.

import { announce, byId, h, icon, oneLine } from "./dom.js";

const MOST = 4;
const TOLD_FOR = 5000;
const BAD_FOR = 12000;

export const say = (text) => toast(text, "told", TOLD_FOR);
export const complain = (text) => toast(text, "bad", BAD_FOR);

function toast(text, kind, time) {
  const made = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : null }, h("span", { dir: "auto" }, oneLine(text, 400)),
    h("button", { type: "button", class: "tool-button", "aria-label": "Dismiss", on: { click: () => dismiss(made) } }, icon("close")));
  const toasts = byId("toasts");
  toasts.append(made);
  if (kind === "told") announce(text);
  raise(toasts);
  while (toasts.children.length > MOST) toasts.firstElementChild.remove();
  setTimeout(() => made.remove(), time);
}

// Above a dialog, too, in browsers that can do that.
function raise(toasts) {
  if (!toasts.showPopover) return;
  if (toasts.matches(":popover-open")) toasts.hidePopover();
  toasts.showPopover();
}

// Who dismisses it with a key goes on where there is something to do.
function dismiss(made) {
  made.remove();
  (byId("toasts").querySelector("button") ?? byId("prompt")).focus();
}
