"""``openenv fork``: a copy of a Space in an own account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli.options import pairs, secrets_of

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("fork", short_help="Copy a Space into your account.")
@click.argument("source", metavar="OWNER/NAME")
@click.option("-r", "--repo-id", metavar="OWNER/NAME", help="The copy; default: your account and the same name.")
@click.option("--private/--public", default=None, help="Default: your account's.")
@click.option("-H", "--hardware", help='Of the hub\'s list, e.g. "cpu-basic".')
@click.option("-e", "--env", "variables", multiple=True, metavar="K=V", help="Variable, readable by everybody.")
@click.option("-s", "--secret", "secrets", multiple=True, metavar="NAME", help="Secret, read from $NAME.")
@click.pass_obj
def command(terminal: Terminal, /, source: str, **values: Any) -> None:
    """Copy the Space OWNER/NAME into your account, and print the copy's address.

    Secrets of the source are not copied: the hub tells them to nobody.
    """
    from openenv_sandbox.authoring.hub import fork

    values["variables"] = pairs(values["variables"], "--env")
    values["secrets"] = secrets_of(values["secrets"])
    with terminal.progress(f"copying {source}"):
        done = fork(source, **values)
    terminal.data(done.url)
