"""``openenv config``: every setting and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal

TEMPLATE = """\
# Settings of openenv for this project. Every line is commented out and shows its default or an example;
# `openenv config` shows what is in effect, and where it comes from.

# provider = "local"                  # backend; `openenv providers` lists them
# journal = "on"                      # on, off, network

# [image]
# registry = "ghcr.io/me"             # where images are pushed that the backend cannot build

# [build]
# base_image = "python:3.12-slim"     # replaces the base of every Dockerfile

# [spec]
# port = 8000

# [spec.resources]
# cpus = 2
# memory_mb = 4096

# [spec.timeouts]                     # seconds
# create = 300
# ready = 120
# step = 60
# episode = 3600

# [profiles.train]                    # chosen by OPENENV_PROFILE or profile="train"
# provider = "docker"
"""


@click.group("config", short_help="Show settings.", invoke_without_command=True)
@click.option("--profile", help="Profile of openenv.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, profile: str | None, as_json: bool) -> None:
    """Show every setting that is not a default, and where it comes from. Secrets are masked.

    Arguments go before variables, variables before openenv.toml, that before your own file.
    """
    if context.invoked_subcommand is not None:
        return
    from openenv_sandbox import config

    terminal: Terminal = context.obj
    settings = config.load(profile=profile)
    rows = [(one.name, one.value, one.source) for one in settings.explain()]
    terminal.table(("setting", "value", "from"), rows, as_json=as_json)
    for warning in settings.warnings:
        terminal.say(f"warning: {warning}")


@command.command("init")
@click.option("-o", "--output", default="openenv.toml", type=click.Path(path_type=Path), help="Default: openenv.toml.")
@click.pass_obj
def init(terminal: Terminal, output: Path) -> None:
    """Write an openenv.toml that explains every setting; one that exists is left alone."""
    from openenv_sandbox.errors import ConfigError

    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise ConfigError(f"{output} exists", hint="remove it first, or write elsewhere: --output FILE") from None
    terminal.data(str(output))
