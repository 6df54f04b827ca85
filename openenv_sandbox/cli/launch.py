"""``openenv launch``: keep an environment until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli.options import launch_arguments, launch_options
from openenv_sandbox.cli.progress import show_events
from openenv_sandbox.cli.terminal import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("launch", short_help="Launch and keep until Ctrl-C.")
@click.argument("image")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@launch_options
@click.pass_obj
def command(terminal: Terminal, /, image: str, as_json: bool, **values: Any) -> None:
    """Launch IMAGE, print its URL, ref and expiry, and keep it until Ctrl-C.

    The first Ctrl-C removes the sandbox; a second one exits at once and prints what is left.
    """
    asyncio.run(_keep(terminal, image, as_json, launch_arguments(values)))


async def _keep(terminal: Terminal, image: str, as_json: bool, arguments: dict[str, Any]) -> None:
    from openenv_sandbox import sandbox

    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _Interrupt(terminal, task))
    update = None
    try:
        with terminal.progress(f"launching {image}") as update:
            handle = await sandbox(image, on_event=show_events(terminal, update), **arguments)
        async with handle:
            endpoint = await handle.endpoint(handle.spec.port)
            ends = handle.info.expires_at or time.time() + handle.spec.timeouts.effective_lifetime
            expires = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(ends))
            row = (endpoint.url, str(handle.ref), expires, " ".join(sorted(endpoint.headers)))
            terminal.table(("url", "ref", "expires", "headers"), [row], as_json=as_json)
            terminal.say("Ctrl-C removes it")
            await handle.wait_exit()
    except asyncio.CancelledError:
        terminal.say("removed")
        raise KeyboardInterrupt from None


class _Interrupt:
    """First signal: unwind, which cleans up. Second: leave at once and say what is left."""

    def __init__(self, terminal: Terminal, task: asyncio.Task[Any]) -> None:
        self.terminal, self.task, self.count = terminal, task, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == 1:
            self.terminal.say("removing the sandbox (Ctrl-C again leaves at once)")
            self.task.cancel()
            return
        from openenv_sandbox.launcher import live_refs

        for ref in live_refs():
            self.terminal.say(f"left: {ref}; remove it with: openenv stop {ref}")
        os._exit(EXIT_INTERRUPTED)
