"""What the modules of aca tell each other, free of the SDK's names and shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from openenv_sandbox.provider import Status


@dataclass(frozen=True)
class Login:
    """Whose sandboxes, where, and how to prove that."""

    endpoint: str
    subscription: str
    resource_group: str
    group: str
    audience: str | None = None
    kind: Literal["default", "managed-identity", "token"] = "default"
    client_id: str | None = None
    token: Callable[[], str] = field(default=lambda: "", repr=False)
    ca_file: str | None = None


@dataclass(frozen=True)
class Box:
    """One sandbox as the service tells it."""

    id: str
    status: Status
    labels: Mapping[str, str]
    idle: bool
    restored: bool
    created_at: str | None
    cpus: float | None
    memory_mb: int | None
    disk_mb: int | None
    disk: str | None
    ports: Mapping[int, str | None]
    suspend_s: int | None
    delete_s: int | None


@dataclass(frozen=True)
class Disk:
    """One disk image: ``ready`` is None while it is being made."""

    id: str
    name: str
    ready: bool | None
    message: str
    base: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]


@dataclass(frozen=True)
class Wish:
    """One sandbox to create; sizes in the service's units."""

    disk_id: str | None
    public_disk: str | None
    cpu: str
    memory: str
    disk_size: str | None
    suspend_s: int
    labels: Mapping[str, str]
    env: Mapping[str, str]
    deny: bool
    hosts: Sequence[str]
    denied: Sequence[str]
    ports: Sequence[int]
    sources: Sequence[str]
    argv: Sequence[str]
    timeout_s: float
