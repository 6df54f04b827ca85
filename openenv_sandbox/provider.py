"""The contract of a backend.

A provider translates: a `SandboxSpec` into the backend's create call, the backend's objects into ours, its errors into
ours. Everything else (deadlines, retries, labels, cleanup, readiness, the shell wrapper around commands, files) is
core's, once. The ``Raises`` lists below are the index of the contract suite in `openenv_sandbox.testing`.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from openenv_sandbox.capabilities import Capabilities, Isolation
from openenv_sandbox.errors import BrokenExtraError, CapabilityError, MissingExtraError

if TYPE_CHECKING:
    import ssl

    from pydantic import BaseModel

    from openenv_sandbox.spec import Resources, SandboxSpec

LogSink = Callable[[str], None]
OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]
Status = Literal["creating", "running", "paused", "stopped", "failed", "unknown"]


# ---------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class SandboxRef:
    """Names one sandbox of one backend.

    Attributes:
        provider: Name of the backend.
        scope: What ``id`` belongs to (`SandboxProvider.scope`).
        id: The backend's own identifier.
        key: Our key, given at create; None for a sandbox of somebody else.
        state: What reattaching needs and the backend will not say again; secret, never shown, never in the journal.
    """

    provider: str
    scope: str
    id: str
    key: str | None = None
    state: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False, hash=False)

    def without_state(self) -> SandboxRef:
        """The same name without its secrets."""
        return replace(self, state={})

    def __str__(self) -> str:
        return f"{self.provider}:{self.id}"


@dataclass(frozen=True)
class SandboxInfo:
    """What a backend tells about a sandbox.

    Attributes:
        ref: Its name.
        status: In our words.
        labels: All labels that can be read back, ours and the user's.
        created_at: Unix time in seconds, None when unknown.
        expires_at: Unix time at which the backend ends it, None when it does not or does not say.
        resources: What was granted.
        isolation: What stands between the workload and the machine.
        image: What was booted, as the backend names it.
    """

    ref: SandboxRef
    status: Status = "unknown"
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: float | None = None
    expires_at: float | None = None
    resources: Resources | None = None
    isolation: Isolation = "unknown"
    image: str | None = None


@dataclass(frozen=True)
class ImageConfig:
    """How an image wants to be started.

    Attributes:
        entrypoint: As in an OCI image config.
        cmd: Likewise.
        env: Variables the image sets.
        user: ``uid[:gid]`` or a name; None for root.
        workdir: Working directory; None for ``/``.
        ports: TCP ports the image exposes.
    """

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    ports: tuple[int, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """What the image runs."""
        return self.entrypoint + self.cmd


@dataclass(frozen=True)
class Image:
    """An image as the user named it, taken apart.

    Attributes:
        kind: ``folder`` | ``ref`` | ``template`` | ``snapshot``.
        name: The ref, id, or the folder's environment name.
        path: The folder, absolute, for ``folder``.
        dockerfile: Its Dockerfile, absolute, for ``folder``; None when the folder has none.
        config: How it wants to be started, None while unknown.
        digest: Content digest: of the folder's files, or of the ref where it could be resolved.
        source: The text it was made from (``hf://org/space@sha`` for a fetched folder).
    """

    kind: Literal["folder", "ref", "template", "snapshot"]
    name: str
    path: str | None = None
    dockerfile: str | None = None
    config: ImageConfig | None = None
    digest: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Prepared:
    """What a backend boots.

    Attributes:
        ref: Image ref, template id, snapshot id, folder: whatever `SandboxProvider.create` takes.
        image: How it wants to be started; None when that is unknown.
        digest: Content digest where there is one.
        owned: Whether `SandboxProvider.drop` may remove it.
    """

    ref: str
    image: ImageConfig | None = None
    digest: str | None = None
    owned: bool = False


@dataclass(frozen=True)
class RawResult:
    """Outcome of one command: its exit code (137 for SIGKILL, as a shell says it); output went to the sink.

    ``exit_code`` is None only when the backend did not tell; core turns that into an error, never into 0.
    """

    exit_code: int | None


@dataclass(frozen=True)
class Exit:
    """The main process ended: its exit code (None when unknown) and the last bytes it wrote."""

    code: int | None
    tail: bytes = b""


@dataclass(frozen=True)
class Check:
    """Whether a backend could be used: ``ready``, or a sentence why not and a sentence what to do."""

    ready: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Verified:
    """How the backend is proven: against the live service, its engine, an emulator, a stand-in, or not at all."""

    how: Literal["live", "engine", "emulator", "cli", "sdk-fake", "none"] = "none"
    sdk: str = ""
    date: str = ""
    note: str = ""


class Endpoint:
    """The way to one port of one sandbox, from here and now.

    Bound to the loop that made it and to this process; never journalled or pickled. It owns whatever carries it (a
    tunnel, a relay): `aclose` ends that, and `failure` says why it ended by itself.

    Args:
        url: ``http`` or ``https`` address, path and query included.
        headers: Sent with every request and upgrade; secret.
        expires_at: Unix time in seconds after which a fresh endpoint must be asked for.
        connect_to: Dial this host and port while the URL's host stays in Host, SNI and certificate check.
        tls: Context for ``https``; None for the system's.
        ping: Whether WebSocket pings pass.
        max_connection_s: After how long the way is cut, None when it is not.
        public: Whether anyone who knows the address may come in.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        connect_to: tuple[str, int] | None = None,
        tls: ssl.SSLContext | None = None,
        ping: bool = True,
        max_connection_s: float | None = None,
        public: bool = False,
        failure: Callable[[], BaseException | None] | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.url = url
        self.headers = dict(headers or {})
        self.expires_at = expires_at
        self.connect_to = connect_to
        self.tls = tls
        self.ping = ping
        self.max_connection_s = max_connection_s
        self.public = public
        self._failure = failure
        self._close = close

    def failure(self) -> BaseException | None:
        """Why the way is dead; None while it is not known to be."""
        return self._failure() if self._failure is not None else None

    async def aclose(self) -> None:
        """End whatever carries the endpoint. May be called twice."""
        close, self._close = self._close, None
        if close is not None:
            await close()

    def __repr__(self) -> str:
        return f"<Endpoint {self.url.split('?')[0]} headers={sorted(self.headers)}>"

    def __reduce__(self) -> Any:
        raise TypeError("an Endpoint belongs to one process and loop; pickle the sandbox's ref and attach instead")


# --------------------------------------------------------------------------------------------------- sandbox


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

        Event-driven where the backend has events. Cancelled by core at any time without trace.
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
        """Reset the backend's idle timer (``lifetime="idle-only"``)."""
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


# -------------------------------------------------------------------------------------------------- provider


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
        env_vars: Variables that carry credentials; `check` names those that are missing.
        capabilities: What it can do.
        Options: Its own options; unknown keys are errors. Fields marked by `trusted` are not taken from project files.
        verified: How it is proven.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    extra: ClassVar[str | None] = None
    sdk: ClassVar[tuple[str, ...]] = ()
    python: ClassVar[tuple[int, int]] = (3, 10)
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
        """What this instance can do on this machine and with these options; never more than ``capabilities``."""
        return self.capabilities

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

        ``spec`` is complete: labels include ours, ``command`` is the argv to start (None: the image's own; on
        ``start="exec"`` nothing is started here), ``timeouts.effective_lifetime`` is the server-side end.
        Finishes or fails by itself: core never cancels it. On failure it removes what it half made.

        Raises:
            AuthError, QuotaExceeded, RateLimited, ImageError, CapabilityError, ProviderUnavailable, ProviderError:
                ``outcome`` says whether something may exist.
        """

    @abstractmethod
    async def find(self, key: str) -> Sequence[SandboxRef]:
        """Every sandbox made with ``key``, in any state; what leads back after a lost reply. Empty when none."""

    @abstractmethod
    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over a sandbox made by another process.

        Raises:
            SandboxGone: It does not exist.
        """

    @abstractmethod
    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox in `scope` that has all ``labels``, in any state."""

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
    return f"pip install 'openenv[{cls.extra}]'"


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
