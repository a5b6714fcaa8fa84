// Keys that stand alone, outside of text fields, and the dialog that lists them all. They
// can be turned off, for those whose words come as keys.

import { byId, h, replace } from "./dom.js";

const SINGLE_KEYS = "greenroom.single-keys";

const TYPED_KEYS = [
  ["Enter", "send, or queue while a turn runs"],
  ["Shift+Enter", "begin a line"],
  ["Ctrl+Enter", "steer the running turn"],
  ["Ctrl+.", "stop the turn, also while you write"],
  ["Escape", "leave the text field, close what is open"],
];

/**
 * `keys`: rows of a key, what it does in words, and a function or null. `choose(digit)`
 * returns whether there was something to choose.
 */
export function listenKeys(keys, { stop, escape, choose }) {
  const acts = new Map(keys.filter(([, , act]) => act).map(([key, , act]) => [key, act]));
  const single = (key) => {
    if (/^[1-9]$/.test(key)) return choose(key);
    acts.get(key)?.();
    return acts.has(key);
  };
  document.addEventListener("keydown", (event) => {
    const isStop = event.key === "." && (event.ctrlKey || event.metaKey);
    if (isStop) stop();
    else if (event.key === "Escape") escape(event);
    if (isStop || (standsAlone(event) && single(event.key))) event.preventDefault();
  });
  byId("single-keys").checked = localStorage.getItem(SINGLE_KEYS) !== "off";
  byId("single-keys").addEventListener("change", (event) =>
    localStorage.setItem(SINGLE_KEYS, event.target.checked ? "on" : "off"));
  replace(byId("keys"), [...keys, ...TYPED_KEYS].map(([key, what]) =>
    h("div", null, h("dt", null, h("kbd", null, key)), h("dd", null, what))));
}

function standsAlone({ target, ctrlKey, metaKey, altKey, repeat }) {
  if (ctrlKey || metaKey || altKey || repeat || document.querySelector("dialog[open]")) return false;
  if (target.matches("input, textarea, select") && target.type !== "checkbox") return false;
  return localStorage.getItem(SINGLE_KEYS) !== "off";
}
