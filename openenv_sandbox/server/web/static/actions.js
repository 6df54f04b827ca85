// The form of the next action: from the schema of the action, from the chosen tool, or as JSON.

import { byId, el, freshId } from "./dom.js";
import { makeForm } from "./form.js";
import { jsonField, Mistake } from "./inputs.js";
import { kindOf } from "./schema.js";

export function makeActions(config) {
  const place = byId("fields");
  const jsonButton = byId("asjson");
  let tools = config.tools;
  let json = false;
  let current = null;

  function rebuild() {
    const known = tools?.length ? toolForm(place, tools) : config.chat ? chatForm(place) : schemaForm(place, config);
    current = json || !known ? jsonForm(place, config, current) : known;
    jsonButton.hidden = config.chat || !known;
    jsonButton.setAttribute("aria-pressed", String(json));
    byId("action").textContent = tools?.length ? "Tool" : "Action";
  }

  jsonButton.addEventListener("click", () => {
    const value = current.read();
    if (value === null) return;
    json = !json;
    rebuild();
    current.write(value);
    current.focus();
  });
  rebuild();

  return {
    // What is to be sent, or null when it cannot be; then the form says why.
    read: () => current.read(),
    write: (action) => current.write(action),
    show: (problems) => current.show(problems),
    clear: () => current.clear(),
    answered: (observation) => current.answered?.(observation),
    offer(given) {
      if (!given || JSON.stringify(given) === JSON.stringify(tools)) return;
      tools = given;
      rebuild();
    },
  };
}

function schemaForm(place, config) {
  if (!config.action || kindOf(config.action) !== "object") return null;
  if (config.tool_actions && !Object.keys(config.action.properties || {}).length) {
    return jsonOnlyHint(place, "The tools are listed after the first reset.");
  }
  const form = makeForm(config.action, place);
  if (form.empty) place.prepend(el("p", { class: "quiet" }, "This action has no fields."));
  return { ...form, write: (value) => value && form.write(value) };
}

function jsonOnlyHint(place, text) {
  place.replaceChildren(el("p", { class: "quiet" }, text));
  const fail = (problems) => place.append(el("p", { class: "errors", role: "alert" }, problems.map((each) => each.msg).join("\n")));
  return { read: () => ({}), write: () => {}, show: fail, clear: () => {}, focus: () => {} };
}

function chatForm(place) {
  const input = el("textarea", { id: freshId("message"), rows: 4 });
  const errors = el("p", { class: "errors", role: "alert" });
  place.replaceChildren(el("div", { class: "field" }, el("label", { for: input.id }, "Message"), input, errors));
  return {
    read: () => ({ message: input.value }),
    write: (value) => (input.value = value?.message ?? ""),
    show: (problems) => (errors.textContent = problems.map((each) => each.msg).join("\n")),
    clear: () => (errors.textContent = ""),
    focus: () => input.focus(),
  };
}

function jsonForm(place, config, before) {
  const field = jsonField({ root: {} }, { title: config.action_name }, { label: config.action_name, plain: true, rows: 10, strict: true });
  const errors = el("p", { class: "errors", role: "alert" });
  place.replaceChildren(field.node, errors);
  field.write(before?.read?.() ?? {});
  const clear = () => {
    errors.textContent = "";
    field.clear();
  };
  return {
    read() {
      clear();
      try {
        const value = field.read();
        if (value && typeof value === "object" && !Array.isArray(value)) return value;
        field.fail("An action is a JSON object.");
      } catch (error) {
        if (!(error instanceof Mistake)) throw error;
        field.fail(error.message);
      }
      field.focus();
      return null;
    },
    write: field.write,
    show(problems) {
      clear();
      for (const { loc, msg } of problems) field.fail(loc?.length ? `${loc.join(".")}: ${msg}` : msg);
    },
    clear,
    focus: field.focus,
  };
}

function toolForm(place, tools) {
  const select = el("select", { id: freshId("tool") }, ...tools.map((tool, index) => el("option", { value: index }, tool.name)));
  const says = el("p", { class: "help quiet" });
  const inner = el("div", {});
  place.replaceChildren(el("div", { class: "field" }, el("label", { for: select.id }, "Tool"), select, says), inner);
  let form = null;
  const chosen = () => tools[Number(select.value)];
  const schemaOf = (tool) => tool.inputSchema || tool.input_schema || { type: "object", properties: {} };
  const choose = () => {
    says.textContent = chosen().description || "";
    form = makeForm(schemaOf(chosen()), inner);
    if (form.empty) inner.prepend(el("p", { class: "quiet" }, "This tool takes no arguments."));
  };
  select.addEventListener("change", choose);
  choose();
  return {
    read() {
      const given = form.read();
      return given === null ? null : { type: "call_tool", tool_name: chosen().name, arguments: given };
    },
    write(action) {
      const index = tools.findIndex((tool) => tool.name === action?.tool_name);
      if (index < 0) return;
      select.value = String(index);
      choose();
      form.write(action.arguments || {});
    },
    show: (problems) => form.show(problems),
    clear: () => form.clear(),
    focus: () => form.focus(),
    // A tool that was given wrong arguments answers with an observation, whose text lists them as pydantic writes it.
    answered(observation) {
      if (observation?.error?.error_type !== "invalid_args") return;
      const lines = [...String(observation.error.message).matchAll(/^(\S+)\n {2}(.+?)(?: \[type=.*)?$/gm)];
      if (lines.length) form.show(lines.map(([, path, msg]) => ({ loc: path.split(".").map((part) => (/^\d+$/.test(part) ? Number(part) : part)), msg })));
    },
  };
}
