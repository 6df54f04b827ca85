"""``openenv doctor``: what could be wrong, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.options import launch_arguments, launch_options
from openenv_sandbox.cli.progress import show_events

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("doctor", short_help="Find what is wrong.")
@click.option("--live", metavar="IMAGE", help="Launch IMAGE, use it, and delete it, with the time of each stage.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@launch_options
@click.pass_obj
def command(terminal: Terminal, /, live: str | None, as_json: bool, **values: Any) -> int:
    """Look at Python, the installation, engines, sockets, extras, settings and leftovers. Exit code 1 for an error.

    No network is used, but for --live, which takes the options of launch.

    Example: openenv doctor --live ./envs/echo_env --provider docker
    """
    from openenv_sandbox.doctor import examine

    if live is not None:
        return _live(terminal, live, as_json, launch_arguments(values))
    found = examine()
    if as_json:
        terminal.json([asdict(one) for one in found])
    else:
        terminal.table(("subject", "level", "seen", "do"), [(f.subject, f.level, f.text, f.remedy) for f in found])
    return 1 if any(one.level == "error" for one in found) else 0


def _live(terminal: Terminal, image: str, as_json: bool, arguments: dict[str, Any]) -> int:
    from openenv_sandbox.doctor.live import try_out

    with terminal.progress(f"launching {image}") as update:
        stages = interrupt.run(terminal, try_out(image, on_event=show_events(terminal, update), **arguments))
    rows = [(name, round(seconds, 3), said) for name, seconds, said in stages]
    terminal.table(("stage", "seconds", "seen"), rows, as_json=as_json)
    return 0
