// Images that go along with what is said: read from files, made to fit what a message may
// have, and shown above the prompt until they are sent.

import { button, byId, h, icon, number, oneLine, replace } from "./dom.js";

/** What a message may have: characters of base64, over all of its images. */
const MOST_CHARS = 700_000;
const MOST_IMAGES = 16;

/** A file that is not even looked at when it is larger. */
const MOST_BYTES = 30_000_000;

export const IMAGE_TYPES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** How much smaller an image is made, one after the other, until it fits. */
const SCALES = [1, 0.7, 0.5, 0.35, 0.25];

export const isImage = ({ mediaType, data }) => IMAGE_TYPES.has(mediaType) && /^[A-Za-z0-9+/]+=*$/.test(data);
export const imageUrl = ({ mediaType, data }) => `data:${mediaType};base64,${data}`;

/** The images of one message that is being written. `complain(text)` and `say(text)` tell. */
export class Tray {
  constructor({ complain, say }) {
    Object.assign(this, { complain, say, images: [], adding: Promise.resolve() });
    this.element = byId("tray");
    /** Tells the message that is being written from the next one. */
    this.message = {};
  }

  get parts() {
    return this.images.map(({ mediaType, data }) => ({ type: "image", mediaType, data }));
  }

  /** Begin another message, with these images. */
  set(images) {
    this.message = {};
    this.#show(images);
  }

  #show(images) {
    this.images = images;
    replace(this.element, images.map((image) => this.#thumbnail(image)));
    this.element.hidden = !images.length;
  }

  /** Add those of `files` that can be sent, behind what is being added; say which can't, and why. */
  add(files) {
    const { message } = this;
    this.adding = this.adding.then(() => this.#add(files, message));
    return this.adding;
  }

  async #add(files, message) {
    for (const file of files) {
      if (this.images.length >= MOST_IMAGES) return this.complain(`A message may have ${MOST_IMAGES} images.`);
      const name = oneLine(file.name || "the image", 60);
      const read = await imageOf(file, MOST_CHARS - chars(this.images)).catch(() => null);
      // It may have been sent meanwhile, or another session opened.
      if (this.message !== message) return this.complain(`${name} was left out: its message was gone before it was read.`);
      if (typeof read === "string" || !read) this.complain(`${name} ${read ?? "can't be read as an image."}`);
      else this.#show([...this.images, { ...read, name }]);
      if (read?.isSmaller) this.say(`${name} was made smaller, so that the message can be sent.`);
    }
  }

  #thumbnail(image) {
    const remove = button("", () => {
      this.#show(this.images.filter((each) => each !== image));
      (this.element.querySelector("button") ?? byId("prompt")).focus();
    }, { class: "tool-button", "aria-label": `Take out ${image.name}`, title: "Take out" });
    remove.append(icon("close"));
    return h("figure", null, h("img", { src: imageUrl(image), alt: image.name }), remove);
  }
}

const chars = (images) => images.reduce((sum, { data }) => sum + data.length, 0);

// The image of a file, or a sentence that begins with its name: why not.
async function imageOf(file, room) {
  if (!IMAGE_TYPES.has(file.type)) return "is no PNG, JPEG, GIF or WebP image.";
  const tooLarge = `is too large: the images of a message may have ${number(Math.round((MOST_CHARS * 3) / 4000))} kB together.`;
  if (file.size > MOST_BYTES) return tooLarge;
  if (Math.ceil(file.size / 3) * 4 <= room) return { mediaType: file.type, data: await base64Of(file) };
  if (file.type === "image/gif") return tooLarge;
  const bitmap = await createImageBitmap(file);
  try {
    for (const scale of SCALES) {
      const blob = await scaled(bitmap, scale);
      if (Math.ceil(blob.size / 3) * 4 <= room) return { mediaType: blob.type, data: await base64Of(blob), isSmaller: true };
    }
  } finally {
    bitmap.close();
  }
  return tooLarge;
}

function scaled(bitmap, scale) {
  const canvas = new OffscreenCanvas(Math.max(1, bitmap.width * scale), Math.max(1, bitmap.height * scale));
  const context = canvas.getContext("2d");
  // Where it is transparent: paper.
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
}

async function base64Of(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let from = 0; from < bytes.length; from += 0x8000) text += String.fromCharCode(...bytes.subarray(from, from + 0x8000));
  return btoa(text);
}

/** Tell `add(files)` of the images that somebody pastes, drops on the page, or chooses. */
export function listenImages(mayAdd, add) {
  const imagesOf = (transfer) => [...(transfer?.files ?? [])];
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const marked = (on) => byId("composer").classList.toggle("dropping", on);
  byId("attach").addEventListener("click", () => byId("files").click());
  byId("files").addEventListener("change", (event) => {
    add([...event.target.files]);
    event.target.value = "";
    byId("prompt").focus();
  });
  byId("prompt").addEventListener("paste", (event) => {
    const files = imagesOf(event.clipboardData);
    if (!files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    add(files);
  });
  // A file that is dropped elsewhere would be opened in the place of the page.
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = mayAdd() ? "copy" : "none";
    marked(mayAdd());
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget ?? marked(false));
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    marked(false);
    if (mayAdd()) add(imagesOf(event.dataTransfer));
  });
}
