"""``openenv run``: one episode of given actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.options import json_object, launch_arguments, launch_options
from openenv_sandbox.cli.progress import show_events

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("run", short_help="Launch, reset, step, stop.")
@click.argument("image", required=False)
@click.option("--url", help="Use a server that runs already instead of launching IMAGE.")
@click.option("--token", envvar="OPENENV_AUTH_TOKEN", show_envvar=True, help="Token of the server at --url.")
@click.option("-a", "--action", "actions", multiple=True, metavar="JSON", help="A step: JSON or @FILE.")
@click.option("--reset", "reset_arguments", default="{}", metavar="JSON", help="Arguments of reset.")
@click.option("--step-timeout", type=float, metavar="S", help="Seconds per call; default as configured.")
@launch_options
@click.pass_obj
def command(
    terminal: Terminal,
    /,
    image: str | None,
    url: str | None,
    token: str | None,
    actions: tuple[str, ...],
    reset_arguments: str,
    step_timeout: float | None,
    **values: Any,
) -> None:
    """Launch IMAGE, reset it, take each --action as a step, print every result as a line of JSON, stop it.

    Example: openenv run ./envs/echo_env --action '{"type": "list_tools"}'
    """
    if (image is None) == (url is None):
        raise click.UsageError("give either IMAGE or --url")
    steps = [json_object(text, "--action") for text in actions]
    first = json_object(reset_arguments, "--reset")
    if url is not None:
        interrupt.run(terminal, _visit(terminal, url, token, first, steps, step_timeout or 60.0))
    else:
        assert image is not None
        interrupt.run(terminal, _episode(terminal, image, first, steps, step_timeout, launch_arguments(values)))


async def _visit(
    terminal: Terminal,
    url: str,
    token: str | None,
    first: dict[str, Any],
    steps: list[dict[str, Any]],
    step_timeout: float,
) -> None:
    from openenv_sandbox import GenericEnvClient

    headers = {"Authorization": f"Bearer {token}"} if token else None
    async with GenericEnvClient(base_url=url, message_timeout_s=step_timeout, headers=headers) as client:
        await _play(terminal, client, first, steps)


async def _episode(
    terminal: Terminal,
    image: str,
    first: dict[str, Any],
    steps: list[dict[str, Any]],
    step_timeout: float | None,
    arguments: dict[str, Any],
) -> None:
    from openenv_sandbox import GenericEnvClient, launch

    timeouts = arguments.pop("timeouts", {})
    if step_timeout is not None:
        timeouts["step"] = step_timeout
    with terminal.progress(f"launching {image}") as update:
        client = await launch(
            image, client=GenericEnvClient, on_event=show_events(terminal, update), timeouts=timeouts, **arguments
        )
    async with client:
        await _play(terminal, client, first, steps)


async def _play(terminal: Terminal, client: Any, first: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    _show(terminal, "reset", await client.reset(**first))
    for action in steps:
        _show(terminal, "step", await client.step(action))
    terminal.json({"call": "state", "state": await client.state()})


def _show(terminal: Terminal, call: str, result: Any) -> None:
    terminal.json({"call": call, "observation": result.observation, "reward": result.reward, "done": result.done})
