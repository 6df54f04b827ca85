"""The few lines with which a program connects to the environment that a page shows."""

from __future__ import annotations

import ast
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from openenv_sandbox.models import Action, CallToolAction, ListToolsAction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.models import Observation
    from openenv_sandbox.server.environment import EnvironmentMetadata

CLIENT_BASES = frozenset(("EnvClient", "MCPToolClient", "MCPClientBase", "GenericEnvClient"))

EXAMPLES: dict[Any, str] = {bool: "False", int: "0", float: "0.0", str: '"…"', list: "[]", dict: "{}"}


def get_quick_start_markdown(
    metadata: EnvironmentMetadata | None, action_cls: type[Action], observation_cls: type[Observation]
) -> str:
    """How to connect a client to this server, in Markdown.

    The client class is looked up in the source of the environment's package, which is parsed and not imported.

    Args:
        metadata: Its name is that of the package, or nearly.
        action_cls: Its required fields become those of the example.
        observation_cls: Not used; callers pass it.
    """
    host = os.environ.get("SPACE_HOST", "").strip()
    url = f"https://{host}" if host else "http://localhost:8000"
    space = os.environ.get("SPACE_ID", "").strip()
    package, client, exported = _client(metadata, action_cls)
    lines = ["### Connect a program", ""]
    if space:
        lines += ["```bash", f"pip install git+https://huggingface.co/spaces/{space}", "```", ""]
    lines += ["```python", *_code(url, package, client, exported, action_cls), "```"]
    return "\n".join(lines)


def _code(url: str, package: str, client: str, exported: set[str], action_cls: type[Action]) -> list[str]:
    opening = f'with {client or "GenericEnvClient"}(base_url="{url}").sync() as env:'
    tools = action_cls in (Action, CallToolAction, ListToolsAction)
    required = {name: field for name, field in action_cls.model_fields.items() if field.is_required()}
    values = {
        name: EXAMPLES.get(get_origin(field.annotation) or field.annotation, "…") for name, field in required.items()
    }
    step = "    result = env.step({})"
    if not client:
        action = ", ".join(f'"{name}": {value}' for name, value in values.items())
        if tools:
            action = '"type": "call_tool", "tool_name": "…", "arguments": {}'
        imports = ["from openenv_sandbox import GenericEnvClient"]
        step = f"    result = env.step({{{action}}})"
    elif tools:
        return [
            f"from {package} import {client}",
            "",
            opening,
            "    env.reset()",
            "    print([tool.name for tool in env.list_tools()])",
            '    print(env.call_tool("…"))',
        ]
    else:
        name = action_cls.__name__
        home = package if name in exported else action_cls.__module__
        imports = [f"from {package} import {client}", f"from {home} import {name}"]
        if home == package:
            imports = [f"from {package} import {', '.join(sorted((client, name)))}"]
        step = f"    result = env.step({name}({', '.join(f'{key}={value}' for key, value in values.items())}))"
    return [*imports, "", opening, "    env.reset()", step, "    print(result.observation, result.reward)"]


def _client(metadata: EnvironmentMetadata | None, action_cls: type[Action]) -> tuple[str, str, set[str]]:
    """Package, client class and exported names of the environment; empty where it has no client to be found."""
    named = metadata.name.replace(" ", "_").replace("-", "_").lower() if metadata else ""
    for package in dict.fromkeys((named, action_cls.__module__.partition(".")[0])):
        if package.isidentifier() and package not in ("openenv", "openenv_sandbox", "models", "server"):
            try:
                spec = find_spec(package)
            except (ImportError, ValueError):
                continue
            if spec is not None and spec.submodule_search_locations:
                root = Path(next(iter(spec.submodule_search_locations)))
                client = next(_clients(root / "client.py"), "")
                if client:
                    return package, client, set(_exports(root / "__init__.py"))
    return "", "", set()


def _clients(path: Path) -> Iterator[str]:
    for node in _tree(path):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
            if bases & CLIENT_BASES:
                yield node.name


def _exports(path: Path) -> Iterator[str]:
    for node in _tree(path):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _tree(path: Path) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    except (OSError, SyntaxError, ValueError):
        return []
