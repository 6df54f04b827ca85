"""``openenv install``: the client package of an environment from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("install", short_help="Install an environment's client package.")
@click.argument("source", metavar="SOURCE")
@click.option("--trust", is_flag=True, help="Vouch for the code, which runs when it is built and imported.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(terminal: Terminal, source: str, trust: bool, as_json: bool) -> None:
    """Install the package behind SOURCE, hf://org/space or git+https://…, at one commit into this Python.

    This openenv stays: a package that brings in openenv-core has it removed again.

    Example: openenv install hf://org/space --trust
    """
    from openenv_sandbox.auto.installing import install

    with terminal.progress(f"fetching {source}") as update:
        done = install(source, trust=trust, on_log=update)
    if as_json:
        terminal.json({"package": done.package, "version": done.version, "source": done.source, "fresh": done.fresh})
        return
    terminal.data(f"{done.package} {done.version} from {done.source}")
    if not done.fresh:
        terminal.say("it was there already")
