"""``openenv completion``: what a shell runs to complete verbs and options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("completion", short_help="Print shell completion.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def command(terminal: Terminal, shell: str) -> None:
    """Print the completion script of SHELL.

    bash: openenv completion bash >> ~/.bashrc, zsh likewise, fish: > ~/.config/fish/completions/openenv.fish
    """
    from openenv_sandbox.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    terminal.data(kind(cli, {}, "openenv", "_OPENENV_COMPLETE").source())
