"""The contract of a backend.

A provider translates: a `SandboxSpec` into the backend's create call, the backend's objects into ours, its errors into
ours. Everything else (deadlines, retries, labels, cleanup, readiness, the shell wrapper around commands, files) is
core's, once. The ``Raises`` lists below are the index of the contract suite in `openenv_sandbox.testing`.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_sandbox.capabilities import Capabilities
from openenv_sandbox.endpoint import Endpoint
from openenv_sandbox.errors import BrokenExtraError, CapabilityError, MissingExtraError
from openenv_sandbox.values import (
    KEY,
    Check,
    Exit,
    Image,
    ImageConfig,
    LogSink,
    OutputSink,
    Prepared,
    RawResult,
    SandboxInfo,
    SandboxRef,
    Status,
    Verified,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pydantic import BaseModel

    from openenv_sandbox.spec import SandboxSpec

__all__ = [
    "Check",
    "Endpoint",
    "Exit",
    "Image",
    "ImageConfig",
    "LogSink",
    "OutputSink",
    "Prepared",
    "RawResult",
    "Sandbox",
    "SandboxInfo",
    "SandboxProvider",
    "SandboxRef",
    "Status",
    "Verified",
    "default_check",
    "import_sdk",
    "install_hint",
]


class Sandbox(ABC):
    """One sandbox, as a provider offers it. Users hold core's `openenv_sandbox.RunningSandbox`, which wraps it."""

    info: SandboxInfo

    @property
    def ref(self) -> SandboxRef:
        """Its name."""
        return self.info.ref

    @abstractmethod
    async def exec_raw(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        user: str | None,
        stdin: bytes | AsyncIterator[bytes] | None,
        on_output: OutputSink,
    ) -> RawResult:
        """Run one command and wait for its end.

        Core passes only what `ExecCapabilities` declares and enforces the deadline. ``on_output`` is called on the
        event loop, in order, while the command runs where ``stream`` is declared. Cancelling may leave the command
        running; core kills it by a second command unless ``kill`` is declared.

        Args:
            argv: Program and arguments; never a shell string.
            env: Additional variables.
            cwd: Working directory; None for the image's.
            user: User; None for the image's.
            stdin: Whole input, or an iterator where ``stdin_stream`` is declared; None for an empty one.
            on_output: Receives output.

        Raises:
            ExecError: The program does not exist or cannot be run.
            SandboxGone: The sandbox ended before or meanwhile.
        """

    async def put(self, path: str, data: bytes) -> None:
        """Write a small file (up to 1 MiB), readable by the user that `exec_raw` runs as.

        Only for backends whose commands take no stdin: core hands input and environment over by such a file, because
        an argument list is readable by others. Declared by `Capabilities.put`.

        Raises:
            FileError: It cannot be written.
            SandboxGone: The sandbox does not exist.
        """
        raise self._unsupported("put")

    @abstractmethod
    async def endpoint(self, port: int) -> Endpoint:
        """The way to ``port``.

        Raises:
            CapabilityError: The port was not declared at create and the backend needs that.
            EndpointError: There is none now; ``retryable`` says whether one may appear.
            SandboxGone: The sandbox does not exist.
        """

    @abstractmethod
    async def wait_exit(self) -> Exit:
        """Return when the main process has ended (for ``start="exec"``: the sandbox).

        Event-driven where the backend has events. Cancelled by core at any time without trace; begun again where it
        raises what is ``retryable``. Anything else that it raises is taken for the end.
        """

    async def first_output(self) -> None:
        """Return when the server has written something: a hint that wakes the readiness probe. Default: never."""
        import asyncio

        await asyncio.get_running_loop().create_future()

    @abstractmethod
    async def delete(self) -> None:
        """Like `SandboxProvider.delete` for this sandbox."""

    async def extend(self, lifetime_s: float) -> float:
        """Move the end to ``lifetime_s`` seconds from now, never nearer. Returns the new end as Unix time.

        Raises:
            CapabilityError: The lifetime is fixed.
            SandboxGone: The sandbox does not exist.
        """
        raise self._unsupported("extend")

    async def keep_alive(self) -> None:
        """Reset the backend's idle timer (``lifetime="idle-only"``, or `Capabilities.keep_alive_s` is given)."""
        raise self._unsupported("keep_alive")

    async def pause(self) -> None:
        """Freeze every process.

        Raises:
            CapabilityError: Not offered.
            SandboxGone: The sandbox does not exist.
        """
        raise self._unsupported("pause")

    async def resume(self) -> None:
        """Undo `pause`."""
        raise self._unsupported("resume")

    async def snapshot(self) -> Prepared:
        """Keep the present state; the result boots by `SandboxProvider.create` and is removed by ``drop``."""
        raise self._unsupported("snapshot")

    async def logs(self, *, tail: int | None = None) -> bytes:
        """What the main process wrote so far; with ``tail`` its last lines."""
        raise self._unsupported("logs")

    async def aclose(self) -> None:
        """Drop local resources only; the sandbox lives on. May be called twice."""

    def _unsupported(self, what: str) -> CapabilityError:
        return CapabilityError(f"{self.ref.provider} has no {what}", field=what, ref=self.ref)


class SandboxProvider(ABC):
    """A backend.

    Class attributes are facts that listing shows without importing an SDK; a module of a provider imports only the
    standard library, pydantic and this contract at top level.

    Attributes:
        name: As written in configuration: ``[a-z0-9-]+``.
        title: As people write it.
        extra: The extra of this distribution that brings the SDK; None when nothing is to be installed.
        sdk: Modules that the constructor imports.
        python: Lowest Python the SDK supports.
        requires: What pip installs to get the SDK, where that is not an extra of this distribution.
        env_vars: Variables that carry credentials, all of them needed; `check` names those that are missing. A backend
            with several ways to log in overrides `check` instead.
        capabilities: What it can do.
        Options: Its own options; unknown keys are errors. Fields marked by `trusted` are not taken from project files.
        verified: How it is proven.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    extra: ClassVar[str | None] = None
    sdk: ClassVar[tuple[str, ...]] = ()
    python: ClassVar[tuple[int, int]] = (3, 10)
    requires: ClassVar[str] = ""
    env_vars: ClassVar[tuple[str, ...]] = ()
    capabilities: ClassVar[Capabilities] = Capabilities()
    Options: ClassVar[type[BaseModel]]
    verified: ClassVar[Verified] = Verified()

    def __init__(self, options: Any = None) -> None:
        """Import the SDK; no network, no client yet. Core calls this in a worker thread.

        Args:
            options: An instance of ``Options``, a mapping, or None for the defaults.

        Raises:
            MissingExtraError: The SDK is not installed, or this Python is below its floor.
            BrokenExtraError: The SDK is installed and does not import.
            ConfigError: An option is unknown or malformed.
        """
        self.options = self.parse_options(options)
        import_sdk(type(self))

    @classmethod
    def parse_options(cls, options: Any) -> Any:
        """An instance of ``Options`` from an instance, a mapping or None.

        Raises:
            ConfigError: An option is unknown (with the nearest match) or malformed.
        """
        from openenv_sandbox.options import validate_options

        return validate_options(cls, options)

    @classmethod
    def check(cls, options: Any = None) -> Check:
        """Whether this could work, without importing the SDK or using the network (local sockets and files yes).

        Never raises. The default looks for the SDK and for ``env_vars``.
        """
        return default_check(cls)

    def effective_capabilities(self) -> Capabilities:
        """What this instance can do on this machine and with these options; ``capabilities`` is the usual case."""
        return self.capabilities

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """The spec as this backend can honour it, called before anything is created and after the general checks.

        For rules that `Capabilities` cannot express: sizes that are sold only together, models, combinations. Sizes
        may be rounded up, nothing else changed. No network.

        Raises:
            CapabilityError: It cannot; names the field.
        """
        return spec

    @abstractmethod
    def scope(self) -> str:
        """What ids belong to: endpoint and account, namespace, region or daemon. Not secret, stable, no network."""

    def prepare_key(self, spec: SandboxSpec, image: Image) -> str:
        """What preparing depends on; core prepares once per key and caches by it.

        The default is the digest where there is one, else the name. Backends that bake sizes in add them.
        """
        return f"{self.name}:{image.kind}:{image.digest or image.name}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """Make ``image`` bootable; the default returns its name. Runs under its own timer.

        Raises:
            BuildError: With the end of the log.
            ImageError: The image does not exist or cannot be booted here.
        """
        return Prepared(ref=image.name, image=image.config, digest=image.digest)

    @abstractmethod
    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Create one sandbox.

        ``spec`` is complete: labels include ours (`openenv_sandbox.values.KEY` and three more), ``command`` is what to
        start (None: the image's own; on ``start="exec"`` nothing is started here), ``timeouts.effective_lifetime`` is
        the server-side end, counted from now. Finishes or fails by itself, within about ``timeouts.create``: core never
        cancels it. On failure it removes what it half made. ``key`` is at most 24 of ``[a-z0-9-]``.

        Raises:
            AuthError, QuotaExceeded, RateLimited, ImageError, CapabilityError, CreateTimeout, ProviderUnavailable,
                ProviderError: ``outcome`` says whether something may exist.
        """

    async def find(self, key: str) -> Sequence[SandboxRef]:
        """Every sandbox made with ``key``, what leads back after a lost reply. Empty when none.

        In any state, paused included; those that have ended only where `Capabilities.lists_ended`; never those whose
        delete was accepted. What create made beside a sandbox counts even where there is no sandbox: it is named by a
        ref that `attach` answers with `SandboxGone` and `delete` removes.

        The default looks for the label in `list`. A backend that finds by name, or not at all, has its own.
        """
        return [info.ref async for info in self.list({KEY: key}) if info.ref.key == key]

    @abstractmethod
    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over a sandbox made by another process, or by a create whose reply was lost, once it takes commands.

        Raises:
            SandboxGone: It does not exist.
        """

    @abstractmethod
    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox in `scope` that has all ``labels``, in any state, and what stands for one; as `find`."""

    @abstractmethod
    async def delete(self, ref: SandboxRef) -> None:
        """Remove the sandbox and everything made beside it, and return when that is certain or accepted.

        Deleting what does not exist succeeds.
        """

    async def list_prepared(self) -> Sequence[Prepared]:
        """What `prepare` and snapshots left behind and `drop` may remove."""
        return []

    async def drop(self, prepared: Prepared) -> None:
        """Remove one of those. Dropping what does not exist succeeds."""

    async def aclose(self) -> None:
        """Close clients and threads. May be called twice."""


def import_sdk(cls: type[SandboxProvider]) -> None:
    """Import ``cls.sdk`` or raise the error that says what to do."""
    if not cls.sdk:
        return
    if sys.version_info < cls.python:
        floor = ".".join(map(str, cls.python))
        raise MissingExtraError(
            f"the {cls.title} SDK needs Python {floor} or later", provider=cls.name, hint=f"run on Python {floor}+"
        )
    for module in cls.sdk:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            wanted = module.split(".")
            if error.name and error.name in (".".join(wanted[: n + 1]) for n in range(len(wanted))):
                raise MissingExtraError(
                    f"{cls.title} needs a package that is not installed ({module})",
                    provider=cls.name,
                    hint=install_hint(cls),
                ) from error
            raise _broken(cls, module, error) from error
        except Exception as error:
            raise _broken(cls, module, error) from error


def install_hint(cls: type[SandboxProvider]) -> str:
    """The exact line that installs what ``cls`` needs."""
    if cls.extra:
        return f"pip install 'openenv[{cls.extra}]'"
    return f"pip install {cls.requires or cls.sdk[0].partition('.')[0]}"


def default_check(cls: type[SandboxProvider]) -> Check:
    """The check most backends need: Python floor, SDK present (not imported), credentials present."""
    import os
    from importlib.util import find_spec

    if sys.version_info < cls.python:
        floor = ".".join(map(str, cls.python))
        return Check(False, f"needs Python {floor} or later", f"run on Python {floor}+")
    for module in cls.sdk:
        try:
            present = find_spec(module.split(".")[0]) is not None
        except Exception:
            present = False
        if not present:
            return Check(False, "not installed", install_hint(cls))
    missing = [name for name in cls.env_vars if not os.environ.get(name)]
    if missing:
        return Check(False, f"{', '.join(missing)} not set", f"export {missing[0]}=…")
    return Check(True)


def _broken(cls: type[SandboxProvider], module: str, error: BaseException) -> BrokenExtraError:
    return BrokenExtraError(
        f"{module} is installed but does not import: {type(error).__name__}: {error}",
        provider=cls.name,
        hint=f"reinstall it: {install_hint(cls)} --force-reinstall",
    )
