// The reward over the episode, as a curve that a reader of the screen gets as numbers.

import { el, number, svg } from "./dom.js";

const HEIGHT = 170;
const EDGE = { left: 44, right: 14, top: 12, bottom: 22 };
const DOTS = 80; // with more steps than this only the chosen one has a dot

export function makeChart(place, choose) {
  const readout = el("p", { class: "readout" });
  let entries = [];
  let viewed = null;
  let summed = false;

  const values = () => {
    let total = 0;
    return entries.map((entry) => {
      const reward = typeof entry.reward === "boolean" ? Number(entry.reward) : entry.reward;
      total += reward ?? 0;
      return summed ? total : reward;
    });
  };

  function draw() {
    const shown = values();
    if (!shown.some((value) => value !== null)) {
      const why = entries.length ? "No step has had a reward." : "The curve starts with the first step.";
      place.replaceChildren(el("p", { class: "empty" }, why));
      return;
    }
    const width = Math.max(240, place.clientWidth || 480);
    const numbers = shown.filter((value) => value !== null);
    const low = Math.min(0, ...numbers);
    const high = Math.max(...numbers, low === 0 && Math.max(...numbers) === 0 ? 1 : 0);
    const x = (index) => EDGE.left + ((width - EDGE.left - EDGE.right) * (shown.length === 1 ? 0.5 : index / (shown.length - 1)));
    const y = (value) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * (value - low)) / (high - low || 1);
    const title = summed ? "Total reward after each step" : "Reward of each step";
    const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: 0,
      "aria-label": `${title}: ${shown.map((value) => (value === null ? "none" : number(value))).join(", ")}` });
    for (const value of new Set([low, high])) {
      chart.append(svg("line", { class: "axis", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
        svg("text", { x: EDGE.left - 7, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    }
    if (low < 0 && high > 0) chart.append(svg("line", { class: "zero", x1: EDGE.left, x2: width - EDGE.right, y1: y(0), y2: y(0) }));
    for (const index of new Set([0, shown.length - 1])) {
      chart.append(svg("text", { x: x(index), y: HEIGHT - 6, "text-anchor": "middle" }, String(entries[index].number)));
    }
    chart.append(svg("path", { class: "curve", d: path(shown, x, y) }));
    const at = Math.max(0, viewed === null ? shown.length - 1 : entries.findIndex((entry) => entry.number === viewed));
    shown.forEach((value, index) => {
      if (value === null || (shown.length > DOTS && index !== at)) return;
      chart.append(svg("circle", { class: index === at ? "dot now" : "dot", cx: x(index), cy: y(value), r: 3.5 }));
    });
    const nearest = (event) => {
      const box = chart.getBoundingClientRect();
      const share = ((event.clientX - box.left) * (width / box.width) - EDGE.left) / (width - EDGE.left - EDGE.right);
      return Math.min(shown.length - 1, Math.max(0, Math.round(share * (shown.length - 1))));
    };
    chart.addEventListener("mousemove", (event) => say(nearest(event)));
    chart.addEventListener("mouseleave", () => say(at));
    chart.addEventListener("click", (event) => choose(entries[nearest(event)].number));
    chart.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !entries[at + move]) return;
      event.preventDefault();
      choose(entries[at + move].number);
      place.querySelector("svg")?.focus();
    });
    place.replaceChildren(chart, readout);
    say(at);
  }

  function say(index) {
    const entry = entries[index];
    const total = entries.slice(0, index + 1).reduce((sum, each) => sum + Number(each.reward ?? 0), 0);
    const reward = entry.reward === null ? "no reward" : `reward ${number(Number(entry.reward))}`;
    readout.textContent = `Step ${entry.number}: ${reward}, total ${number(total)}`;
  }

  new ResizeObserver(() => place.querySelector("svg") && draw()).observe(place);
  return {
    show(given, chosen) {
      entries = given;
      viewed = chosen;
      draw();
    },
    sum(yes) {
      summed = yes;
      draw();
    },
  };
}

function path(values, x, y) {
  let line = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) pen = "M";
    else {
      line += `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
  });
  return line;
}
