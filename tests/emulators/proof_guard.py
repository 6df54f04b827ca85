"""Two guards around every emulated test: nothing blocks the loop, and the vendor's SDK is the one pip installed."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import inspect
import os
import sys
import threading
import types
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from openenv_sandbox.provider import SandboxProvider

REPO = Path(__file__).resolve().parents[2]
OWN = (str(REPO / "tests"), str(REPO / "openenv_sandbox" / "testing"))
OURS = (str(REPO / "openenv_sandbox"), str(REPO / "providers"))
MUTANTS = str(REPO / "tests" / "emulators" / "proof_mutants.py")
"""Stands for a provider."""
# What runs the tests; it stands below everything on the stack.
RUNNERS = ("/_pytest/", "/pytest", "/pluggy/", "/anyio/", "/blockbuster/", "/hypothesis/", "/pytest_recording/")


@dataclass(frozen=True)
class MayBlock:
    """One call that may block the event loop, for a reason that a reader accepts.

    Attributes:
        call: As blockbuster names it: ``os.stat``.
        file: End of the path of the file that holds `function`.
        function: A function that is on the stack.
        reason: Why this cannot be helped, and why it is short.
    """

    call: str
    file: str
    function: str
    reason: str


EVERYWHERE = tuple(
    MayBlock(call, "/rich/__init__.py", "<module>", "httpx imports it, once, when it is used for the first time")
    for call in ("os.getcwd", "os.path.abspath")
)


class BlockingGuard:
    """Within it a blocking call on this thread's loop by core, a provider or an SDK is an error, and is remembered.

    Remembered, because an SDK that catches everything would hide the error. The emulator has a loop of its own, in a
    thread of its own, which may block; so may the tests themselves.
    """

    def __init__(self, exemptions: Sequence[MayBlock] = ()) -> None:
        import _queue

        from blockbuster import BlockBuster, BlockBusterFunction

        self.found: list[str] = []
        self._exemptions, self._thread = exemptions, threading.get_ident()
        self._guard = BlockBuster(scanned_modules=None)
        self._guard.functions["os.fsync"] = BlockBusterFunction(os, "fsync")
        self._guard.functions["fcntl.flock"] = BlockBusterFunction(fcntl, "flock")
        self._guard.functions["queue.SimpleQueue.get"] = BlockBusterFunction(_queue.SimpleQueue, "get")
        for name, function in self._guard.functions.items():
            function.can_block_predicate = self._predicate(name, function)

    def _predicate(self, name: str, function: Any) -> Callable[..., bool]:
        allowed = function.can_block_predicate

        def may_block(*args: Any, **kwargs: Any) -> bool:
            if threading.get_ident() != self._thread or allowed(*args, **kwargs):
                return True
            stack = list(_stack())
            allowed_in = [*function.can_block_functions, LOGGING]
            allowed_in += [
                (rule.file, {rule.function}) for rule in (*EVERYWHERE, *self._exemptions) if rule.call == name
            ]
            if any(f.path.endswith(file) and f.function in names for f in stack for file, names in allowed_in):
                return True
            if not guilty(stack):
                return True
            shown = [frame for frame in stack if "importlib" not in frame.path][1:11]
            where = " < ".join(f"{frame.path.rpartition('/')[2]}:{frame.function}" for frame in shown)
            self.found.append(f"{name} ({where})")
            return False

        return may_block

    def __enter__(self) -> BlockingGuard:
        self._guard.activate()
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.deactivate()


class Frame(NamedTuple):
    """One frame of a stack; ``waits`` for a coroutine's."""

    path: str
    function: str
    waits: bool = False


def _stack() -> Iterator[Frame]:
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        waits = bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))
        yield Frame(code.co_filename.replace("\\", "/"), code.co_name, waits)
        frame = frame.f_back


# A handler of the test run's own writes to its terminal or its capture file.
LOGGING = ("/logging/__init__.py", {"emit"})


def guilty(stack: Iterable[Frame]) -> bool:
    """Whether a blocking call, seen from the inside outwards, is core's, a provider's or an SDK's, not a test's.

    A test that calls a plain function of ours on its loop has itself to blame; what it awaits has not.
    """
    suspects: list[Frame] = []
    for frame in stack:
        if frame.path == MUTANTS:
            return True
        if frame.path.startswith(OWN):
            return any(suspect.waits for suspect in suspects)
        library = "/site-packages/" in frame.path and not any(runner in frame.path for runner in RUNNERS)
        if frame.path.startswith(OURS) or library:
            suspects.append(frame)
    return bool(suspects)


def distributions(provider: type[SandboxProvider]) -> list[str]:
    """Names of the distributions that hold the provider's SDK."""
    owners = metadata.packages_distributions()
    # A namespace such as azure belongs to many.
    roots = {module.split(".")[0] for module in provider.sdk}
    found = {name for root in roots for name in owners.get(root, [])}
    return sorted(name for name in found if any(_holds(name, module) for module in provider.sdk))


def _holds(name: str, module: str) -> bool:
    path = module.replace(".", "/")
    files = metadata.distribution(name).files or []
    return any(str(file) in (f"{path}/__init__.py", f"{path}.py") for file in files)


def altered(names: Iterable[str]) -> list[str]:
    """Files of these distributions that are not what their RECORD says."""
    found = []
    for name in names:
        files = [file for file in metadata.distribution(name).files or [] if file.hash is not None]
        if not files:
            found.append(f"{name}: has no RECORD")
        for file in files:
            if file.suffix == ".pyc" or file.hash is None:
                continue
            try:
                data = Path(str(file.locate())).read_bytes()
            except OSError as error:
                found.append(f"{file}: {error.strerror}")
                continue
            digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, data).digest()).rstrip(b"=").decode()
            if digest != file.hash.value:
                found.append(f"{file}: is not what RECORD says")
    return found


class SdkFiles:
    """Which distributions are in use, each looked at when it is named first."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def use(self, provider: type[SandboxProvider], names: Sequence[str] = ()) -> None:
        """Look at the SDK of a provider, unless that was done."""
        new = set(names or distributions(provider)) - self._names
        assert altered(sorted(new)) == []
        self._names |= new

    def altered(self) -> list[str]:
        """Look at all of them again."""
        return altered(sorted(self._names))


def replaced(roots: Iterable[str]) -> list[str]:
    """Functions and classes in the loaded modules of these packages that come from this repository."""
    found = []
    wanted = tuple(roots)
    for name, module in sorted(sys.modules.items()):
        if module is None or name.split(".")[0] not in wanted:
            continue
        for attribute, value in list(vars(module).items()):
            holders = [(attribute, value)]
            if isinstance(value, type) and str(value.__module__).split(".")[0] in wanted:
                holders += [(f"{attribute}.{key}", inner) for key, inner in list(vars(value).items())]
            found += [f"{name}.{key}" for key, inner in holders if ours(_source(inner))]
    return found


def ours(path: str) -> bool:
    """Whether a source file is this repository's; an environment inside it is not."""
    return path.startswith(f"{REPO}/") and "/site-packages/" not in path


def _source(value: Any) -> str:
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    return code.co_filename if isinstance(code, types.CodeType) else ""
