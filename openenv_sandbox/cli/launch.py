"""``openenv launch``: keep an environment until Ctrl-C."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.options import launch_arguments, launch_options
from openenv_sandbox.cli.progress import show_events
from openenv_sandbox.cli.terminal import EXIT_FAILURE

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("launch", short_help="Launch and keep until Ctrl-C.")
@click.argument("image")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@launch_options
@click.pass_obj
def command(terminal: Terminal, /, image: str, as_json: bool, **values: Any) -> int:
    """Launch IMAGE, print its URL, token, ref and expiry, and keep it until Ctrl-C.

    The first Ctrl-C removes the sandbox; a second one exits at once and prints what is left. Another shell uses it
    by `OPENENV_AUTH_TOKEN=… openenv run --url URL`.
    """
    return interrupt.run(terminal, _keep(terminal, image, as_json, launch_arguments(values)))


async def _keep(terminal: Terminal, image: str, as_json: bool, arguments: dict[str, Any]) -> int:
    from openenv_sandbox import pipeline
    from openenv_sandbox.request import Request

    request = Request(image, **{name: arguments.pop(name, None) for name in ("provider", "options", "profile")})
    request.fields = arguments
    with terminal.progress(f"launching {image}") as update:
        request.on_event = show_events(terminal, update)
        started = await pipeline.start(request, serve=True)
    box, endpoint = started.running, started.endpoint
    assert endpoint is not None
    async with box:
        ends = box.info.expires_at or time.time() + box.spec.timeouts.effective_lifetime
        expires = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(ends))
        row = {"url": endpoint.url, "token": started.token, "ref": str(box.ref), "expires": expires}
        if endpoint.headers:
            row["headers"] = " ".join(sorted(endpoint.headers))
        if as_json:
            terminal.json(row)
        else:
            for name, value in row.items():
                terminal.data(f"{name:8} {value}")
        terminal.say("Ctrl-C removes it")
        ended = await box.wait_exit()
    terminal.say(f"the server ended by itself with code {ended.code}")
    return EXIT_FAILURE
