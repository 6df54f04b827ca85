// Inputs for single values. Each field has node, read(), write(value), fail(text), clear() and focus().
//
// What is typed is sent even where it does not fit: the server says what is wrong with it, and that is shown beside it.

import { el, freshId } from "./dom.js";
import { bounds, typeName } from "./schema.js";

const LONG = /message|code|text|prompt|content|query|script|body/i;

// The frame of a field: label, help, the input itself and room for what the server says about it.
export function frame(context, schema, options, input) {
  const errors = el("p", { class: "errors", id: freshId("errors") });
  const help = [schema.description, bounds(schema)].filter(Boolean).join(" · ");
  const helpNode = help && !options.bare ? el("p", { class: "help", id: freshId("help") }, help) : null;
  const described = [helpNode?.id, errors.id].filter(Boolean).join(" ");
  const parts = [];
  const must = options.required ? el("span", { class: "must", title: "required" }, "*") : null;
  const name = options.label ?? schema.title ?? "";
  const type = options.bare || options.plain ? null : el("span", { class: "type" }, typeName(schema, context.root));
  if (input) {
    input.id ||= freshId("input");
    input.setAttribute("aria-describedby", described);
    if (options.bare) input.setAttribute("aria-label", name);
    else parts.push(el("label", { for: input.id }, name, must, type));
  } else if (!options.bare && name) parts.push(el("div", { class: "label" }, name, must, type));
  const fail = (text) => {
    errors.textContent = errors.textContent ? `${errors.textContent}\n${text}` : text;
    input?.setAttribute("aria-invalid", "true");
  };
  const clear = () => {
    errors.textContent = "";
    input?.removeAttribute("aria-invalid");
  };
  return { labelled: parts, help: helpNode, errors, fail, clear, name };
}

function single(context, schema, options, input, { read, write, after = null, check = false }) {
  const around = frame(context, schema, options, input);
  const order = check
    ? [input, ...around.labelled, around.help, around.errors]
    : [...around.labelled, around.help, input, after, around.errors];
  const node = el("div", { class: check ? "field check" : "field" }, ...order);
  return { node, read, write, fail: around.fail, clear: around.clear, child: () => null, focus: () => input.focus() };
}

export function textField(context, schema, options) {
  const long = (schema.maxLength || 0) > 100 || LONG.test(options.name || "");
  const input = long ? el("textarea", { rows: 3, spellcheck: "false" }) : el("input", { type: "text", autocomplete: "off" });
  if (!options.nullable) {
    return single(context, schema, options, input, {
      read: () => input.value,
      write: (value) => (input.value = value === undefined || value === null ? "" : String(value)),
    });
  }
  const box = el("input", { type: "checkbox", checked: true });
  const none = el("label", { class: "none" }, box, "None");
  box.addEventListener("change", () => box.checked && (input.value = ""));
  input.addEventListener("input", () => (box.checked = false));
  return single(context, schema, options, input, {
    after: none,
    read: () => (box.checked ? null : input.value),
    write: (value) => {
      box.checked = value === null || value === undefined;
      input.value = box.checked ? "" : String(value);
    },
  });
}

export function numberField(context, schema, options) {
  const input = el("input", {
    type: "text", autocomplete: "off", inputmode: schema.type === "integer" ? "numeric" : "decimal",
    placeholder: options.nullable ? "None" : undefined,
  });
  const read = () => {
    const text = input.value.trim();
    if (!text) return options.nullable ? null : undefined;
    const value = Number(text);
    // More digits than a double holds, or no number at all: the server reads it from the text.
    return Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value)) ? value : text;
  };
  return single(context, schema, options, input, {
    read, write: (value) => (input.value = value === undefined || value === null ? "" : String(value)),
  });
}

export function checkField(context, schema, options) {
  const input = el("input", { type: "checkbox" });
  return single(context, schema, options, input, {
    check: true, read: () => input.checked, write: (value) => (input.checked = Boolean(value)),
  });
}

export function choiceField(context, schema, options, values, labels = values.map(show)) {
  const input = el("select", {}, ...labels.map((label, index) => el("option", { value: index }, label)));
  return single(context, schema, options, input, {
    read: () => values[Number(input.value)],
    write: (value) => {
      const index = values.findIndex((known) => JSON.stringify(known) === JSON.stringify(value));
      if (index >= 0) input.value = String(index);
    },
  });
}

export function constField(schema) {
  return {
    node: el("div", { class: "constant", hidden: true }),
    read: () => schema.const, write: () => {}, fail: () => {}, clear: () => {}, child: () => null, focus: () => {},
  };
}

export function jsonField(context, schema, options) {
  const input = el("textarea", { rows: options.rows || 3, spellcheck: "false", placeholder: options.placeholder || "JSON" });
  const field = single(context, schema, options, input, {
    read: () => {
      const text = input.value.trim();
      if (!text) return options.nullable ? null : undefined;
      try {
        return JSON.parse(text);
      } catch (error) {
        if (options.strict) throw new Mistake(field, `This is not JSON: ${error.message}`);
        return input.value;
      }
    },
    write: (value) => (input.value = value === undefined ? "" : JSON.stringify(value, null, 2)),
  });
  return field;
}

// Something that cannot be sent at all.
export class Mistake extends Error {
  constructor(field, text) {
    super(text);
    this.field = field;
  }
}

const show = (value) => (value === null ? "None" : typeof value === "string" ? value : JSON.stringify(value));
