// The steps of the episode: a table to look back in, to take actions from, and to play again.

import { button, el, number } from "./dom.js";

export function makeHistory(place, { view, reuse, watching }) {
  const body = el("tbody", {});
  const head = el("tr", {}, ...["Step", "Action", "Reward", "", ""].map((title) => el("th", { scope: "col" }, title)));
  const table = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Steps of the episode" },
    el("table", { class: "steps" }, el("thead", {}, head), body));
  const rows = new Map();
  let viewed = null;

  function add(entry) {
    const text = actionText(entry.action);
    const looks = button("View", () => view(entry.number), { class: "plain", "aria-label": `View step ${entry.number}` });
    const takes = watching ? null
      : button("Edit", () => reuse(entry.action), { class: "plain", "aria-label": `Put the action of step ${entry.number} into the form` });
    const row = el("tr", { "data-step": entry.number },
      el("td", { class: "amount" }, String(entry.number)), el("td", { class: "action", title: text }, text),
      el("td", { class: "amount" }, entry.reward === null ? "–" : number(Number(entry.reward))),
      el("td", {}, entry.done ? el("span", { class: "over" }, "done") : ""), el("td", {}, looks, takes));
    rows.set(entry.number, row);
    body.prepend(row);
    if (!table.isConnected) place.replaceChildren(table);
  }

  return {
    add,
    show(entries) {
      rows.clear();
      body.replaceChildren();
      viewed = null;
      if (!entries.length) place.replaceChildren(el("p", { class: "empty" }, "Every step will be listed here."));
      for (const entry of entries) add(entry);
    },
    mark(step) {
      rows.get(viewed)?.classList.remove("viewed");
      viewed = step;
      rows.get(viewed)?.classList.add("viewed");
    },
  };
}

export function actionText(action) {
  if (action && action.type === "call_tool") {
    const given = Object.entries(action.arguments || {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
    return `${action.tool_name}(${given.join(", ")})`;
  }
  const text = JSON.stringify(action);
  return text.length > 400 ? `${text.slice(0, 400)}…` : text;
}

// Plays an episode again: the same arguments of reset, the same actions. Tells how the rewards compare.
export async function replay({ argumentsOfReset, entries, reset, step, progress, stopped }) {
  await reset(argumentsOfReset);
  let differs = null;
  for (const [index, entry] of entries.entries()) {
    if (stopped()) return `Stopped after ${index} of ${entries.length} steps`;
    progress(`Replaying ${index + 1} of ${entries.length}`);
    const { reward, done } = await step(entry.action);
    if (differs === null && (reward !== entry.reward || Boolean(done) !== entry.done)) differs = entry.number;
  }
  const steps = entries.length === 1 ? "1 step" : `${entries.length} steps`;
  return differs === null ? `Replayed ${steps}: the same rewards` : `Replayed ${steps}: other rewards from step ${differs} on`;
}
