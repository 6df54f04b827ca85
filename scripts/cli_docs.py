"""Makes docs/reference/cli.md from the commands themselves: cli_docs.py [--check]."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import click
from _pages import ROOT, cell, write_or_check

from openenv_sandbox.cli.main import VERBS, cli
from openenv_sandbox.cli.options import launch_options

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = ROOT / "docs" / "reference" / "cli.md"
HEAD = """# Command line

Made by `scripts/cli_docs.py` from the commands: what `openenv VERB --help` prints.

Results go to stdout, everything else to stderr; `--json` is there wherever a verb prints a listing. `-v` before the
verb (`openenv -v run …`) adds warnings and tracebacks, twice also debug output. `NO_COLOR` and pipes switch colours
off. What exit codes mean: [Errors](../errors.md#exit-codes-of-the-command-line).
"""
SHARED = """## Options of launching

`run`, `launch` and `doctor --live` take these as well. What is not given comes from the
[configuration](../configuration.md).
"""


def page() -> str:
    """The page."""
    shared = [option.name for option in _launching.params]
    parts = [HEAD, _table(("verb", "what it does"), ((f"[`{v}`](#openenv-{v})", cell(t)) for v, t in VERBS.items()))]
    context = click.Context(cli, info_name="openenv")
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        parts.append(_verb(command, context, f"openenv {verb}", shared))
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=verb, parent=context)
            for name in command.list_commands(inner):
                sub = command.get_command(inner, name)
                assert sub is not None
                parts.append(_verb(sub, inner, f"openenv {verb} {name}", shared))
    parts += [SHARED, _options(_launching, context, ())]
    return "\n".join(parts)


@click.command("launching")
@launch_options
def _launching(**_: object) -> None:
    """Holds the shared options."""


def _verb(command: click.Command, parent: click.Context, title: str, shared: Iterable[str | None]) -> str:
    context = click.Context(command, info_name=title.rpartition(" ")[2], parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    names = {option.name for option in command.params}
    has_shared = set(shared) <= names
    lines = [f"## {title}\n", f"```text\n{title} {usage}\n```\n", _text(command), ""]
    if has_shared:
        lines.append("Takes the [options of launching](#options-of-launching) as well.\n")
    lines.append(_options(command, context, tuple(shared) if has_shared else ()))
    return "\n".join(lines)


def _text(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").replace("<", "&lt;")
    return re.sub(r"(?m)^Example: (.+)$", r"Example: `\1`", text)


def _options(command: click.Command, context: click.Context, left_out: Iterable[str | None]) -> str:
    rows = []
    for option in command.params:
        record = option.get_help_record(context)
        if record is not None and option.name not in tuple(left_out):
            rows.append((f"`{record[0]}`".replace("|", "\\|"), cell(record[1])))
    return _table(("option", "meaning"), rows) if rows else ""


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    write_or_check(PAGE, page())
