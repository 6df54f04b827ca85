"""Options that the launching verbs share, and how their values become arguments of `launch`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pydantic import SecretStr

F = TypeVar("F", bound="Callable[..., Any]")

_OPTIONS = (
    click.option("-p", "--provider", help="Backend; default $OPENENV_PROVIDER, else local."),
    click.option("--profile", help="Profile of openenv.toml."),
    click.option("-o", "--option", "options", multiple=True, metavar="K=V", help="Option of the backend; repeatable."),
    click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="Variable of the server; repeatable."),
    click.option("-s", "--secret", "secrets", multiple=True, metavar="NAME", help="Secret, read from $NAME."),
    click.option("--label", "labels", multiple=True, metavar="K=V", help="Label of the sandbox; repeatable."),
    click.option("--port", type=click.IntRange(1, 65535), help="Where the server listens inside; default 8000."),
    click.option("--command", "start_command", help="Replaces the image's command; runs by /bin/sh -c."),
    click.option("--cpus", type=float, help="Cores."),
    click.option("--memory", "memory_mb", type=int, metavar="MIB", help="Memory in MiB."),
    click.option("--gpus", metavar="MODEL[:N]", help='For example "H100:2".'),
    click.option("--network", type=click.Choice(["full", "none"]), help="What the workload may reach; default full."),
    click.option("--public", is_flag=True, help="Accept that anyone who knows the address reaches the port."),
    click.option("--trust", is_flag=True, help="Vouch for remote code in the image."),
    click.option("--pull", type=click.Choice(["missing", "always"]), help="Whether to ask the registry again."),
    click.option("--ready-timeout", type=float, metavar="S", help="Seconds until the server must answer."),
    click.option("--episode-timeout", type=float, metavar="S", help="Seconds that the sandbox is used at most."),
)


def launch_options(function: F) -> F:
    """Adds the shared options to a verb."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def launch_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `openenv_sandbox.launch` from the values of `launch_options`."""
    arguments: dict[str, Any] = {
        "provider": values["provider"],
        "profile": values["profile"],
        "options": _typed(pairs(values["options"], "--option")) or None,
        "env": pairs(values["env"], "--env"),
        "secrets": secrets_of(values["secrets"]),
        "labels": pairs(values["labels"], "--label"),
        "port": values["port"],
        "command": values["start_command"],
        "network": values["network"],
        "pull": values["pull"],
        "exposure": "public" if values["public"] else None,
        "trust": values["trust"] or None,
    }
    resources = {name: values[name] for name in ("cpus", "memory_mb", "gpus") if values[name] is not None}
    if resources:
        arguments["resources"] = resources
    timeouts = {"ready": values["ready_timeout"], "episode": values["episode_timeout"]}
    if any(value is not None for value in timeouts.values()):
        arguments["timeouts"] = {name: value for name, value in timeouts.items() if value is not None}
    return {name: value for name, value in arguments.items() if value not in (None, {})}


def pairs(items: Iterable[str], flag: str) -> dict[str, str]:
    """``K=V`` items as a dictionary."""
    result = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{item!r} is not K=V", param_hint=flag)
        result[name] = value
    return result


def secrets_of(names: Iterable[str]) -> dict[str, SecretStr]:
    """The values of environment variables, which no command line shows."""
    from pydantic import SecretStr

    return {name: SecretStr(_from_environment(name)) for name in names}


def json_object(text: str, flag: str) -> dict[str, Any]:
    """A JSON object given as text or as ``@file``."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"cannot read {text[1:]}: {error.strerror}", param_hint=flag) from None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=flag) from None
    if not isinstance(value, dict):
        raise click.BadParameter(f"a JSON object is needed, not {type(value).__name__}", param_hint=flag)
    return value


def _typed(options: Mapping[str, str]) -> dict[str, Any]:
    """Numbers, booleans and lists arrive as what they are; everything else stays text."""
    result: dict[str, Any] = {}
    for name, text in options.items():
        try:
            result[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            result[name.replace("-", "_")] = text
    return result


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise click.BadParameter(f"${name} is not set; secrets are read from the environment", param_hint="--secret")
    return value
