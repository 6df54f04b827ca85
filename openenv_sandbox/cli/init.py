"""``openenv init``: a new environment's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("init", short_help="Write a new environment.")
@click.argument("name")
@click.option("-o", "--output", default=".", type=click.Path(path_type=Path), help="Where; default: here.")
@click.option("--tools", is_flag=True, help="Actions are calls of tools, which agents also find over MCP.")
@click.pass_obj
def command(terminal: Terminal, name: str, output: Path, tools: bool) -> None:
    """Write the folder NAME with an environment that works, its tests, its image and its client.

    Example: openenv init my_env && cd my_env && openenv validate
    """
    from openenv_sandbox.authoring.scaffold import scaffold

    folder = scaffold(name, output, tools=tools)
    terminal.data(str(folder))
    terminal.say(f"next: cd {folder} && openenv validate && openenv serve")
