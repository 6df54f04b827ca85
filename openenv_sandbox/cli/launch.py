"""``openenv launch``: keep an environment until Ctrl-C."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.options import launch_arguments, launch_options
from openenv_sandbox.cli.progress import short, show_events
from openenv_sandbox.cli.terminal import EXIT_FAILURE

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.endpoint import Endpoint
    from openenv_sandbox.running import RunningSandbox


@click.command("launch", short_help="Launch and keep until Ctrl-C.")
@click.argument("image")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("-d", "--detach", is_flag=True, help="Leave it running; its lifetime, `stop` or `attach` ends it.")
@launch_options
@click.pass_obj
def command(terminal: Terminal, /, image: str, as_json: bool, detach: bool, **values: Any) -> int:
    """Launch IMAGE, print its URL, token, ref and expiry, and keep it until Ctrl-C.

    The first Ctrl-C removes the sandbox; a second one exits at once and prints what is left. Another shell uses it
    by `OPENENV_AUTH_TOKEN=… openenv run --url URL`.
    """
    return interrupt.run(terminal, _keep(terminal, image, as_json, detach, launch_arguments(values)))


async def _keep(terminal: Terminal, image: str, as_json: bool, detach: bool, arguments: dict[str, Any]) -> int:
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
        if detach:
            show(terminal, box, endpoint, started.token, as_json)
            await box.detach()
            terminal.say(f"left running; openenv stop {short(str(box.ref))} removes it")
            return 0
        return await hold(terminal, box, endpoint, started.token, as_json)


async def hold(terminal: Terminal, box: RunningSandbox, endpoint: Endpoint, token: str, as_json: bool) -> int:
    """Show the way to a sandbox and wait until its server ends."""
    show(terminal, box, endpoint, token, as_json)
    terminal.say("Ctrl-C removes it")
    ended = await box.wait_exit()
    terminal.say(f"the server ended by itself with code {ended.code}")
    return EXIT_FAILURE


def show(terminal: Terminal, box: RunningSandbox, endpoint: Endpoint, token: str, as_json: bool) -> None:
    """The way to a sandbox's server."""
    ends = box.info.expires_at or time.time() + box.spec.timeouts.effective_lifetime
    expires = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(ends))
    row = {"url": endpoint.url, "token": token, "ref": str(box.ref), "expires": expires}
    if endpoint.headers:
        row["headers"] = " ".join(sorted(endpoint.headers))
    if as_json:
        terminal.json(row)
    else:
        for name, value in row.items():
            terminal.data(f"{name:8} {value}")
