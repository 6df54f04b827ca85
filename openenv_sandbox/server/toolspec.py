"""Turns a function into a tool: schemas from its type hints and docstring, and validated calls.

Everything is compiled once per function; a call is one pydantic validation and one call of the function.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from pydantic import BaseModel, TypeAdapter

from openenv_sandbox.errors import OpenEnvError
from openenv_sandbox.models import Tool, ToolErrorType
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESERVED_TOOL_NAMES = frozenset({"reset", "step", "state", "close"})

_SECTION = re.compile(
    r"^(args|arguments|parameters|params|returns?|yields?|raises|examples?|notes?|attributes|warnings?)\s*:\s*$", re.I
)
_ARGUMENT_SECTIONS = ("args", "arguments", "parameters", "params")
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_WRAPPED_META = {"fastmcp": {"wrap_result": True}}


class TextContent(BaseModel):
    """One text block of a tool's result."""

    type: str = "text"
    text: str
    annotations: Any = None
    meta: Any = None


class ToolResult(BaseModel):
    """What a tool returned, in the form existing clients read.

    Attributes:
        content: The value as text blocks; empty for None.
        structured_content: The value as a JSON object; ``{"result": value}`` where it is none by itself.
        meta: Says whether the value was wrapped so.
        data: The value itself, of JSON types.
        is_error: Always False: a failed call has no result but an error.
    """

    content: list[TextContent]
    structured_content: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    data: Any = None
    is_error: bool = False


class ToolCallError(OpenEnvError, RuntimeError):
    """A tool call without a result.

    Args:
        message: What the caller is told.
        kind: Why.
    """

    def __init__(self, message: str, *, kind: ToolErrorType = ToolErrorType.EXECUTION_ERROR, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.kind = kind


@dataclass(frozen=True)
class ToolSpec:
    """A compiled tool.

    Attributes:
        name: Its name on the wire.
        attribute: The environment's attribute that holds the function.
        description: From the docstring, without its sections.
        input_schema: JSON schema of the arguments.
        output_schema: JSON schema of the structured result; None where the function declares no return type.
        wraps: Whether the structured result is ``{"result": value}``.
        is_async: Whether the function is a coroutine function.
        bind: Validates and coerces arguments by name; raises pydantic's ValidationError.
    """

    name: str
    attribute: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    wraps: bool
    is_async: bool
    bind: Callable[[Mapping[str, Any]], dict[str, Any]]

    def as_tool(self) -> Tool:
        """The form that a `ListToolsObservation` carries."""
        return Tool(name=self.name, description=self.description, input_schema=self.input_schema)

    def as_listing(self) -> dict[str, Any]:
        """The form that ``tools/list`` carries, with every key that existing servers send."""
        return {
            "name": self.name,
            "title": None,
            "description": self.description or None,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "icons": None,
            "annotations": None,
            "meta": {"fastmcp": {"tags": []}},
            "execution": None,
        }

    def result(self, value: Any) -> ToolResult:
        """Put a returned value into its wire form.

        Raises:
            SerializationError: The value has no JSON form.
        """
        if value is None or isinstance(value, (str, bool, int)):
            plain, text = value, value if isinstance(value, str) else codec.dumps(value).decode()
        else:
            raw = codec.dumps(value)
            plain, text = codec.loads(raw), raw.decode()
            if isinstance(plain, str):
                text = plain
        content = (
            [] if value is None else [TextContent.model_construct(type="text", text=text, annotations=None, meta=None)]
        )
        structured = {"result": plain} if self.wraps else plain if isinstance(plain, dict) else None
        return ToolResult.model_construct(
            content=content,
            structured_content=structured,
            meta=dict(_WRAPPED_META) if self.wraps else None,
            data=plain,
            is_error=False,
        )


def check_name(name: str) -> str:
    """Refuse names that mean something else on the wire.

    Raises:
        ValueError: The name is reserved or empty.
    """
    if name in RESERVED_TOOL_NAMES:
        raise ValueError(f"a tool cannot be called {name!r}: {', '.join(sorted(RESERVED_TOOL_NAMES))} are reserved")
    if not name:
        raise ValueError("a tool needs a name")
    return name


def check_signature(function: Callable[..., Any], name: str) -> None:
    """Refuse parameters that cannot be passed by name.

    Raises:
        TypeError: The function takes ``*args``, ``**kwargs`` or positional-only parameters.
    """
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or (
            parameter.kind is parameter.POSITIONAL_ONLY and parameter.name not in ("self", "cls")
        ):
            raise TypeError(f"tool {name!r}: {parameter} cannot be passed by name; list the arguments of the tool")


def compile_tool(
    function: Callable[..., Any], *, name: str, attribute: str, description: str | None, is_method: bool
) -> ToolSpec:
    """Compile ``function``; its first parameter is the environment where ``is_method``.

    Raises:
        TypeError: A type hint cannot be resolved or has no JSON schema.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if is_method else 0 :]
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {name!r}: {error}; its type hints must be importable when the first session starts"
        ) from error
    returns = hints.pop("return", inspect.Signature.empty)

    names = [p.name for p in parameters]

    def call(*positional: Any, **by_name: Any) -> dict[str, Any]:
        return {**dict(zip(names, positional, strict=False)), **by_name} if positional else by_name

    call.__name__ = call.__qualname__ = name
    call.__module__ = function.__module__
    call.__annotations__ = {key: hint for key, hint in hints.items() if key in names}
    annotated = [p.replace(annotation=hints.get(p.name, inspect.Parameter.empty)) for p in parameters]
    call.__signature__ = inspect.Signature(annotated)  # type: ignore[attr-defined]
    about, of_arguments = _docstring(function.__doc__)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", call))
        schema = tidy_schema(adapter.json_schema())
        output = None if returns in (inspect.Signature.empty, None, type(None)) else _output_schema(returns)
    except Exception as error:
        raise TypeError(f"tool {name!r} has no JSON schema: {error}") from error
    for key, text in of_arguments.items():
        if key in schema.get("properties", {}):
            schema["properties"][key].setdefault("description", text)
    wraps = bool(output and output.get("x-fastmcp-wrap-result"))
    return ToolSpec(
        name=name,
        attribute=attribute,
        description=description if description is not None else about,
        input_schema=schema,
        output_schema=output,
        wraps=wraps,
        is_async=inspect.iscoroutinefunction(function),
        bind=adapter.validator.validate_python,
    )


def _output_schema(annotation: Any) -> dict[str, Any] | None:
    """Schema of the structured result; a type without a schema has none."""
    schema = tidy_schema(TypeAdapter(annotation).json_schema(mode="serialization"))
    if schema.get("type") == "object":
        return schema
    return {"type": "object", "properties": {"result": schema}, "required": ["result"], "x-fastmcp-wrap-result": True}


def tidy_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop generated titles and put definitions where they are used; recursive ones stay as references."""
    definitions = schema.get("$defs", {})
    recursive = {name for name in definitions if _reaches(definitions, name)}

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        target = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if target in definitions and target not in recursive:
            return walk({**definitions[target], **{key: value for key, value in node.items() if key != "$ref"}})
        tidied = {}
        for key, value in node.items():
            if key in ("default", "const", "enum", "examples", "required"):
                tidied[key] = value
            elif key in ("properties", "patternProperties"):
                tidied[key] = {name: walk(item) for name, item in value.items()}
            elif key not in ("title", "$defs"):
                tidied[key] = walk(value)
        return tidied

    result: dict[str, Any] = walk(schema)
    if recursive:
        result["$defs"] = {name: walk(definitions[name]) for name in sorted(recursive)}
    return result


def _reaches(definitions: Mapping[str, Any], start: str) -> bool:
    """Whether a definition leads back to itself."""
    seen: set[str] = set()
    queue = [start]
    while queue:
        for name in re.findall(r"'\$ref': '#/\$defs/([^']+)'", repr(definitions.get(queue.pop()))):
            if name == start:
                return True
            if name not in seen:
                seen.add(name)
                queue.append(name)
    return False


def _docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into the text before its sections and the texts of its arguments."""
    about: list[str] = []
    arguments: dict[str, str] = {}
    section: str | None = None
    current, indent = "", 0
    for line in inspect.cleandoc(doc or "").splitlines():
        header = _SECTION.match(line)
        if header:
            section, current = header[1].lower(), ""
        elif section is None:
            about.append(line)
        elif section in _ARGUMENT_SECTIONS and line.strip():
            depth = len(line) - len(line.lstrip())
            entry = _ARGUMENT.match(line.strip())
            if entry and (not current or depth <= indent):
                current, indent = entry[1].lstrip("*"), depth
                arguments[current] = entry[2].strip()
            elif current:
                arguments[current] = f"{arguments[current]}\n{line.strip()}".strip()
    return "\n".join(about).strip(), arguments
