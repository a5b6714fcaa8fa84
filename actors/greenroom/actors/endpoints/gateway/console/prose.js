// Text of models as paragraphs, lists and code, and differences of files as lines. Every
// node is made by hand: what the text holds can never become markup.

import { button, clean, h, number } from "./dom.js";

const TAIL_LIMIT = 6000;
const BLOCK_LIMIT = 100000;

/**
 * Text that grows. Finished chunks (up to a blank line outside of code) are rendered once
 * and never touched again; only the rest is rendered at each update.
 */
export class Prose {
  constructor() {
    this.element = h("div", { class: "prose", dir: "auto" });
    this.tail = h("div", { class: "chunk" });
    this.element.append(this.tail);
    this.done = 0;
    this.fenced = false;
    this.text = "";
  }

  update(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text.slice(0, this.done))) this.#restart();
    this.text = text;
    for (let cut = this.#cut(); cut > 0; cut = this.#cut()) this.#finish(cut);
    this.tail.replaceChildren(render(text.slice(this.done), this.fenced));
  }

  #restart() {
    this.element.replaceChildren(this.tail);
    this.done = 0;
    this.fenced = false;
  }

  // Returns how much of the rest may be finished: 0 for none.
  #cut() {
    const rest = this.text.slice(this.done, this.done + BLOCK_LIMIT);
    let fenced = this.fenced;
    let from = 0;
    for (let end = rest.indexOf("\n"); end >= 0; end = rest.indexOf("\n", from)) {
      const line = rest.slice(from, end);
      if (isFence(line)) fenced = !fenced;
      else if (!fenced && from > 0 && line.trim() === "") return end + 1;
      from = end + 1;
      if (from > TAIL_LIMIT) return from;
    }
    return rest.length > 2 * TAIL_LIMIT ? Math.max(from, TAIL_LIMIT) : 0;
  }

  #finish(length) {
    const piece = this.text.slice(this.done, this.done + length);
    const chunk = h("div", { class: "chunk" });
    chunk.append(render(piece, this.fenced));
    this.tail.before(chunk);
    for (const line of piece.split("\n")) if (isFence(line)) this.fenced = !this.fenced;
    this.done += length;
  }
}

const isFence = (line) => /^ {0,3}(```|~~~)/.test(line);

/** Render `text`; `fenced` when it begins inside of a block of code. */
export function render(text, fenced = false) {
  const out = document.createDocumentFragment();
  const lines = clean(text).split("\n");
  let at = 0;
  while (at < lines.length) {
    if (fenced || isFence(lines[at])) {
      at = code(out, lines, fenced ? at : at + 1, fenced ? "" : lines[at].replace(/^\W+/, ""));
      fenced = false;
    } else if (lines[at].trim() === "") {
      at++;
    } else {
      at = block(out, lines, at);
    }
  }
  return out;
}

function code(out, lines, from, language) {
  let to = from;
  while (to < lines.length && !isFence(lines[to])) to++;
  const body = lines.slice(from, to).join("\n");
  if (body || to < lines.length) {
    out.append(h("pre", { class: "code", tabIndex: 0, data: { language: language.slice(0, 20) } }, h("code", null, body)));
  }
  return to + 1;
}

const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const BULLET = /^(\s*)[-*+]\s+(.*)$/;
const NUMBERED = /^(\s*)(\d{1,9})[.)]\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;

function block(out, lines, at) {
  const line = lines[at];
  const heading = HEADING.exec(line);
  if (heading) {
    out.append(h("p", { class: `heading level-${heading[1].length}`, role: "heading", "aria-level": String(Math.min(6, heading[1].length + 2)) }, inline(heading[2])));
    return at + 1;
  }
  if (RULE.test(line)) {
    out.append(h("hr"));
    return at + 1;
  }
  if (BULLET.test(line) || NUMBERED.test(line)) return list(out, lines, at);
  if (line.startsWith(">")) return quote(out, lines, at);
  if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] ?? "") && lines[at + 1].includes("|")) return table(out, lines, at);
  return paragraph(out, lines, at);
}

const opens = (line) => line.trim() === "" || isFence(line) || HEADING.test(line) || BULLET.test(line) || NUMBERED.test(line) || line.startsWith(">");

function paragraph(out, lines, at) {
  let to = at + 1;
  while (to < lines.length && !opens(lines[to])) to++;
  out.append(h("p", { dir: "auto" }, inline(lines.slice(at, to).join("\n"))));
  return to;
}

function list(out, lines, at) {
  const numbered = NUMBERED.exec(lines[at]);
  const top = h(numbered ? "ol" : "ul", numbered ? { start: Number(numbered[2]) } : null);
  for (; at < lines.length; at++) {
    const item = BULLET.exec(lines[at]) ?? NUMBERED.exec(lines[at]);
    if (item) {
      const depth = Math.min(5, Math.floor(item[1].replaceAll("\t", "    ").length / 2));
      top.append(h("li", { class: depth ? `deep deep-${depth}` : "", dir: "auto" }, inline(item.at(-1))));
    } else if (lines[at].trim() === "" || opens(lines[at]) || !top.lastElementChild) {
      break;
    } else {
      top.lastElementChild.append("\n", ...inline(lines[at].trim()));
    }
  }
  out.append(top);
  return at;
}

function quote(out, lines, at) {
  let to = at;
  while (to < lines.length && lines[to].startsWith(">")) to++;
  const inner = lines.slice(at, to).map((line) => line.replace(/^> ?/, "")).join("\n");
  out.append(h("blockquote", { dir: "auto" }, inline(inner)));
  return to;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 20).map((cell) => cell.trim());

function table(out, lines, at) {
  const head = h("tr", null, cells(lines[at]).map((cell) => h("th", null, inline(cell))));
  const body = h("tbody");
  let to = at + 2;
  for (; to < lines.length && lines[to].includes("|"); to++) {
    body.append(h("tr", null, cells(lines[to]).map((cell) => h("td", { dir: "auto" }, inline(cell)))));
  }
  out.append(h("div", { class: "scroll", tabIndex: 0 }, h("table", null, h("thead", null, head), body)));
  return to;
}

// Links are of ASCII alone: what looks like another letter makes no address. A full stop
// behind one is the sentence's.
const INLINE = /`([^`\n]{1,2000})`|\*\*([^*\n]{1,1000})\*\*|\*([^*\s][^*\n]{0,1000})\*|\[([^\]\n]{1,500})\]\((https?:\/\/[!-'*-~]{1,2000})\)|(https?:\/\/[!#-&*-;=?-_a-~]{0,2000}[#-&+\-/0-9=@-Z_a-z~])/g;

function inline(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    nodes.push(styled(found));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

function styled([, code, strong, emphasis, label, target, bare]) {
  if (code != null) return h("code", null, code);
  if (strong != null) return h("strong", null, strong);
  if (emphasis != null) return h("em", null, emphasis);
  return link(label ?? bare, target ?? bare);
}

// Where a link goes is said, when its words say something else.
function link(label, target) {
  const told = label === target ? label : `${label} (${host(target)})`;
  return h("a", { href: target, title: target, target: "_blank", rel: "noopener noreferrer nofollow" }, told);
}

function host(target) {
  try {
    return new URL(target).host;
  } catch {
    return "?";
  }
}

//// Differences

const EDITS_LIMIT = 600;
const CONTEXT = 3;
const SHOWN_LINES = 400;

/** Return the lines that lead from `before` to `after`: [sign, text] with " ", "-", "+". */
export function lineDiff(before, after) {
  const a = before === "" ? [] : before.replace(/\n$/, "").split("\n");
  const b = after === "" ? [] : after.replace(/\n$/, "").split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  return [
    ...a.slice(0, head).map((line) => [" ", line]),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map((line) => [" ", line]),
  ];
}

// The longest common subsequence, as long as it is cheap.
function middle(a, b) {
  const out = [];
  if (a.length > EDITS_LIMIT || b.length > EDITS_LIMIT) {
    return [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  }
  const width = b.length + 1;
  const best = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const here = i * width + j;
      best[here] = a[i] === b[j] ? best[here + width + 1] + 1 : Math.max(best[here + width], best[here + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) out.push([" ", a[i++], j++]);
    else if (i < a.length && (j === b.length || best[(i + 1) * width + j] >= best[i * width + j + 1])) out.push(["-", a[i++]]);
    else out.push(["+", b[j++]]);
  }
  return out;
}

/** Show one change of a file: path, how much, and its lines with some context. */
export function diffView({ path, oldText, newText }, folder = null) {
  const lines = lineDiff(oldText ?? "", newText);
  const added = lines.filter(([sign]) => sign === "+").length;
  const removed = lines.filter(([sign]) => sign === "-").length;
  const rows = h("div", { class: "lines", tabIndex: 0, role: "group", "aria-label": `change of ${clean(path)}` });
  rows.append(...lineRows(lines, SHOWN_LINES, () => rows.replaceChildren(...lineRows(lines, Infinity))));
  return h("figure", { class: "diff" },
    h("figcaption", null,
      h("span", { class: "path", dir: "ltr", title: clean(path) }, clean(within(path, folder))),
      oldText == null ? h("span", { class: "tag" }, "new file") : null,
      h("span", { class: "plus" }, `+${added}`),
      h("span", { class: "minus" }, `\u2212${removed}`)),
    added || removed ? rows : h("p", { class: "gap" }, "The text stays the same."));
}

// At most `limit` lines, and a button that shows all of them.
function lineRows(lines, limit, showAll) {
  const rows = [];
  let last = -1;
  for (const [at, [sign, text]] of lines.entries()) {
    if (sign === " " && !isNear(lines, at)) continue;
    if (rows.length >= limit) {
      rows.push(button(`Show ${number(lines.length - at)} more lines`, showAll, { class: "link gap" }));
      break;
    }
    if (at !== last + 1) rows.push(h("div", { class: "gap" }, "\u22ef"));
    last = at;
    rows.push(h("div", { class: `line ${SIGNS[sign]}` }, h("span", { class: "sign" }, sign), h("span", { class: "content" }, clean(text))));
  }
  return rows;
}

const within = (path, folder) => (folder && path.startsWith(`${folder}/`) ? path.slice(folder.length + 1) : path);

const SIGNS = { " ": "same", "+": "added", "-": "removed" };

function isNear(lines, at) {
  for (let i = Math.max(0, at - CONTEXT); i <= at + CONTEXT && i < lines.length; i++) if (lines[i][0] !== " ") return true;
  return false;
}
