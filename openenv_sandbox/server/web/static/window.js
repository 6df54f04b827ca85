// What is around the panes: tabs and colours.

import { byId, el } from "./dom.js";

const THEMES = ["auto", "light", "dark"];

export function startTheme() {
  const chooser = byId("theme");
  const show = () => (chooser.textContent = `Theme: ${document.documentElement.dataset.theme}`);
  chooser.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("openenv-theme", next);
    } catch {
      // storage is off: the choice lasts as long as the page
    }
    show();
  });
  show();
}

// Our page and the one that the environment brings, which is loaded when it is looked at.
export function startTabs({ tabs }) {
  if (tabs.length < 2) return;
  const place = byId("tabs");
  const custom = byId("custom");
  const choose = ({ id, path, label }) => {
    for (const each of place.children) each.toggleAttribute("aria-current", false);
    place.querySelector(`[data-tab="${id}"]`).setAttribute("aria-current", "page");
    byId("playground").hidden = path !== null;
    custom.hidden = path === null;
    document.querySelector(".facts").hidden = path !== null;
    if (path !== null && !custom.childElementCount) custom.append(el("iframe", { src: path, title: label }));
  };
  place.replaceChildren(...tabs.map((tab) =>
    el("button", { type: "button", class: "plain", "data-tab": tab.id, on: { click: () => choose(tab) } }, tab.label)));
  place.hidden = false;
  choose(tabs[0]);
}
