// Elements, and foreign text made harmless. The only place that makes elements: there is
// no innerHTML anywhere, and the page's policy would refuse it.

/**
 * Make an element. `props`: `on` is a map of listeners, `data` of data attributes, a key
 * that names a property of the element sets it, every other an attribute; null and false
 * leave it out.
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) setProp(element, name, value);
  element.append(...shownOf(children));
  return element;
}

// Lists may lie in lists; what is null or false is left out.
const shownOf = (children) => children.flat(Infinity).filter((child) => child != null && child !== false);

function setProp(element, name, value) {
  if (value == null || value === false) return;
  if (name === "on") {
    for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
  } else if (name === "data") {
    Object.assign(element.dataset, value);
  } else if (name === "class") {
    element.className = value;
  } else if (name in element && !name.startsWith("aria")) {
    element[name] = value;
  } else {
    element.setAttribute(name, value === true ? "" : value);
  }
}

export const byId = (id) => document.getElementById(id);

export function replace(parent, ...children) {
  parent.replaceChildren(...shownOf(children));
}

/** Make the children of `parent` be `elements`, and touch no more of them than needed. */
export function arrange(parent, elements) {
  const wanted = new Set(elements);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  for (const [at, element] of elements.entries()) {
    if (parent.children[at] !== element) parent.insertBefore(element, parent.children[at] ?? null);
  }
}

/** Set text only when it differs, so that a reader of the page is not told again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function button(label, onClick, props = {}) {
  const { on, ...rest } = props;
  return h("button", { type: "button", ...rest, on: { click: onClick, ...on } }, label);
}

const SURE_FOR = 4000;

/** A button for what can't be taken back: it asks once more, in the same place. */
export function sureButton(label, act, props) {
  let timer = 0;
  const calm = () => {
    clearTimeout(timer);
    delete made.dataset.sure;
    setText(made, label);
  };
  const made = button(label, () => {
    if (made.dataset.sure) {
      calm();
      act();
      return;
    }
    made.dataset.sure = "yes";
    setText(made, `${label}: sure?`);
    announce(`${label}: sure? Press again.`);
    timer = setTimeout(calm, SURE_FOR);
  }, props);
  return made;
}

/** Tell it to who hears the page. */
export const announce = (text) => setText(byId("announcer"), text);

const ESCAPES = /\x1b(?:\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)|\[[0-?]{0,64}[ -/]{0,8}[@-~])/g;
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

/**
 * Return foreign text as it may be shown: what can't be seen but changes how the rest is
 * read (direction overrides, say) is named. Nothing is left out.
 */
export function clean(text) {
  return text.replace(/\r\n/g, "\n").replace(UNSEEN, nameOf);
}

/** The same for what a program printed: its colours and links for terminals are left out. */
export function cleanOutput(text) {
  return clean(text.replace(ESCAPES, ""));
}

function nameOf(char) {
  if (char === "\r") return "\n";
  const code = char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return `\u27e8U+${code}\u27e9`;
}

/** Return `text` on one line, at most `limit` characters long. */
export function oneLine(text, limit = 160) {
  const line = clean(text.slice(0, limit * 4)).replace(/\s+/g, " ").trim();
  return line.length > limit ? `${line.slice(0, limit - 1)}\u2026` : line;
}

/** Count what Python calls characters; offsets of the wire are in them. */
export function charCount(text) {
  let count = text.length;
  for (let i = 0; i < text.length - 1; i++) {
    if ((text.charCodeAt(i) & 0xfc00) === 0xd800 && (text.charCodeAt(i + 1) & 0xfc00) === 0xdc00) {
      count--;
      i++;
    }
  }
  return count;
}

/** Return `text` without its first `count` characters, in Python's sense. */
export function dropChars(text, count) {
  let i = 0;
  for (; count > 0 && i < text.length; count--) i += text.codePointAt(i) > 0xffff ? 2 : 1;
  return text.slice(i);
}

const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => NUMBER.format(value);
export const compact = (value) => (value < 10000 ? NUMBER.format(value) : COMPACT.format(value));

export function money(value) {
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(2)}`;
}

export function seconds(value) {
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.5) return `${value.toFixed(value < 9.95 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const CLOCK_SECONDS = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** Return when it was: the time today, else the day. `at` is in seconds since the epoch. */
export function when(at) {
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return "";
  return date.toDateString() === new Date().toDateString() ? CLOCK.format(date) : DAY.format(date);
}

export function clock(at) {
  const date = new Date(at * 1000);
  return Number.isNaN(date.getTime()) ? "" : CLOCK_SECONDS.format(date);
}

/** An identifier nobody guesses; `crypto.randomUUID` exists only on secure origins. */
export function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const SHAPES = {
  menu: "M3 5h14M3 10h14M3 15h14",
  panel: "M3 4h14v12H3zM12 4v12",
  search: "M9 14A5 5 0 1 0 9 4a5 5 0 0 0 0 10zM13 13l4 4",
  plus: "M10 4v12M4 10h12",
  up: "M10 15V5M5 10l5-5 5 5",
  down: "M10 5v10M5 10l5 5 5-5",
  close: "M5 5l10 10M15 5L5 15",
  stop: "M6 6h8v8H6z",
  edit: "M4 16l1-4 8-8 3 3-8 8z",
  bolt: "M11 3L5 11h4l-1 6 6-8h-4z",
  help: "M7.5 7.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M10 15v.1",
  image: "M3 4h14v12H3zM3 13l4-4 4 4 2-2 4 4M13 8v.1",
  send: "M10 16V5M5 9l5-5 5 5",
};

/** An icon for a button that has a label of its own. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [key, value] of [["viewBox", "0 0 20 20"], ["aria-hidden", "true"], ["class", "icon"]]) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", SHAPES[name]);
  svg.append(path);
  return svg;
}
