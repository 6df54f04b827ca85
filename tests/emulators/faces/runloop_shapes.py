"""What Runloop takes: bodies of requests, with the rules that the SDK's parameter types tell. The rest is 400."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Body(BaseModel):
    """Unknown names and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Empty(Body):
    """Nothing to say."""


class User(Body):
    """``launch_parameters.user_parameters``."""

    uid: int = Field(ge=0)
    username: str


class Launch(Body):
    """``launch_parameters``, as far as it is emulated."""

    architecture: Literal["x86_64", "arm64"] | None = None
    custom_cpu_cores: float | None = None
    custom_disk_size: int | None = Field(default=None, ge=2, le=64, multiple_of=2)
    custom_gb_memory: int | None = Field(default=None, ge=1, le=64)
    keep_alive_time_seconds: int | None = Field(default=None, ge=1, le=172_800)
    network_policy_id: str | None = None
    resource_size_request: (
        Literal["X_SMALL", "SMALL", "MEDIUM", "LARGE", "X_LARGE", "XX_LARGE", "CUSTOM_SIZE"] | None
    ) = None
    user_parameters: User | None = None

    @model_validator(mode="after")
    def _sizes_are_sold(self) -> Launch:
        cpus, memory = self.custom_cpu_cores, self.custom_gb_memory
        if self.resource_size_request != "CUSTOM_SIZE":
            if cpus or memory or self.custom_disk_size:
                raise ValueError("custom sizes need resource_size_request CUSTOM_SIZE")
            return self
        if cpus is None or memory is None:
            raise ValueError("CUSTOM_SIZE needs custom_cpu_cores and custom_gb_memory")
        if cpus not in (0.5, 1) and (cpus % 2 or not 0 < cpus <= 16):
            raise ValueError("custom_cpu_cores must be 0.5, 1, or a multiple of 2 up to 16")
        if memory != 1 and memory % 2:
            raise ValueError("custom_gb_memory must be 1 or a multiple of 2")
        if not 2 <= memory / cpus <= 8:
            raise ValueError("the cpu:memory ratio must be between 1:2 and 1:8")
        return self


class Tunnel(Body):
    """``tunnel`` of a create."""

    auth_mode: Literal["open", "authenticated"] | None = None


class CreateDevbox(Body):
    """``POST /v1/devboxes``."""

    blueprint_id: str | None = None
    blueprint_name: str | None = None
    snapshot_id: str | None = None
    environment_variables: dict[str, str] = Field(default_factory=dict)
    launch_parameters: Launch = Field(default_factory=Launch)
    metadata: dict[str, str] = Field(default_factory=dict)
    name: str | None = None
    tunnel: Tunnel | None = None

    @model_validator(mode="after")
    def _one_source(self) -> CreateDevbox:
        if sum(source is not None for source in (self.blueprint_id, self.blueprint_name, self.snapshot_id)) > 1:
            raise ValueError("only one of snapshot_id, blueprint_id, blueprint_name should be specified")
        return self


class Wait(Body):
    """``POST …/wait_for_status``."""

    statuses: list[str] = Field(min_length=1)
    timeout_seconds: float | None = Field(default=None, gt=0, le=30)


class Execute(Body):
    """``POST …/execute_async``."""

    command: str = Field(min_length=1)
    attach_stdin: Literal[False] = False


class SnapshotDisk(Body):
    """``POST …/snapshot_disk_async``."""

    name: str | None = None
    commit_message: str | None = Field(default=None, max_length=1000)
    metadata: dict[str, str] = Field(default_factory=dict)


class Context(Body):
    """``build_context``."""

    object_id: str
    type: Literal["object"]


class CreateBlueprint(Body):
    """``POST /v1/blueprints``."""

    name: str = Field(min_length=1)
    dockerfile: str | None = None
    build_context: Context | None = None
    build_args: dict[str, str] = Field(default_factory=dict)
    launch_parameters: Launch = Field(default_factory=Launch)
    metadata: dict[str, str] = Field(default_factory=dict)


class CreateObject(Body):
    """``POST /v1/objects``."""

    name: str
    content_type: Literal["unspecified", "text", "binary", "gzip", "tar", "tgz"]
    metadata: dict[str, str] = Field(default_factory=dict)
    ttl_ms: int | None = Field(default=None, gt=0)


class Cidr(Body):
    """One of ``allowed_cidrs``."""

    cidr: str
    ports: list[dict[str, Any]] = Field(default_factory=list)


class CreatePolicy(Body):
    """``POST /v1/network-policies``."""

    name: str = Field(min_length=1)
    description: str | None = None
    allow_all: bool = False
    allowed_hostnames: list[str] = Field(default_factory=list)
    allowed_cidrs: list[Cidr] = Field(default_factory=list)
