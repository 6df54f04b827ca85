"""Entry point: finds the verb, runs it, and turns errors into one line and an exit code.

Exit codes: 0 success, 1 failure, 2 usage, 3 provider unavailable, 4 refused, 5 the environment raised, 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

# verb -> its line in the help; the module of the same name is imported only when the verb is used.
VERBS = {
    "providers": "Show every backend: installed, credentials, capabilities.",
    "run": "Launch an environment, reset it, take the given steps, stop it.",
    "launch": "Launch an environment and keep it until Ctrl-C.",
    "attach": "Take over a sandbox that was left running.",
    "exec": "Run a command in a sandbox.",
    "logs": "Show what a sandbox's server wrote.",
    "cp": "Copy into a sandbox or out of it.",
    "ps": "Show the sandboxes that the journal knows.",
    "stop": "Stop sandboxes.",
    "gc": "Remove what dead processes left behind.",
    "init": "Write a new environment.",
    "validate": "Check an environment: its files, then its server.",
    "build": "Build an environment's image.",
    "push": "Push an environment to the Hugging Face hub.",
    "fork": "Copy a Space of the hub into your account.",
    "install": "Install the client package of an environment from elsewhere.",
    "collect": "Collect rollouts of an environment into a folder.",
    "doctor": "Find what is wrong with this installation and machine.",
    "config": "Show every setting and where it comes from.",
    "completion": "Print shell completion.",
    "serve": "Run an environment's server here, without a sandbox.",
}


class Verbs(click.Group):
    """A group that imports a verb's module when the verb is used, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command."""
        if cmd_name not in VERBS:
            return None
        from openenv_sandbox.cli import older

        return older.with_flags(cmd_name, import_module(f"openenv_sandbox.cli.{cmd_name}").command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest verb in the error."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from openenv_sandbox.cli import older
            from openenv_sandbox.options import near

            if text := older.instead(args[0]):
                ctx.fail(text)
            ctx.fail(f"no such command {args[0]!r}{near(args[0], list(VERBS))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", count=True, help="Warnings and tracebacks; twice: debug output.")
@click.version_option(package_name="openenv", prog_name="openenv")
@click.pass_context
def cli(ctx: click.Context, verbose: int) -> None:
    """Run reinforcement-learning environments on any sandbox backend."""
    ctx.obj = Terminal(verbosity=verbose)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    terminal = Terminal(verbosity=0)
    given = list(sys.argv[1:] if args is None else args)
    with terminal.guard(verbose=any(a.startswith("-v") and set(a[1:]) == {"v"} for a in given)) as outcome:
        result: Any = cli.main(args=given, prog_name="openenv", standalone_mode=False)
        outcome.code = result if isinstance(result, int) else 0
    return outcome.code
