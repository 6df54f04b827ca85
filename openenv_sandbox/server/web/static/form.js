// Forms from JSON Schema: objects, lists, tuples, dicts and unions around the inputs for single values.

import { button, el, freshId } from "./dom.js";
import { Mistake, checkField, choiceField, constField, frame, jsonField, numberField, textField } from "./inputs.js";
import { errorTags, kindOf, labelOf, resolve, typeName, variantsOf } from "./schema.js";

const DEEPEST = 10; // levels of a form; what a model that contains itself has below is JSON

export function makeField(context, raw, options = {}) {
  const schema = resolve(raw, context.root);
  context.within.push(kindOf(schema) === "object" ? schema.title : null);
  const field = context.within.length > DEEPEST ? jsonField(context, schema, options) : build(context, schema, options);
  context.within.pop();
  if ("default" in schema) field.write(schema.default);
  return field;
}

function build(context, schema, options) {
  switch (kindOf(schema)) {
    case "const": return constField(schema);
    case "enum": return enumField(context, schema, options);
    case "union": return unionOrNullable(context, schema, options);
    case "string": return textField(context, schema, options);
    case "number": return numberField(context, schema, options);
    case "boolean": return options.nullable
      ? choiceField(context, schema, options, [null, true, false], ["None", "true", "false"])
      : checkField(context, schema, options);
    case "null": return constField({ const: null });
    case "array": return listField(context, schema, options);
    case "tuple": return tupleField(context, schema, options);
    case "map": return mapField(context, schema, options);
    case "object": return objectField(context, schema, options);
    default: return jsonField(context, schema, options);
  }
}

function enumField(context, schema, options) {
  return choiceField(context, schema, options, options.nullable ? [null, ...schema.enum] : schema.enum);
}

function group(context, schema, options, inner) {
  const around = frame(context, schema, options, null);
  const named = options.bare ? { "aria-label": around.name || "value" } : {};
  const node = el("div", { class: "field", role: "group", ...named }, ...around.labelled, around.help, inner, around.errors);
  if (!options.bare && around.labelled[0]) {
    around.labelled[0].id = freshId("label");
    node.setAttribute("aria-labelledby", around.labelled[0].id);
  }
  return { node, around };
}

export function objectField(context, schema, options) {
  const required = schema.required || [];
  const fields = new Map();
  for (const [name, property] of Object.entries(schema.properties || {})) {
    fields.set(name, makeField(context, property, { name, label: labelOf(name, property), required: required.includes(name) }));
  }
  const inner = el("div", { class: options.top ? "" : "group" }, ...[...fields.values()].map((field) => field.node));
  const { node, around } = options.top ? { node: inner, around: null } : group(context, schema, options, inner);
  return {
    node,
    read: () => {
      const value = {};
      for (const [name, field] of fields) {
        const found = field.read();
        if (found !== undefined) value[name] = found;
      }
      return value;
    },
    write: (value) => {
      if (!value || typeof value !== "object") return;
      for (const [name, field] of fields) if (name in value) field.write(value[name]);
    },
    fail: (text) => (around ? around.fail(text) : context.fail(text)),
    clear: () => {
      around?.clear();
      for (const field of fields.values()) field.clear();
    },
    child: (key) => fields.get(key) || null,
    focus: () => fields.values().next().value?.focus(),
  };
}

function rows(context, schema, options, makeRow, title) {
  const list = el("div", {});
  const entries = [];
  const add = (value, focused) => {
    const row = makeRow(entries.length);
    const remove = button("✕", () => {
      entries.splice(entries.indexOf(row), 1);
      row.line.remove();
      adder.focus();
    }, { class: "plain", "aria-label": `Remove from ${title}` });
    row.line.append(remove);
    entries.push(row);
    list.append(row.line);
    if (value !== undefined) row.write(value);
    if (focused) row.focus();
  };
  const adder = button("+ Add", () => add(undefined, true), { class: "add", "aria-label": `Add to ${title}` });
  const { node, around } = group(context, schema, options, el("div", { class: "group" }, list, adder));
  const empty = () => {
    entries.length = 0;
    list.replaceChildren();
  };
  return { node, around, entries, add, empty, focus: () => adder.focus() };
}

function listField(context, schema, options) {
  const title = options.label || schema.title || "list";
  const made = rows(context, schema, options, (index) => {
    const field = makeField(context, schema.items || {}, { bare: true, label: `${title} ${index + 1}` });
    return { line: el("div", { class: "item" }, field.node), write: field.write, focus: field.focus, field };
  }, title);
  for (let missing = schema.minItems || 0; missing > 0 && missing <= 20; missing--) made.add();
  return {
    node: made.node,
    read: () => made.entries.map((row) => row.field.read() ?? null),
    write: (value) => {
      made.empty();
      if (Array.isArray(value)) for (const item of value) made.add(item);
    },
    fail: made.around.fail,
    clear: () => {
      made.around.clear();
      for (const row of made.entries) row.field.clear();
    },
    child: (key) => made.entries[key]?.field || null,
    focus: made.focus,
  };
}

function mapField(context, schema, options) {
  const title = options.label || schema.title || "dict";
  const made = rows(context, schema, options, () => {
    const key = el("input", { type: "text", "aria-label": `Key in ${title}`, placeholder: "key", autocomplete: "off" });
    const field = makeField(context, schema.additionalProperties || {}, { bare: true, label: `Value in ${title}` });
    const write = ([name, value]) => {
      key.value = name;
      field.write(value);
    };
    return { line: el("div", { class: "item pair" }, key, field.node), write, focus: () => key.focus(), key, field };
  }, title);
  return {
    node: made.node,
    read: () => Object.fromEntries(made.entries.map((row) => [row.key.value, row.field.read() ?? null])),
    write: (value) => {
      made.empty();
      for (const pair of Object.entries(value || {})) made.add(pair);
    },
    fail: made.around.fail,
    clear: () => {
      made.around.clear();
      for (const row of made.entries) row.field.clear();
    },
    child: (key) => made.entries.find((row) => row.key.value === key)?.field || null,
    focus: made.focus,
  };
}

function tupleField(context, schema, options) {
  const title = options.label || schema.title || "tuple";
  const fields = schema.prefixItems.map((item, index) =>
    makeField(context, item, { bare: true, label: `${title} ${index + 1}` }));
  const lines = fields.map((field) => el("div", { class: "field" }, field.node));
  const { node, around } = group(context, schema, options, el("div", { class: "group" }, ...lines));
  return {
    node,
    read: () => fields.map((field) => field.read() ?? null),
    write: (value) => Array.isArray(value) && fields.forEach((field, index) => field.write(value[index])),
    fail: around.fail,
    clear: () => {
      around.clear();
      for (const field of fields) field.clear();
    },
    child: (key) => fields[key] || null,
    focus: () => fields[0]?.focus(),
  };
}

const SIMPLE = new Set(["string", "number", "boolean", "enum"]);

function unionOrNullable(context, schema, options) {
  const variants = variantsOf(schema).map((variant) => resolve(variant, context.root));
  const values = variants.filter((variant) => kindOf(variant) !== "null");
  const nullable = values.length < variants.length;
  if (values.length === 1 && (!nullable || SIMPLE.has(kindOf(values[0])))) {
    const { anyOf, oneOf, ...own } = schema;
    return build(context, { ...values[0], ...own, type: values[0].type }, { ...options, nullable });
  }
  return unionField(context, schema, options, nullable ? [{ type: "null" }, ...values] : values);
}

function unionField(context, schema, options, variants) {
  const names = variants.map((variant) => variant.title || typeName(variant, context.root));
  const label = options.label || schema.title || "";
  const select = el("select", { "aria-label": `Kind of ${label || "value"}` },
    ...names.map((name, index) => el("option", { value: index }, kindOf(variants[index]) === "null" ? "None" : name)));
  const place = el("div", { class: "chosen" });
  const { node, around } = group(context, schema, options, el("div", { class: "group" }, select, place));
  let chosen = null;
  const choose = (index) => {
    select.value = String(index);
    const flat = kindOf(variants[index]) === "object";
    chosen = makeField(context, variants[index], flat ? { top: true } : { bare: true, label: label || names[index] });
    place.replaceChildren(chosen.node);
  };
  select.addEventListener("change", () => choose(Number(select.value)));
  // A model that contains itself starts with what ends it.
  choose(Math.max(0, variants.findIndex((variant) => !variant.title || !context.within.includes(variant.title))));
  const others = () => variants.filter((_, index) => index !== Number(select.value)).flatMap((v) => errorTags(v, context.root));
  return {
    node,
    read: () => chosen.read(),
    write: (value) => {
      choose(fitting(variants, value, context.root));
      chosen.write(value);
    },
    fail: around.fail,
    clear: () => {
      around.clear();
      chosen.clear();
    },
    child: (key) => chosen.child(key),
    // pydantic reports what each variant would have wanted; only the chosen one's is of use
    foreign: (tag) => others().includes(tag) && !errorTags(variants[Number(select.value)], context.root).includes(tag),
    focus: () => select.focus(),
  };
}

function fitting(variants, value, root) {
  const fits = (variant) => {
    const kind = kindOf(variant);
    if (kind === "null") return value === null;
    if (kind === "number") return typeof value === "number";
    if (kind === "string" || kind === "boolean") return typeof value === kind;
    if (kind === "enum") return variant.enum.includes(value);
    if (kind === "const") return variant.const === value;
    if (kind === "array" || kind === "tuple") return Array.isArray(value);
    if (typeof value !== "object" || value === null) return false;
    const properties = Object.entries(variant.properties || {}).map(([name, raw]) => [name, resolve(raw, root)]);
    return properties.every(([name, known]) => !("const" in known) || known.const === value[name])
      && (variant.required || []).every((name) => name in value)
      && Object.keys(value).every((name) => kind === "map" || name in (variant.properties || {}));
  };
  return Math.max(0, variants.findIndex(fits));
}

// A whole form: what is in it, and where the server's messages belong.
export function makeForm(schema, place) {
  const general = el("p", { class: "errors", role: "alert" });
  const context = { root: schema, within: [], fail: (text) => (general.textContent += `${general.textContent ? "\n" : ""}${text}`) };
  const top = objectField(context, resolve(schema, schema), { top: true });
  place.replaceChildren(top.node, general);
  const clear = () => {
    general.textContent = "";
    top.clear();
  };
  const show = (problems) => {
    clear();
    const found = problems.map((problem) => locate(top, problem)).filter((each) => each !== null);
    if (!found.length && problems.length) found.push({ field: top, text: problems[0].msg });
    for (const { field, text } of found) field.fail(text);
    found[0]?.field.focus();
  };
  const read = () => {
    clear();
    try {
      return top.read();
    } catch (error) {
      if (!(error instanceof Mistake)) throw error;
      error.field.fail(error.message);
      error.field.focus();
      return null;
    }
  };
  return { read, write: top.write, show, clear, fail: context.fail, focus: top.focus, empty: !top.node.childElementCount };
}

function locate(top, { loc = [], msg }) {
  let field = top;
  const rest = [];
  for (const part of loc) {
    if (field.foreign?.(part)) return null;
    const next = field.child(part);
    if (next) field = next;
    else rest.push(part);
  }
  return { field, text: rest.length && field === top ? `${rest.join(".")}: ${msg}` : msg };
}
