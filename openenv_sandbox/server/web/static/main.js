// The page: what the server tells goes into the panes, what the person does goes to the server.

import { makeActions } from "./actions.js";
import * as api from "./api.js";
import { makeChart } from "./chart.js";
import { button, byId, el, number } from "./dom.js";
import { makeForm } from "./form.js";
import { makeHistory, replay } from "./history.js";
import { jsonField, Mistake } from "./inputs.js";
import { markdown } from "./markdown.js";
import { showFields, showObservation } from "./values.js";
import { startTabs, startTheme } from "./window.js";

const state = { linked: false, status: { open: false, doing: null, note: null }, episode: null, now: null, viewed: null, replaying: false };
let config = null;
let actions = null;
let resetForm = null;
let localError = null;

const chart = makeChart(byId("chart"), view);
const history = makeHistory(byId("history"), { view, reuse: (action) => actions.write(action), watching: api.watching });

// -- what the server tells ------------------------------------------------------------------------------------------

function changed(update) {
  if (update.status) state.status = update.status;
  if (update.episode) {
    state.episode = update.episode;
    state.viewed = null;
    history.show(update.episode.entries);
  }
  if (update.entry && state.episode) {
    state.episode.entries.push(update.entry);
    history.add(update.entry);
    state.viewed = null;
    const { number: at, reward, done } = update.entry;
    byId("said").textContent = `Step ${at}: ${rewardText(reward)}${done ? ", the episode is over" : ""}`;
  }
  if ("now" in update) {
    state.now = update.now;
    actions.offer(update.now?.tools);
    showNow();
  }
  if (update.episode || update.entry) {
    history.mark(state.viewed);
    chart.show(state.episode.entries, null);
  }
  showStatus();
}

const rewardText = (reward) => (reward === null ? "no reward" : `reward ${number(reward)}`);

function showEnvelope(envelope, title) {
  const { reward, done } = envelope;
  byId("observationtitle").textContent = title;
  const facts = [rewardText(reward), done && "episode over"];
  byId("came").textContent = facts.filter(Boolean).join(" · ");
  byId("observation").replaceChildren(...showObservation(envelope));
}

function showNow() {
  byId("back").hidden = true;
  byId("came").textContent = "";
  byId("observationtitle").textContent = "Observation";
  const now = state.now;
  if (!now) {
    byId("observation").replaceChildren(el("p", { class: "empty" }, api.watching ? "Nothing has happened yet." : "Reset starts an episode."));
    byId("state").replaceChildren(el("p", { class: "empty" }, "–"));
    byId("frame").replaceChildren();
    byId("buttons").hidden = true;
    return;
  }
  const drawn = now.frame ? el("iframe", { sandbox: "", src: api.framePath(now.frame), title: "The environment's own picture" }) : null;
  byId("frame").replaceChildren(...(drawn ? [drawn] : []));
  showEnvelope(now.envelope, "Observation");
  const parts = now.state && typeof now.state === "object" ? showFields(now.state) : [el("p", { class: "empty" }, now.state_error || "None")];
  byId("state").replaceChildren(...parts);
  const offered = api.watching ? [] : now.buttons;
  byId("buttons").replaceChildren(...offered.map(({ label, action }) => button(label, () => act(action))));
  byId("buttons").hidden = !offered.length;
}

function showStatus() {
  const { open, doing, note } = state.status;
  const done = Boolean(state.now?.envelope.done);
  const [kind, text] = !state.linked ? ["lost", "connecting"]
    : doing ? ["busy", doing === "reset" ? "resetting" : "stepping"]
    : !open ? ["off", state.episode?.started ? "closed" : "not started"]
    : done ? ["done", "episode over"] : ["live", "running"];
  const pill = byId("status");
  pill.dataset.kind = kind;
  if (pill.textContent !== text) pill.textContent = text;
  const entries = state.episode?.entries || [];
  byId("steps").textContent = String(entries.at(-1)?.number ?? 0);
  byId("total").textContent = number(entries.reduce((sum, entry) => sum + Number(entry.reward ?? 0), 0));
  const busy = Boolean(doing) || state.replaying;
  byId("reset").disabled = busy || !resetForm;
  byId("step").disabled = busy || !open;
  for (const each of byId("buttons").children) each.disabled = busy || !open;
  byId("reset").classList.toggle("primary", !open || done);
  byId("step").classList.toggle("primary", open && !done);
  byId("close").hidden = !open;
  byId("replay").disabled = !entries.length || api.watching || (busy && !state.replaying);
  byId("replay").textContent = state.replaying ? "Stop" : "Replay";
  const exported = byId("export");
  exported.setAttribute("aria-disabled", String(!state.episode?.started));
  if (state.episode?.started) exported.href = api.exportPath();
  const banner = byId("banner");
  const troubles = [localError, note, ...(state.now?.troubles || [])].filter(Boolean).join("\n");
  banner.hidden = !troubles;
  banner.dataset.kind = localError || !open ? "error" : "note";
  if (!localError && note && !note.includes("failed")) banner.dataset.kind = "note";
  if (banner.textContent !== troubles) banner.textContent = troubles;
}

// -- looking back ---------------------------------------------------------------------------------------------------

async function view(step) {
  const last = state.episode.entries.at(-1)?.number;
  if (step === last) return back();
  let envelope;
  try {
    envelope = await api.history(step);
  } catch (error) {
    return complain(error);
  }
  state.viewed = step;
  byId("back").hidden = false;
  byId("frame").replaceChildren();
  showEnvelope(envelope, `Observation of step ${step}`);
  history.mark(step);
  chart.show(state.episode.entries, step);
}

function back() {
  state.viewed = null;
  history.mark(null);
  showNow();
  chart.show(state.episode.entries, null);
}

// -- what the person does -------------------------------------------------------------------------------------------

function complain(error) {
  if (!(error instanceof api.Refused)) throw error;
  // What failed inside the environment is told to all tabs, this one included.
  const told = state.linked && ["EXECUTION_ERROR", "SERIALIZATION_ERROR", "FACTORY_ERROR", "MESSAGE_TOO_LARGE"].includes(error.code);
  localError = told ? null : error.code === "CAPACITY_REACHED" ? `${error.message} Close another session, or try again later.` : error.message;
  showStatus();
}

async function act(action) {
  localError = null;
  actions.clear();
  try {
    const envelope = config.chat && "message" in action ? await api.say(action.message) : await api.step(action);
    actions.answered(envelope.observation);
  } catch (error) {
    if (!error.problems) return complain(error);
    actions.show(error.problems);
    showStatus();
  }
}

byId("actionform").addEventListener("submit", (event) => {
  event.preventDefault();
  if (byId("step").disabled) return;
  const action = actions.read();
  if (action !== null) act(action);
});

byId("actionform").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  byId("actionform").requestSubmit();
});

byId("resetform").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (byId("reset").disabled) return;
  localError = null;
  const given = resetForm.read();
  if (given === null) return;
  try {
    await api.reset(given);
  } catch (error) {
    if (error.problems) resetForm.show(error.problems);
    else complain(error);
  }
});

byId("close").addEventListener("click", () => api.close().catch(complain));
byId("back").addEventListener("click", back);
for (const [name, summed] of [["perstep", false], ["summed", true]]) {
  byId(name).addEventListener("click", () => {
    byId("perstep").setAttribute("aria-pressed", String(!summed));
    byId("summed").setAttribute("aria-pressed", String(summed));
    chart.sum(summed);
  });
}

byId("replay").addEventListener("click", async () => {
  if (state.replaying) {
    state.replaying = false;
    return;
  }
  state.replaying = true;
  localError = null;
  const say = (text) => (byId("replaying").textContent = text);
  try {
    const step = (action) => (config.chat && "message" in action ? api.say(action.message) : api.step(action));
    say(await replay({
      argumentsOfReset: state.episode.arguments, entries: [...state.episode.entries], reset: api.reset, step,
      progress: say, stopped: () => !state.replaying,
    }));
  } catch (error) {
    say("");
    complain(error);
  }
  state.replaying = false;
  showStatus();
});

byId("about").addEventListener("click", () => byId("aboutdialog").showModal());
byId("share").addEventListener("click", () => {
  const link = new URL("web", document.baseURI);
  link.searchParams.set("watch", config.watch);
  byId("sharelink").value = link.href;
  byId("sharedialog").showModal();
  byId("sharelink").select();
});
byId("copy").addEventListener("click", async () => {
  byId("sharelink").select();
  try {
    await navigator.clipboard.writeText(byId("sharelink").value);
    byId("copy").textContent = "Copied";
  } catch {
    byId("copy").textContent = "Press Ctrl+C";
  }
});

// The arguments of reset: those it names, and any others as JSON where it takes any. None is sent unless it is set.
function makeResetForm(schema) {
  const place = byId("resetfields");
  const named = el("div", {});
  const form = makeForm(schema, named);
  const further = schema.additionalProperties
    ? jsonField({ root: {} }, { title: "Further arguments" }, { label: "Further arguments", plain: true, strict: true, placeholder: '{"name": value}' }) : null;
  place.replaceChildren(named, ...(further ? [further.node] : []));
  const unset = form.read();
  byId("resetoptions").hidden = form.empty && !further;
  return {
    show: (problems) => {
      byId("resetoptions").open = true;
      form.show(problems);
    },
    read() {
      try {
        const given = form.read();
        if (given === null) return null;
        const changedOnes = Object.entries(given).filter(([name, value]) =>
          JSON.stringify(value) !== JSON.stringify(unset?.[name]) || schema.required?.includes(name));
        return { ...Object.fromEntries(changedOnes), ...(further?.read() || {}) };
      } catch (error) {
        if (!(error instanceof Mistake)) throw error;
        byId("resetoptions").open = true;
        error.field.clear();
        error.field.fail(error.message);
        error.field.focus();
        return null;
      }
    },
  };
}

function introduce() {
  const { metadata, quick_start: quickStart, title } = config;
  document.title = title;
  byId("name").textContent = metadata.name;
  const facts = [metadata.description, metadata.version && `version ${metadata.version}`, `openenv ${config.version}`];
  byId("description").textContent = facts.filter(Boolean).join(" · ");
  byId("quickstart").replaceChildren(...markdown(quickStart));
  byId("readme").replaceChildren(...(metadata.readme_content ? markdown(metadata.readme_content) : []));
  byId("watching").hidden = !api.watching;
  byId("resetform").hidden = byId("actionform").hidden = api.watching;
  byId("share").hidden = api.watching;
  actions = makeActions(config);
  resetForm = makeResetForm(config.reset);
}

async function before() {
  const fresh = await api.openSession();
  if (config) {
    config.watch = fresh.watch;
    return;
  }
  config = fresh;
  introduce();
  startTabs(config);
  showNow();
  showStatus();
}

startTheme();
showStatus();
api.listen({
  before,
  changed,
  linked: (open) => {
    state.linked = open;
    showStatus();
  },
});
