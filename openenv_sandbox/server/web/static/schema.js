// Reading JSON Schema as pydantic writes it.

export function resolve(schema, root) {
  let found = schema === true || !schema ? {} : schema;
  for (let hops = 0; hops < 20; hops++) {
    if (typeof found.$ref === "string") {
      const { $ref, ...own } = found;
      found = { ...lookUp($ref, root), ...own };
    } else if (Array.isArray(found.allOf) && found.allOf.length === 1) {
      const { allOf, ...own } = found;
      found = { ...allOf[0], ...own };
    } else break;
  }
  return found;
}

function lookUp(reference, root) {
  if (!reference.startsWith("#")) return {};
  let here = root;
  for (const part of reference.slice(1).split("/").filter(Boolean)) {
    here = here?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")];
  }
  return here || {};
}

// The name of a property, or the title its author has given it; pydantic makes titles from names by itself.
export function labelOf(name, property) {
  const made = (text) => text.replace(/[^a-z0-9]/gi, "").toLowerCase();
  return property.title && made(property.title) !== made(name) ? property.title : name;
}

// What kind of input a schema gets.
export function kindOf(schema) {
  if ("const" in schema) return "const";
  if (Array.isArray(schema.enum)) return "enum";
  if (variantsOf(schema)) return "union";
  const type = schema.type;
  if (type === "boolean" || type === "string" || type === "null") return type;
  if (type === "integer" || type === "number") return "number";
  if (type === "array") return Array.isArray(schema.prefixItems) ? "tuple" : "array";
  if (schema.properties) return "object";
  if (type === "object") return schema.additionalProperties === false ? "object" : "map";
  return "json";
}

export function variantsOf(schema) {
  if (Array.isArray(schema.type)) return schema.type.map((type) => ({ ...schema, type, title: undefined }));
  return schema.anyOf || schema.oneOf || null;
}

// A short name for a schema, in the words of Python's type hints.
export function typeName(schema, root, depth = 0) {
  const found = resolve(schema, root);
  const inner = (part) => (depth > 2 ? "…" : typeName(part, root, depth + 1));
  switch (kindOf(found)) {
    case "const": return JSON.stringify(found.const);
    case "enum": return found.title && !found.type?.length ? found.title : "one of";
    case "union": return variantsOf(found).map(inner).join(" | ");
    case "string": return found.format ? `str (${found.format})` : "str";
    case "number": return found.type === "integer" ? "int" : "float";
    case "boolean": return "bool";
    case "null": return "None";
    case "array": return `list[${inner(found.items || {})}]`;
    case "tuple": return `tuple[${found.prefixItems.map(inner).join(", ")}]`;
    case "map": return "dict";
    case "object": return found.title || "object";
    default: return "any";
  }
}

// How pydantic names a variant in the path of an error.
export function errorTags(schema, root) {
  const found = resolve(schema, root);
  const names = { integer: "int", number: "float", string: "str", boolean: "bool", array: "list", object: "dict" };
  const tags = [found.title, names[found.type]];
  for (const property of Object.values(found.properties || {})) {
    const known = resolve(property, root);
    if ("const" in known) tags.push(String(known.const));
  }
  return tags.filter(Boolean);
}

export function bounds(schema) {
  const parts = [];
  const say = (name, sign) => name in schema && parts.push(`${sign} ${schema[name]}`);
  say("minimum", "≥");
  say("exclusiveMinimum", ">");
  say("maximum", "≤");
  say("exclusiveMaximum", "<");
  if ("minLength" in schema) parts.push(`at least ${schema.minLength} characters`);
  if ("maxLength" in schema) parts.push(`at most ${schema.maxLength} characters`);
  if ("minItems" in schema) parts.push(`at least ${schema.minItems}`);
  if ("maxItems" in schema) parts.push(`at most ${schema.maxItems}`);
  return parts.join(", ");
}
