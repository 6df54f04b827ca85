"""Verbs and flags of the older command line that are not here: each says what to use instead, with exit code 2."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

VERBS = {
    "import": "put the code behind an Environment of your own: openenv init NAME writes one to begin with",
    "discover": "what is installed: python -c 'from openenv import AutoEnv; AutoEnv.list_environments()'",
    "harbor": "its tasks run in sandboxes of openenv_sandbox.sandbox(IMAGE), or by harbor's own command",
    "skills": "openenv VERB --help and the documentation say what a verb does",
    "catalog": "a Space of the hub is named hf://org/space, as in openenv launch hf://org/space --trust",
}
_BUILDS = "the folder's Dockerfile, else its server/Dockerfile, is built"
FLAGS = {
    "build": {"-c/--context": "the context is the folder PATH", "-f/--dockerfile": _BUILDS},
    "push": {
        "--registry": "openenv build -t REGISTRY/NAME:TAG, then docker push",
        "-n/--count": "one push makes one Space: repeat it with another --repo-id",
        "--namespace": "--repo-id OWNER/NAME",
    },
    "validate": {
        "--skip-build": "nothing is built unless --build asks for it",
        "--local": "the folder runs on --provider, which is local by default",
        "--policy": "there is one set of criteria",
        "--verbose": "openenv -v validate",
    },
}
"""Verb to its older flags and what to use; whatever follows a flag is not looked at."""


def instead(verb: str) -> str | None:
    """What is said for an older verb; None for any other."""
    return f"there is no verb {verb!r} any more; {VERBS[verb]}" if verb in VERBS else None


def with_flags(verb: str, command: click.Command) -> click.Command:
    """The command with the older flags as hidden options; those that it has by itself stay its own."""
    taken = {name for option in command.params for name in option.opts}
    for names, use in FLAGS.get(verb, {}).items():
        spelt = [name for name in names.split("/") if name not in taken]
        if spelt:
            tell = partial(_refuse, spelt[-1], use)
            command.params.append(click.Option(spelt, is_flag=True, hidden=True, expose_value=False, callback=tell))
    return command


def _refuse(name: str, use: str, context: click.Context, option: click.Parameter, value: Any) -> None:
    if value and not context.resilient_parsing:
        raise click.UsageError(f"{name} is not an option any more: {use}", context)
