// How each kind of block is shown. A view is made once for a block and updated with each
// change of it; it owns one element, and everything foreign in it is text.

import { button, clean, cleanOutput, compact, count, h, money, oneLine, replace, seconds, setText } from "./dom.js";
import { imageUrl, isImage } from "./images.js";
import { endIn } from "./model.js";
import { diffView, Prose } from "./prose.js";

const SHOWN_CHARS = 4000;
const SHOWN_OUTPUT = 8000;

/** `context`: `model`, `readBlock(messageId, blockId, field)`, `showAsk(id)`. */
export function viewOf(block, message, context) {
  const make = { text: textView, reasoning: thinkingView, image: imageView, tool_call: toolView, action: actionView, error: errorView };
  return (make[block.type] ?? unknownView)(message, context);
}

function textView(message, context) {
  if (message.role === "user") return plainView(message, context);
  const prose = new Prose();
  const more = moreLink(message, context, "text");
  const element = h("div", { class: "block text" }, prose.element, more.element);
  return {
    element,
    update(block) {
      prose.update(block.text);
      element.classList.toggle("streaming", block.status === "loading");
      more.update(block);
    },
  };
}

// What the user wrote is shown as it was written.
function plainView(message, context) {
  const text = h("div", { class: "said", dir: "auto" });
  const more = moreLink(message, context, "text");
  const fold = folded(text);
  return {
    element: h("div", { class: "block text" }, text, fold.element, more.element),
    update(block) {
      fold.update(clean(block.text));
      more.update(block);
    },
  };
}

function thinkingView(message, context) {
  const label = h("span", { class: "label" });
  const gist = h("span", { class: "gist", dir: "auto" });
  const body = h("div", { class: "body", dir: "auto" });
  const more = moreLink(message, context, "text");
  const element = h("details", { class: "block thinking" }, h("summary", null, label, gist), body, more.element);
  let text = "";
  const fill = () => element.open && setText(body, clean(text));
  element.addEventListener("toggle", fill);
  return {
    element,
    update(block) {
      text = block.text;
      const open = block.status === "loading";
      setText(label, open ? "Thinking" : "Thought");
      setText(gist, oneLine(open ? text.slice(-300) : text.slice(0, 600), 110));
      element.classList.toggle("streaming", open);
      fill();
      more.update(block);
    },
  };
}

function imageView(message, context) {
  const shown = h("div");
  const more = moreLink(message, context, "data", () => "Show the image");
  return {
    element: h("div", { class: "block image" }, shown, more.element),
    update(block) {
      more.update(block);
      if (context.model.cutOf(block.id, "data")) replace(shown);
      else if (isImage(block)) replace(shown, h("img", { src: imageUrl(block), alt: `An image of the ${message.role}`, loading: "lazy" }));
      else replace(shown, h("p", { class: "quiet" }, `An image (${oneLine(block.mediaType, 60)}) that can't be shown here.`));
    },
  };
}

const KINDS = {
  read: "Read", edit: "Edit", delete: "Delete", move: "Move", search: "Search",
  execute: "Run", think: "Think", fetch: "Fetch", other: "Tool",
};
const STATES = { pending: "waiting", loading: "running", success: "done", error: "failed", granted: "allowed", denied: "denied", doubt: "in doubt" };

function toolView(message, context) {
  const kind = h("span", { class: "kind" });
  const title = h("span", { class: "title", dir: "ltr" });
  const state = h("span", { class: "state" });
  const body = h("div", { class: "body" });
  const element = h("details", { class: "block tool" }, h("summary", null, kind, title, state), body);
  const diffs = h("div", { class: "diffs" });
  const wrapper = h("div", null, element, diffs);
  let last = null;
  let shownDiffs = "";
  let touched = false;
  const fill = () => last && element.open && replace(body, toolBody(last, message, context));
  element.addEventListener("toggle", fill);
  element.querySelector("summary").addEventListener("click", () => (touched = true));
  return {
    element: wrapper,
    update(block) {
      last = block;
      setText(kind, KINDS[block.kind ?? "other"] ?? "Tool");
      setText(title, titleOf(block));
      const asked = context.model.isAsked(block.id);
      const status = block.inDoubt != null ? "doubt" : asked ? "pending" : block.status;
      setText(state, STATES[status]);
      element.dataset.status = status;
      if (!touched) element.open = status === "error" || status === "doubt" || (status === "loading" && context.model.outputs.has(block.id));
      // While it is asked for, the card shows them.
      const changes = asked ? [] : (block.diffs ?? []).slice(0, 20);
      const told = JSON.stringify(changes.map((diff) => [diff.path, diff.newText.length, diff.oldText?.length]));
      if (told !== shownDiffs) {
        shownDiffs = told;
        replace(diffs, changes.map((diff) => diffView(diff, context.model.settings?.workspace)));
      }
      fill();
    },
  };
}

/** Say what a call does, in one line: its own title, or its name and main argument. */
export function titleOf(block) {
  if (block.title) return oneLine(block.title, 200);
  const values = argumentsOf(block);
  const main = values && ["command", "path", "pattern", "query", "url", "question"].map((key) => values[key]).find((value) => typeof value === "string");
  return oneLine(main ? `${block.name} ${main}` : block.name, 200);
}

function argumentsOf(block) {
  try {
    const values = JSON.parse(block.arguments);
    return values && typeof values === "object" ? values : null;
  } catch {
    return null;
  }
}

function toolBody(block, message, context) {
  const live = block.status === "loading" ? context.model.outputs.get(block.id) : null;
  return [
    argumentList(block),
    live ? field("Output", printed(live.text.slice(-SHOWN_OUTPUT))) : null,
    block.response ? field(block.status === "error" ? "Error" : "Result", cutPre(block, message, context)) : null,
    block.note ? field("Note", h("p", { dir: "auto" }, clean(block.note))) : null,
    block.inDoubt != null ? h("p", { class: "quiet" }, "A crash cut this call off: it is not known whether it had its effect.") : null,
  ];
}

const field = (label, ...content) => h("div", { class: "field" }, h("span", { class: "name" }, label), ...content);
const pre = (text) => h("pre", { class: "raw", tabIndex: 0, dir: "ltr" }, clean(text));
const printed = (text) => h("pre", { class: "raw", tabIndex: 0, dir: "ltr" }, cleanOutput(text));

/** The arguments of a call, one below the other. */
export function argumentList(block) {
  const values = argumentsOf(block);
  if (!values) return block.arguments ? field("Arguments", pre(block.arguments)) : null;
  return Object.entries(values).slice(0, 30).map(([key, value]) => {
    const text = h("div");
    const fold = folded(text, pre);
    fold.update(typeof value === "string" ? value : JSON.stringify(value, null, 1));
    return field(oneLine(key, 40), h("div", null, text, fold.element));
  });
}

function cutPre(block, message, context) {
  const more = moreLink(message, context, "response");
  more.update(block);
  const text = h("div");
  const fold = folded(text, printed);
  fold.update(block.response);
  return h("div", { class: "result" }, text, fold.element, more.element);
}

// The beginning of a long text, and a button for the rest of it.
function folded(element, form = (text) => text) {
  let whole = false;
  let text = "";
  const show = button("Show all", () => {
    whole = true;
    draw();
  }, { class: "link", hidden: true });
  const draw = () => {
    const isLong = !whole && text.length > 2 * SHOWN_CHARS;
    replace(element, form(isLong ? text.slice(0, SHOWN_CHARS) : text));
    show.hidden = !isLong;
    if (isLong) setText(show, `Show all ${compact(text.length)} characters`);
  };
  return {
    element: show,
    update(next) {
      text = next;
      draw();
    },
  };
}

// What was too long for a frame is read on demand.
function moreLink(message, context, name, words = (total) => `Read the whole of it: ${compact(total)} characters`) {
  let id = null;
  const link = button("", async () => {
    link.disabled = true;
    await context.readBlock(message.id, id, name);
    link.disabled = false;
  }, { class: "link", hidden: true });
  return {
    element: link,
    update(block) {
      id = block.id;
      const cut = context.model.cutOf(id, name);
      link.hidden = !cut;
      if (cut) setText(link, words(cut.total));
    },
  };
}

const ENDS = {
  granted: "allowed", denied: "denied", answered: "answered", expired: "nobody answered in time",
  cancelled: "cancelled", closed: "closed", deleted: "deleted", process_exit: "its process ended", interrupted: "interrupted by a restart",
};
/** Return how an interaction ended, as the beginning of a sentence. */
export function endOf(end) {
  const words = ENDS[end] ?? "closed";
  return words[0].toUpperCase() + words.slice(1);
}

function actionView(message, context) {
  const element = h("div", { class: "block action" });
  return {
    element,
    update(block) {
      const isQuestion = block.action !== "tool_call_permission";
      const asked = oneLine((isQuestion && block.detail) || block.title || block.detail || "A question", 200);
      element.dataset.status = block.status;
      if (block.status === "pending") {
        replace(element, h("span", { class: "mark" }, "waits"), h("span", { class: "asked", dir: "auto" }, asked),
          button("Answer", () => context.showAsk(block.id), { class: "link" }));
        return;
      }
      const end = endIn(block);
      const said = block.answer ? ` \u2014 ${oneLine(block.answer, 300)}` : "";
      replace(element, h("span", { class: "mark" }, ENDS[end] ?? end), h("span", { class: "asked", dir: "auto" }, `${asked}${said}`));
    },
  };
}

// What somebody wanted is no fault: it is said quietly.
const WANTED = new Set(["user_canceled"]);

function errorView() {
  const text = h("p", { dir: "auto" });
  const code = h("span", { class: "mark" });
  const element = h("div", { class: "block error" }, code, text);
  return {
    element,
    update(block) {
      code.hidden = WANTED.has(block.code);
      element.classList.toggle("wanted", code.hidden);
      setText(code, oneLine(block.code, 60));
      setText(text, clean(block.text.slice(0, SHOWN_CHARS)));
    },
  };
}

function unknownView() {
  const element = h("p", { class: "block quiet" });
  return { element, update: (block) => setText(element, `(${oneLine(String(block.type), 40)})`) };
}

const STOPS = { user_stop: "stopped", shutdown: "stopped with the gateway", deadline: "stopped at its deadline" };

/** How a turn ended and what it cost, in a few words. */
export function endingWords({ metadata: told }) {
  const parts = [];
  const reason = told.runStopReason;
  if (told.runOutcome === "aborted") parts.push(STOPS[reason] ?? `stopped: ${oneLine(reason ?? "unknown", 60)}`);
  else if (told.runOutcome === "error") parts.push(`failed: ${oneLine(told.errorText ?? told.errorCode ?? reason ?? "unknown", 160)}`);
  else if (told.runOutcome === "paused") parts.push("paused: waiting for your answer");
  else if (reason && reason !== "complete") parts.push(oneLine(reason, 60));
  if (told.providerRounds) parts.push(count(told.providerRounds, "round"));
  if (told.toolCalls) parts.push(count(told.toolCalls, "tool call"));
  if (told.inputTokens != null) parts.push(`${compact(told.inputTokens)} in, ${compact(told.outputTokens ?? 0)} out`);
  if (told.cost != null) parts.push(money(told.cost));
  if (told.generationTime != null) parts.push(seconds(told.generationTime));
  return parts.join(" \u00b7 ");
}
