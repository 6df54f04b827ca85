"""The only printer: data goes to stdout, talk to stderr; tables and spinners only where a person looks."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

EXIT_FAILURE, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_REFUSED, EXIT_ENVIRONMENT, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Outcome:
    """Holds the exit code of a guarded block."""

    code: int = 0


class Terminal:
    """Prints.

    Args:
        verbosity: 0 results and progress, 1 also warnings and tracebacks, 2 also debug output.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self.interactive = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.pretty = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        if verbosity:
            logging.basicConfig(
                stream=sys.stderr,
                level=logging.DEBUG if verbosity > 1 else logging.WARNING,
                format="%(levelname)s %(name)s: %(message)s",
            )

    def data(self, value: str) -> None:
        """One line of result; as it is, but for a person's terminal."""
        value = _harmless(value) if self.pretty else value
        try:
            print(value, flush=True)
        except UnicodeEncodeError:
            print(value.encode("ascii", "backslashreplace").decode(), flush=True)

    def say(self, text: str) -> None:
        """One line of talk."""
        text = _harmless(text)
        try:
            print(text, file=sys.stderr, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=sys.stderr, flush=True)

    def raw(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """Bytes as they are."""
        target = getattr(sys, stream)
        target.flush()
        target.buffer.write(data)
        target.buffer.flush()

    def json(self, value: Any) -> None:
        """A result as JSON, one line."""
        self.data(json.dumps(value, default=_jsonable, ensure_ascii=False))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool = False) -> None:
        """A listing: JSON objects, a table on a terminal, tab-separated lines in a pipe."""
        cells = [["" if cell is None else cell for cell in row] for row in rows]
        if as_json:
            self.json([dict(zip(columns, row, strict=True)) for row in cells])
        elif self.pretty:
            from rich.console import Console
            from rich.table import Table

            table = Table(box=None, pad_edge=False, header_style="bold")
            for column in columns:
                table.add_column(column, overflow="fold")
            for row in cells:
                table.add_row(*(_escape(str(cell)) for cell in row))
            Console().print(table)
        else:
            for row in [list(columns), *cells]:
                self.data("\t".join(" ".join(str(cell).split()) for cell in row))

    def clear(self) -> None:
        """An empty screen, where there is one."""
        if self.pretty:
            from rich.console import Console

            Console().clear()

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """A spinner on a terminal; elsewhere each new text is a line. Yields the function that changes the text."""
        if self.interactive and not self.verbosity:
            from rich.console import Console

            with Console(stderr=True).status(_escape(text)) as status:
                yield lambda new: status.update(_escape(new))
            return
        last = text
        self.say(text)

        def update(new: str) -> None:
            nonlocal last
            if new != last:
                last = new
                self.say(new)

        yield update

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Callable[[str], None]]:
        """A bar on a terminal; elsewhere a line for each step. Yields the function that tells one step done."""
        if self.interactive and not self.verbosity:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, console=Console(stderr=True)) as progress:
                task = progress.add_task(_escape(text), total=total)
                yield lambda step: progress.update(task, advance=1, description=_escape(step))
            return
        self.say(text)
        done = 0

        def advance(step: str) -> None:
            nonlocal done
            done += 1
            self.say(f"{done}/{total} {step}")

        yield advance

    @contextmanager
    def guard(self, *, verbose: bool = False) -> Iterator[Outcome]:
        """Turn what a verb raises into one line, a hint and an exit code."""
        import click

        outcome = Outcome()
        try:
            yield outcome
        except click.ClickException as error:
            outcome.code = error.exit_code
            error.show()
        except (click.Abort, KeyboardInterrupt):
            outcome.code = EXIT_INTERRUPTED
            self.say("interrupted")
        except BrokenPipeError:
            # The reader has gone; Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            outcome.code = exit_code(error)
            if verbose:
                traceback.print_exc()
            else:
                self.say(f"openenv: {_text(error)}")


def exit_code(error: BaseException) -> int:
    """The exit code that fits an error."""
    from openenv_sandbox import errors

    table: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
        ((errors.CapabilityError, errors.TrustError, errors.CircuitOpen), EXIT_REFUSED),
        ((errors.ConfigError, errors.ImageError, errors.UnknownProvider), EXIT_USAGE),
        (
            (errors.ProviderUnavailable, errors.MissingExtraError, errors.BrokenExtraError, errors.AuthError),
            EXIT_UNAVAILABLE,
        ),
        ((errors.EnvironmentError_,), EXIT_ENVIRONMENT),
    )
    return next((code for classes, code in table if isinstance(error, classes)), EXIT_FAILURE)


def _text(error: BaseException) -> str:
    from openenv_sandbox.errors import OpenEnvError
    from openenv_sandbox.redact import mask

    text = str(error) if isinstance(error, OpenEnvError) else f"{type(error).__name__}: {error}"
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    return mask(text + notes)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(_harmless(text))


def _harmless(text: str) -> str:
    """Without characters that control a terminal: names, logs and errors come from strangers."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", " "))


def _jsonable(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)
