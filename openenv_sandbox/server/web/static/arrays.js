// Arrays of numbers as pictures.

import { el, number, svg } from "./dom.js";

const CELLS = 256; // up to here a matrix is shown by its numbers
const PICTURE = 320; // pixels a small picture is enlarged to

// The lengths of a rectangular nested array of numbers; null for anything else.
export function shapeOf(value) {
  const shape = [];
  for (let here = value; Array.isArray(here); here = here[0]) shape.push(here.length);
  if (!shape.length || shape.length > 3 || shape.includes(0)) return null;
  return rectangular(value, shape, 0) ? shape : null;
}

function rectangular(value, shape, depth) {
  if (!Array.isArray(value) || value.length !== shape[depth]) return false;
  if (depth === shape.length - 1) return value.every((item) => typeof item === "number" || item === null);
  return value.every((item) => rectangular(item, shape, depth + 1));
}

// A picture of such an array; null where its numbers say more.
export function pictureOf(value, shape) {
  const channels = (count) => count === 1 || count === 3 || count === 4;
  if (shape.length === 1) return shape[0] >= 8 ? sparkline(value) : null;
  if (shape.length === 2) return shape[0] * shape[1] > CELLS ? canvas(value, shape[0], shape[1], 1) : cells(value);
  const [a, b, c] = shape;
  if (channels(c) && a * b > 16) return canvas(value.map((row) => row.flat()), a, b, c);
  if (channels(a) && b * c > 16) return canvas(interleaved(value, a, b, c), b, c, a);
  return null;
}

const interleaved = (planes, depth, height, width) =>
  Array.from({ length: height }, (_, y) =>
    Array.from({ length: width * depth }, (_, i) => planes[i % depth][y][Math.floor(i / depth)]));

function range(rows) {
  let low = Infinity;
  let high = -Infinity;
  for (const row of rows) {
    for (const item of row) {
      if (item < low) low = item;
      if (item > high) high = item;
    }
  }
  return [low, high];
}

function canvas(rows, height, width, depth) {
  const [low, high] = range(rows);
  const bytes = depth > 1 && low >= 0 && high <= 255;
  const scale = bytes ? (high <= 1 ? 255 : 1) : 255 / (high - low || 1);
  const offset = bytes ? 0 : low;
  const node = el("canvas", { class: "picture", width, height, role: "img" });
  const drawing = node.getContext("2d");
  const pixels = drawing.createImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = 4 * (y * width + x);
      for (let channel = 0; channel < 3; channel++) {
        pixels.data[at + channel] = (rows[y][x * depth + (depth === 1 ? 0 : channel)] - offset) * scale;
      }
      pixels.data[at + 3] = depth === 4 ? (rows[y][x * depth + 3] - offset) * scale : 255;
    }
  }
  drawing.putImageData(pixels, 0, 0);
  node.style.width = `${width * Math.max(1, Math.floor(PICTURE / Math.max(width, height)))}px`;
  node.setAttribute("aria-label", `array of ${height} by ${width}, from ${number(low)} to ${number(high)}`);
  return node;
}

function cells(rows) {
  const [low, high] = range(rows);
  const cell = (item) => {
    const share = Math.round((100 * 0.45 * (item - low)) / (high - low || 1));
    const node = el("td", {}, item === null ? "–" : number(item));
    if (high > low) node.style.background = `color-mix(in srgb, var(--accent) ${share}%, var(--sunk))`;
    return node;
  };
  return el("table", { class: "cells" }, el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell)))));
}

export function sparkline(values) {
  const [low, high] = range([values]);
  const x = (index) => (100 * index) / Math.max(1, values.length - 1);
  const y = (item) => 26 - (24 * (item - low)) / (high - low || 1);
  const points = values.map((item, index) => `${x(index).toFixed(2)},${y(item).toFixed(2)}`).join(" ");
  const label = `${values.length} numbers, from ${number(low)} to ${number(high)}`;
  return svg("svg", { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("polyline", { points }));
}
