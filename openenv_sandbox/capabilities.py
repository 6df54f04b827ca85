"""What a backend can do, exactly: one field for one fact.

The launcher refuses a spec that a backend cannot honour before anything is created; it reads nothing but this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ImageKind = Literal["ref", "folder", "template", "snapshot"]
NetworkFeature = Literal["full", "none", "hosts", "wildcard", "cidr4", "cidr6", "runtime"]
Exposure = Literal["private", "public"]
IsolationWish = Literal["none", "process", "container", "gvisor", "vm"]
Isolation = Literal["unknown", "none", "process", "container", "gvisor", "vm"]
Protocol = Literal["http", "tcp"]
ImagePart = Literal["env", "user", "workdir"]

ISOLATION_ORDER: tuple[Isolation, ...] = ("none", "process", "container", "gvisor", "vm")

IMAGE_PARTS: frozenset[ImagePart] = frozenset({"env", "user", "workdir"})


def isolation_satisfies(offered: Isolation, wanted: Isolation) -> bool:
    """Whether ``offered`` is at least ``wanted``; ``unknown`` satisfies only a wish for ``none``."""
    if wanted in ("none", "unknown"):
        return True
    if offered == "unknown":
        return False
    return ISOLATION_ORDER.index(offered) >= ISOLATION_ORDER.index(wanted)


@dataclass(frozen=True)
class ExecCapabilities:
    """What ``exec_raw`` does natively; core's shell wrapper supplies the rest.

    Attributes:
        split: stdout and stderr arrive apart.
        binary: Output is bytes, unchanged. False where it comes back as text: core then has the command's output
            encoded inside the sandbox, and it arrives when the command has ended, whatever ``stream`` says.
        stdin: Bytes with end-of-file reach the command.
        stream: Output arrives while the command runs.
        stdin_stream: ``stdin`` may be an async iterator that is sent while the command runs.
        env: Environment variables can be given for one command.
        cwd: A working directory can be given.
        user: A user can be given.
        kill: Cancelling ``exec_raw`` ends the command inside the sandbox.
        max_s: The longest command the backend lets run, in seconds; None when there is no bound.
        max_stdin: The most stdin bytes of one command; None when there is no bound.
    """

    split: bool = True
    binary: bool = True
    stdin: bool = True
    stream: bool = True
    stdin_stream: bool = False
    env: bool = True
    cwd: bool = True
    user: bool = True
    kill: bool = False
    max_s: float | None = None
    max_stdin: int | None = None

    @property
    def live(self) -> bool:
        """Whether users get output while a command runs."""
        return self.stream and self.binary


@dataclass(frozen=True)
class Span:
    """Sizes from ``least`` upwards; a smaller wish is rounded up to it.

    Attributes:
        least: The smallest sold.
        most: The largest sold, None when there is no bound.
        step: Sold are multiples of it; None: any number.
    """

    least: float
    most: float | None = None
    step: float | None = None

    def __str__(self) -> str:
        bounds = f"{self.least:g} and more" if self.most is None else f"{self.least:g} to {self.most:g}"
        return bounds if self.step is None else f"{bounds} by {self.step:g}"


@dataclass(frozen=True)
class Sizes:
    """What can be asked for; core rounds up to it, and refuses more than the largest, before `SandboxProvider.fit`.

    Attributes:
        cpus: Sold core counts in ascending order, or a `Span`; empty means any number.
        memory_mb: Sold memory sizes in MiB, ascending, or a `Span`; empty means any.
        disk_mb: Sold disk sizes in MiB, ascending, or a `Span`; empty means any.
        limits: Which of ``cpus``, ``memory_mb``, ``disk_mb`` the backend can bound at all.
    """

    cpus: tuple[float, ...] | Span = ()
    memory_mb: tuple[int, ...] | Span = ()
    disk_mb: tuple[int, ...] | Span = ()
    limits: frozenset[str] = frozenset({"cpus", "memory_mb", "disk_mb"})


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do.

    Attributes:
        images: Kinds of image it boots by itself; a folder it cannot build is built by core and pushed.
        private_images: A registry's username and password (`SandboxSpec.registry_auth`) can be handed over.
        local_images: It boots what the local docker daemon has, with no registry in between.
        start: ``image``: runs the image's own command only; ``command``: takes at create the argv that replaces
            entrypoint and command; ``exec``: boots idle and core starts the server.
        runs_image: With ``start="command"``: without a command the image's own runs, with its ENV, USER and WORKDIR.
        keeps: Which of the image's ENV, USER and WORKDIR the backend itself gives to what it starts and to commands;
            core supplies the others. None: all of them, and with ``start="exec"`` none.
        exec: None when commands cannot be run at all.
        put: Small files can be written by a call of their own (needed where commands take no stdin).
        ports: ``any`` port at any time, only those declared ``at-create``, by a ``tunnel`` of ours, or ``none``.
        exposure: How a port can be published; what can be private also satisfies who would accept it public.
        protocols: What its ports carry: ``http`` (WebSocket included) or any ``tcp``.
        network: Network policies it enforces.
        isolation: What stands between the workload and the machine it runs on.
        hardening: Whether it has a profile for ``hardening="strict"``.
        gpus: Models it offers; ``("*",)`` for whatever the machine has; empty for none.
        sizes: Sizes sold.
        user: Whether the workload's user can be chosen at create.
        lifetime: ``server-extendable`` and ``server-fixed`` end the sandbox by themselves; ``idle-only`` ends it when
            unused; ``none`` never does, so the sandbox carries an expiry label that later processes honour.
        keep_alive_s: How often `Sandbox.keep_alive` is called while somebody owns the sandbox, in seconds, because an
            idle timer would end or suspend it in mid-use. None: there is none (``idle-only``: every 60 s).
        max_lifetime_s: The longest lifetime, None when unbounded.
        dedupes_key: Creating twice with one key gives one sandbox, so a create of unknown outcome may be repeated.
        create_settle_s: How long after the create timer a lost create may still appear, in seconds.
        attach: Whether another process can take a sandbox over.
        labels: ``filter`` by the server, encoded in the ``name``, compared ``client-side``, or only in the ``journal``.
        findable: How a sandbox is found from its key after a lost reply.
        lists_ended: Listing and finding also tell of sandboxes that have ended and not been deleted.
        pause: Pause and resume keep the processes.
        snapshot: A snapshot can be taken and booted.
        fork_memory: A snapshot contains the running processes.
        logs: The server's output can be read back.
        reload: The server can start anew whenever its folder's sources change (`SandboxSpec.reload`).
        ping: WebSocket pings pass its proxy.
        max_connection_s: After how long its proxy cuts a connection, None when it does not.
        max_concurrency: Documented limit of sandboxes at once, None when unknown.
    """

    images: frozenset[ImageKind] = frozenset({"ref"})
    private_images: bool = False
    local_images: bool = False
    start: Literal["image", "command", "exec"] = "command"
    runs_image: bool = True
    keeps: frozenset[ImagePart] | None = None
    exec: ExecCapabilities | None = field(default_factory=ExecCapabilities)
    put: bool = False
    ports: Literal["any", "at-create", "tunnel", "none"] = "at-create"
    exposure: frozenset[Exposure] = frozenset({"private"})
    protocols: frozenset[Protocol] = frozenset({"http"})
    network: frozenset[NetworkFeature] = frozenset({"full"})
    isolation: Isolation = "unknown"
    hardening: bool = False
    gpus: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    user: bool = True
    lifetime: Literal["server-extendable", "server-fixed", "idle-only", "none"] = "none"
    keep_alive_s: float | None = None
    max_lifetime_s: float | None = None
    dedupes_key: bool = False
    create_settle_s: float = 60.0
    attach: bool = True
    labels: Literal["filter", "name", "client-side", "journal"] = "filter"
    findable: Literal["label", "name", "id", "none"] = "label"
    lists_ended: bool = True
    pause: bool = False
    snapshot: bool = False
    fork_memory: bool = False
    logs: bool = True
    reload: bool = False
    ping: bool = True
    max_connection_s: float | None = None
    max_concurrency: int | None = None

    @property
    def image_parts(self) -> frozenset[ImagePart]:
        """``keeps``, spelled out."""
        if self.keeps is not None:
            return self.keeps
        return frozenset() if self.start == "exec" else IMAGE_PARTS
