// Runs before the page is drawn, so that a chosen theme does not flash.
"use strict";
{
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("openenv-theme") || "auto";
  } catch {
    // storage is off: follow the system
  }
  document.documentElement.dataset.theme = chosen;
}
