// The part of Markdown that READMEs use. Text stays text: HTML in it is shown as it is written, pictures by their names.

import { el } from "./dom.js";

const INLINE = /(`+)(.+?)\1|!\[([^\]]*)\]\([^)]*\)|\[([^\]]+)\]\(([^)\s]+)[^)]*\)|\*\*(.+?)\*\*|__(.+?)__|\*([^*\s][^*]*)\*|<(https?:\/\/[^>\s]+)>/;

export function markdown(text) {
  const lines = text.replaceAll("\r\n", "\n").replace(/^---\n[\s\S]*?\n---\n/, "").replace(/<!--[\s\S]*?-->/g, "").split("\n");
  const nodes = [];
  while (lines.length) nodes.push(...block(lines));
  return nodes;
}

function block(lines) {
  const line = lines.shift();
  if (!line.trim()) return [];
  const fence = line.match(/^\s*(```+|~~~+)/);
  if (fence) {
    const code = take(lines, (next) => !next.trim().startsWith(fence[1]));
    lines.shift();
    return [el("pre", { tabindex: 0 }, el("code", {}, code.join("\n")))];
  }
  const heading = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
  if (heading) return [el(heading[1].length < 3 ? "h3" : "h4", {}, ...inline(heading[2]))];
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) return [el("hr")];
  if (/^\s*\|.*\|\s*$/.test(line)) return [table([line, ...take(lines, (next) => /^\s*\|/.test(next))])];
  const item = line.match(/^\s*([-*+]|\d+[.)])\s+/);
  if (item) {
    const first = line.slice(item[0].length);
    const rest = take(lines, (next) => /^\s*([-*+]|\d+[.)])\s+/.test(next) || /^\s{2,}\S/.test(next));
    return [list(/\d/.test(item[1]) ? "ol" : "ul", [first, ...rest])];
  }
  if (line.startsWith(">")) {
    const quoted = [line, ...take(lines, (next) => next.startsWith(">"))].map((each) => each.replace(/^>\s?/, ""));
    return [el("blockquote", {}, ...inline(quoted.join(" ")))];
  }
  const more = take(lines, (next) => next.trim() && !/^(#{1,6}\s|\s*(```|~~~|[-*+]\s|\d+[.)]\s|\|)|>)/.test(next));
  return [el("p", {}, ...inline([line, ...more].join(" ")))];
}

function take(lines, wanted) {
  const taken = [];
  while (lines.length && wanted(lines[0])) taken.push(lines.shift());
  return taken;
}

function list(tag, lines) {
  const items = [];
  lines.forEach((line, index) => {
    const text = line.replace(/^\s*([-*+]|\d+[.)])\s+/, "");
    if (index === 0 || text !== line) items.push(text);
    else items[items.length - 1] += ` ${line.trim()}`;
  });
  return el(tag, {}, ...items.map((item) => el("li", {}, ...inline(item))));
}

function table(lines) {
  const rows = lines.filter((line) => !/^[\s|:-]+$/.test(line))
    .map((line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim()));
  const row = (tag, cells) => el("tr", {}, ...cells.map((cell) => el(tag, {}, ...inline(cell))));
  return el("table", {}, el("thead", {}, row("th", rows[0] || [])), el("tbody", {}, ...rows.slice(1).map((cells) => row("td", cells))));
}

function inline(text) {
  const nodes = [];
  let rest = text;
  for (let found = rest.match(INLINE); found; found = rest.match(INLINE)) {
    if (found.index) nodes.push(rest.slice(0, found.index));
    nodes.push(span(found));
    rest = rest.slice(found.index + found[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function span([, , code, picture, label, target, bold, bold2, slanted, bare]) {
  if (code !== undefined) return el("code", {}, code);
  if (picture !== undefined) return el("span", { class: "quiet" }, picture ? `[${picture}]` : "");
  if (label !== undefined) return link(label, target);
  if (bare !== undefined) return link(bare, bare);
  if (slanted !== undefined) return el("em", {}, ...inline(slanted));
  return el("strong", {}, ...inline(bold ?? bold2));
}

function link(label, target) {
  if (!/^https?:\/\//i.test(target)) return el("span", {}, ...inline(label));
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, ...inline(label));
}
