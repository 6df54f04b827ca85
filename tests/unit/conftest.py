"""Sandboxes that are child processes, for what is built on `exec_raw`."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.capabilities import ExecCapabilities
from openenv_sandbox.provider import Prepared
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.child import ChildProvider, ChildSandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

TOOLS = (
    "base64 cat chmod chown cp cut dd env find grep head id kill ln ls mkdir mkfifo mktemp mv od printf ps readlink rm "
    "rmdir sed setpriv sh sleep sort stat su tail tar tee touch tr true wc seq sha256sum python3 bash dash test expr "
    "nohup"
).split()

MakeSandbox = "Callable[..., Awaitable[ChildSandbox]]"


def tool_folder(folder: Path, *, busybox: bool, setsid: bool, without: tuple[str, ...] = ()) -> str:
    """A PATH with only what a small image has."""
    folder.mkdir(exist_ok=True)
    for name in [*TOOLS, *(["setsid"] if setsid else [])]:
        if name in without:
            continue
        target = shutil.which("busybox") if busybox and name not in ("python3", "bash", "dash") else shutil.which(name)
        if target is not None and not (folder / name).exists():
            os.symlink(target, folder / name)
    return str(folder)


@pytest.fixture
async def make_sandbox(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[ChildSandbox]]]:
    """Makes sandboxes; ``shell``, ``path`` and exec capabilities by keyword."""
    made: list[ChildSandbox] = []

    async def make(*, shell: tuple[str, ...] = ("/bin/sh",), path: str | None = None, **caps: object) -> ChildSandbox:
        provider = ChildProvider({"shell": shell, "path": path})
        sandbox = await provider.create(Prepared("none"), SandboxSpec(image="none"), key=f"oe-{len(made)}")
        assert isinstance(sandbox, ChildSandbox)
        sandbox.caps = ExecCapabilities(**{"stdin_stream": True, "user": False, **caps})  # type: ignore[arg-type]
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        await sandbox.delete()
