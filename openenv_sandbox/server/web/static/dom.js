// Elements are made by name and filled with text, never from HTML: nothing an environment says becomes markup.

const SVG = "http://www.w3.org/2000/svg";

let ids = 0;
export const freshId = (stem) => `${stem}-${++ids}`;

export const byId = (id) => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function button(label, listener, props = {}) {
  return el("button", { type: "button", on: { click: listener }, ...props }, label);
}

export function number(value) {
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toPrecision(4) : String(Number(value.toFixed(4)));
}
