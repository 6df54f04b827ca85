// Showing what came back: pictures, arrays, long text, trees.

import { pictureOf, shapeOf } from "./arrays.js";
import { button, el, number } from "./dom.js";

const FOLDED = 700; // characters of a text that are shown at once
const FOLDED_LINES = 14;
const CHILDREN = 200; // members of a tree that are shown at once

const MAGIC = { "iVBORw0KGgo": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp" };
const DATA = /^data:image\/(png|jpe?g|gif|webp|bmp|svg\+xml);base64,[A-Za-z0-9+/=\s]+$/;

// Address of the picture that a text is; null for any other. Pictures elsewhere are never loaded.
export function pictureSource(text) {
  if (text.length < 60) return null;
  if (text.startsWith("data:image/")) return DATA.test(text) ? text : null;
  const kind = Object.entries(MAGIC).find(([start]) => text.startsWith(start))?.[1];
  return kind && /^[A-Za-z0-9+/=\s]+$/.test(text) ? `data:image/${kind};base64,${text}` : null;
}

export function showFields(fields, skipped = () => false) {
  return Object.entries(fields).filter(([key, value]) => !skipped(key, value))
    .map(([key, value]) => el("div", { class: "value" }, el("div", { class: "key" }, key), ...showValue(value, key)));
}

export function showValue(value, name = "value") {
  if (typeof value === "string") return showText(value, name);
  if (value === null || typeof value !== "object") return [el("div", { class: `scalar ${kind(value)}` }, plain(value))];
  if (Array.isArray(value)) {
    const shape = shapeOf(value);
    const drawn = shape && pictureOf(value, shape);
    if (drawn) {
      const numbers = el("details", { class: "shape" }, el("summary", {}, `${shape.join("×")} numbers`));
      numbers.addEventListener("toggle", () => {
        if (numbers.open && numbers.childElementCount === 1) numbers.append(el("pre", { class: "text" }, JSON.stringify(value)));
      });
      return [drawn, numbers];
    }
    if (shape?.length === 1) return [el("div", { class: "scalar number" }, `[${value.map(number).join(", ")}]`)];
    if (value.length && value.length <= 12 && value.every((item) => typeof item === "string" && pictureSource(item))) {
      return value.flatMap((item, index) => showText(item, `${name} ${index + 1}`));
    }
  }
  return [el("div", { class: "tree" }, tree(value, true))];
}

function showText(text, name) {
  const source = pictureSource(text);
  if (source) return [el("img", { class: "picture", src: source, alt: name })];
  const lines = text.split("\n", FOLDED_LINES + 1);
  if (text.length <= FOLDED && lines.length <= FOLDED_LINES) {
    return [lines.length > 1 || text.length > 80 ? el("pre", { class: "text" }, text) : el("div", { class: text ? "scalar" : "scalar null" }, text || "empty")];
  }
  const short = `${lines.slice(0, FOLDED_LINES).join("\n").slice(0, FOLDED)}…`;
  const shown = el("pre", { class: "text", tabindex: 0 }, short);
  const label = `Show all ${text.length.toLocaleString("en")} characters`;
  const toggle = button(label, () => {
    const open = toggle.getAttribute("aria-expanded") === "true";
    shown.textContent = open ? short : text;
    toggle.textContent = open ? label : "Show less";
    toggle.setAttribute("aria-expanded", String(!open));
  }, { class: "more", "aria-expanded": "false" });
  return [shown, toggle];
}

export function tree(value, open = false, key = null) {
  const label = key === null ? [] : [el("span", { class: "key" }, `${key}: `)];
  if (value === null || typeof value !== "object") {
    const text = typeof value === "string" ? JSON.stringify(value.length > 2000 ? `${value.slice(0, 2000)}…` : value) : plain(value);
    return el("div", {}, ...label, el("span", { class: kind(value) }, text));
  }
  const members = Object.entries(value);
  const [left, right] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!members.length) return el("div", {}, ...label, `${left}${right}`);
  const node = el("details", { open }, el("summary", {}, ...label, el("span", { class: "quiet" }, `${left} ${members.length} ${right}`)));
  const place = el("div", {});
  const grow = (from) => {
    place.append(...members.slice(from, from + CHILDREN).map(([name, item]) => tree(item, few(item), name)));
    if (members.length > from + CHILDREN) {
      const more = button(`${members.length - from - CHILDREN} more`, () => {
        more.remove();
        grow(from + CHILDREN);
      }, { class: "more" });
      place.append(more);
    }
  };
  node.append(place);
  // Filled when it is opened: an observation may have a million numbers.
  const fill = () => node.open && !place.childElementCount && grow(0);
  node.addEventListener("toggle", fill);
  if (open) grow(0);
  return node;
}

const few = (value) => value !== null && typeof value === "object" && Object.keys(value).length <= 6;
const kind = (value) => (value === null ? "null" : typeof value);
const plain = (value) => (typeof value === "number" ? String(value) : value === null ? "None" : String(value));

// An observation as a whole. The result of a tool is shown by its content, all other ones by their fields.
export function showObservation({ observation }) {
  if (!observation || typeof observation !== "object") return showValue(observation ?? null);
  const empty = (key, value) => key === "metadata" && value && typeof value === "object" && !Object.keys(value).length;
  if (!("tool_name" in observation)) {
    const { metadata, ...fields } = observation;
    const shown = showFields("metadata" in observation ? { ...fields, metadata } : fields, empty);
    return shown.length ? shown : [el("p", { class: "empty" }, "The observation has no fields.")];
  }
  const { tool_name: tool, result, error } = observation;
  const parts = [el("div", { class: "value" }, el("div", { class: "key" }, "tool"), el("div", { class: "scalar" }, String(tool)))];
  if (error) parts.push(el("div", { class: "value failed" }, error.message || JSON.stringify(error)));
  const failed = Boolean(result?.is_error);
  for (const item of Array.isArray(result?.content) ? result.content : []) {
    if (item?.type === "image" && typeof item.data === "string") {
      parts.push(el("div", { class: "value" }, ...showText(`data:${item.mimeType || "image/png"};base64,${item.data}`, "picture")));
    } else if (typeof item?.text === "string") {
      parts.push(el("div", { class: failed ? "value failed" : "value" }, ...showText(item.text, "result")));
    }
  }
  const all = el("details", { class: "value" }, el("summary", { class: "quiet" }, "All fields"));
  all.addEventListener("toggle", () => all.open && all.childElementCount === 1 && all.append(el("div", { class: "tree" }, tree(observation, true))));
  return [...parts, all];
}
