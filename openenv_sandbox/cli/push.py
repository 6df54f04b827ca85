"""``openenv push``: an environment's folder as a Space of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli.options import pairs, secrets_of

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("push", short_help="Push an environment to the hub.")
@click.argument("path", default=".", type=click.Path(path_type=Path, resolve_path=True))
@click.option("-r", "--repo-id", metavar="OWNER/NAME", help="The Space; default: your account, the environment's name.")
@click.option("-b", "--base-image", help="Replaces the Dockerfile's base.")
@click.option("--interface/--no-interface", default=True, show_default=True, help="The page at /web.")
@click.option("--private/--public", default=None, help="Of a new Space; default: your account's.")
@click.option("-H", "--hardware", help='Of the hub\'s list, e.g. "cpu-basic".')
@click.option("-e", "--env", "variables", multiple=True, metavar="K=V", help="Variable, readable by everybody.")
@click.option("-s", "--secret", "secrets", multiple=True, metavar="NAME", help="Secret, read from $NAME.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Files that stay here.")
@click.option("--delete", multiple=True, metavar="GLOB", help="Files of the Space to remove.")
@click.option("--create-pr", is_flag=True, help="Open a pull request instead of changing the Space.")
@click.option("-m", "--message", default="Push by openenv", help="Of the commit.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as JSON.")
@click.pass_obj
def command(terminal: Terminal, /, path: Path, as_json: bool, **values: Any) -> None:
    """Create or update the Space of the environment in the folder PATH, and print its address.

    The hub builds the image; the openenv that runs here goes along. Needs `pip install 'openenv[hub]'` and a token.

    Example: openenv push ./my_env --repo-id me/my-env --dry-run
    """
    from openenv_sandbox.authoring.hub import Push, push

    values["variables"] = pairs(values["variables"], "--env")
    values["secrets"] = secrets_of(values["secrets"])
    with terminal.progress(f"pushing {path}") as update:
        done = push(path, Push(**values), on_log=update)
    if as_json:
        terminal.json(vars(done))
        return
    if done.dry_run:
        terminal.say(f"would {'create' if done.created else 'update'} {done.repo_id} with {len(done.files)} files:")
        terminal.table(["file", "bytes"], sorted(done.files.items()))
        for name in done.deleted:
            terminal.say(f"would remove {name}")
    terminal.data(done.url)
