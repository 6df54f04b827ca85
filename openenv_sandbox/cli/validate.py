"""``openenv validate``: what the users of an environment may rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.options import json_object
from openenv_sandbox.cli.progress import show_events

if TYPE_CHECKING:
    from openenv_sandbox.authoring.checks import Report
    from openenv_sandbox.cli.terminal import Terminal

_MARKS = {True: "ok", False: "FAILED", None: "not checked"}


@click.command("validate", short_help="Check an environment.")
@click.argument("target", default=".")
@click.option("--url", help="A server that runs already, instead of a folder.")
@click.option("--token", envvar="OPENENV_AUTH_TOKEN", show_envvar=True, help="Token of the server at --url.")
@click.option("-p", "--provider", default="local", show_default=True, help="Backend that runs the folder's server.")
@click.option("-a", "--action", "actions", multiple=True, metavar="JSON", help="A step to take: JSON or @FILE.")
@click.option("--level", type=click.Choice(["static", "runtime"]), default="runtime", help="static: files only.")
@click.option("--build", "with_image", is_flag=True, help="Build the image as well, and tell its size.")
@click.option("--timeout", type=float, default=30.0, show_default=True, metavar="S", help="For one request.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the report as JSON into a file.")
@click.pass_obj
def command(
    terminal: Terminal,
    target: str,
    url: str | None,
    token: str | None,
    provider: str,
    actions: tuple[str, ...],
    level: str,
    with_image: bool,
    timeout: float,
    as_json: bool,
    output: Path | None,
) -> int:
    """Check the environment in the folder TARGET: its files, then its server. Exit code 1 where it fails."""
    steps = [json_object(text, "--action") for text in actions]
    if url is None and target.startswith(("http://", "https://")):
        url = target
    with terminal.progress(f"validating {url or target}") as update:
        if url is not None:
            from openenv_sandbox.authoring.checks import validate_url

            headers = {"Authorization": f"Bearer {token}"} if token else None
            work = validate_url(url, headers=headers, actions=steps, timeout=timeout)
        else:
            work = _folder(terminal, update, Path(target).resolve(), steps, provider, level, with_image, timeout)
        report = interrupt.run(terminal, work)
    if output is not None:
        output.write_text(json.dumps(report.to_dict(), indent=2, default=str) + "\n", encoding="utf-8")
    _show(terminal, report, as_json)
    return 0 if report.passed else 1


async def _folder(
    terminal: Terminal,
    update: Any,
    path: Path,
    steps: list[dict[str, Any]],
    provider: str,
    level: str,
    with_image: bool,
    timeout: float,
) -> Report:
    from openenv_sandbox.authoring.checks import image, validate_folder

    report = await validate_folder(
        path,
        run=level == "runtime",
        actions=steps,
        timeout=timeout,
        on_event=show_events(terminal, update),
        provider=provider,
    )
    if with_image:
        await image.check(report, path, on_log=update)
    return report


def _show(terminal: Terminal, report: Report, as_json: bool) -> None:
    if as_json:
        terminal.json(report.to_dict())
        return
    rows = [
        (one.id, "warning" if one.passed is False and not one.required else _MARKS[one.passed], one.details)
        for one in report.criteria
    ]
    terminal.table(["criterion", "outcome", "details"], [*rows, *((k, "", v) for k, v in report.measured.items())])
    terminal.say(f"{report.target}: {'passed' if report.passed else 'failed'}")
