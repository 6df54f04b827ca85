"""What providers and core tell each other: names of sandboxes, images, outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from openenv_sandbox.capabilities import Isolation
    from openenv_sandbox.spec import Resources

LogSink = Callable[[str], None]
OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]
Status = Literal["creating", "running", "paused", "stopped", "failed", "unknown"]
"""``stopped`` has ended, ``failed`` never ran or broke by the backend's own word, ``paused`` can go on."""

INSTALL, RUN, KEY, EXPIRES = "oe-install", "oe-run", "oe-key", "oe-expires"
"""Labels that core adds to every sandbox: whose it is (16 hex digits), which process's (8), its key, and the Unix time
in whole seconds after which nobody wants it."""


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
        labels: What the backend keeps with it; ``oe-install`` says whose it is. Empty where only its user sees it.
        created_at: Unix time in seconds, None when unknown.
    """

    ref: str
    image: ImageConfig | None = None
    digest: str | None = None
    owned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    created_at: float | None = None


@dataclass(frozen=True)
class RawResult:
    """Outcome of one command: its exit code (137 for SIGKILL, as a shell says it); output went to the sink.

    ``exit_code`` is None only when the backend did not tell; core turns that into an error, never into 0.
    """

    exit_code: int | None


@dataclass(frozen=True)
class Exit:
    """The main process ended.

    Attributes:
        code: Its exit code, None when unknown.
        tail: The last bytes it wrote.
        reason: Why, in the backend's words, where there is more to it than a code: out of memory, evicted, lifetime.
    """

    code: int | None
    tail: bytes = b""
    reason: str = ""

    def __str__(self) -> str:
        code = "an unknown code" if self.code is None else f"code {self.code}"
        return f"{code} ({self.reason})" if self.reason else code


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
