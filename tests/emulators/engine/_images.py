"""What boxes are made from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import _proc
from ._rootfs import REPO

LIGHT = str(Path(__file__).resolve().parents[1] / "light_server.py")


@dataclass(frozen=True)
class EmuImage:
    """One image: how it is started, and what lies over the host's root.

    Attributes:
        ref: Its full name; a snapshot's is what its maker chose.
        entrypoint, cmd, env, user, workdir, ports: As in an OCI config.
        layer: An upper layer that boxes begin with; None for the bare root.
    """

    ref: str
    cmd: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    ports: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    layer: Path | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """What it starts."""
        return (*self.entrypoint, *self.cmd)

    def but(self, **changes: Any) -> EmuImage:
        """A changed copy."""
        return replace(self, **changes)

    def oci_config(self) -> dict[str, Any]:
        """Its config blob."""
        config: dict[str, Any] = {"Env": [f"{name}={value}" for name, value in self.env.items()]}
        if self.cmd:
            config["Cmd"] = list(self.cmd)
        if self.entrypoint:
            config["Entrypoint"] = list(self.entrypoint)
        if self.user:
            config["User"] = self.user
        if self.workdir:
            config["WorkingDir"] = self.workdir
        if self.ports:
            config["ExposedPorts"] = {f"{port}/tcp": {} for port in self.ports}
        if self.labels:
            config["Labels"] = self.labels
        return {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": []},
            "history": [],
        }


def base_env() -> dict[str, str]:
    """ENV of every image here: the Python of these tests first in PATH."""
    return {"PATH": f"{sys.prefix}/bin:{_proc.PATH}", "PYTHONDONTWRITEBYTECODE": "1"}


def builtin(registry: str) -> dict[str, EmuImage]:
    """The images every engine has, by ref."""
    light = (sys.executable, "-I", "-S", LIGHT)
    echo = ("-m", "uvicorn", "echo_env.server.app:app", "--host", "0.0.0.0", "--port", "8000")
    env = base_env()
    images = [
        EmuImage("echo-env", (sys.executable, *echo), env={**env, "PYTHONPATH": str(REPO / "envs")}, workdir="/app"),
        EmuImage("light", light, env=env),
        EmuImage(
            "user-env",
            light[1:],
            entrypoint=light[:1],
            env={**env, "MARK": "from the image"},
            user="1000:1000",
            workdir="/srv",
        ),
        EmuImage("dying", ("/bin/sh", "-c", "echo 'dying words' >&2; exit 17"), env=env),
        EmuImage("private/light", light, env=env),
    ]
    return {f"{registry}/{image.ref}:1": image.but(ref=f"{registry}/{image.ref}:1", ports=(8000,)) for image in images}
