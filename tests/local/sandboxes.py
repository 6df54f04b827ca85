"""Making, using and counting sandboxes on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers.local import LocalProvider

from openenv_sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from openenv_providers._local_sandbox import LocalSandbox

TINY = Path(__file__).parent / "envs" / "tiny_env"
SLEEP = ("/bin/sh", "-c", "exec sleep 1000")
BOTH = [pytest.param("bwrap", marks=pytest.mark.bwrap), "none"]


def processes(mark: str, *, files: Sequence[str] = ("cmdline", "environ")) -> list[int]:
    """Living processes that carry ``mark`` in their command line or environment, but this one."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            texts = [Path("/proc", name, file).read_bytes() for file in files]
            state = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX" and any(mark.encode() in text for text in texts):
            found.append(int(name))
    return found


def none_left(mark: str, *, but: Iterable[int] = (), within: float = 20.0) -> list[int]:
    """What of `processes` is left at the end of the time; returns as soon as nothing is."""
    deadline = time.monotonic() + within
    while (left := [pid for pid in processes(mark) if pid not in but]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


class Maker:
    """Makes sandboxes of one provider and deletes them."""

    def __init__(self, isolation: str, **options: Any) -> None:
        self.provider = LocalProvider({"isolation": isolation, **options})
        self.made: list[LocalSandbox] = []

    async def __call__(self, folder: Path = TINY, *, key: str | None = None, **fields: Any) -> LocalSandbox:
        from openenv_sandbox.image import parse

        spec = SandboxSpec(image=str(folder), **fields)
        image = await asyncio.to_thread(parse, folder)
        prepared = await self.provider.prepare(spec, image, on_log=lambda line: None)
        key = key or f"oe-{secrets.token_hex(4)}-{secrets.token_hex(6)}"
        sandbox: Any = await self.provider.create(prepared, spec, key=key)
        self.made.append(sandbox)
        return sandbox  # type: ignore[no-any-return]

    async def close(self) -> None:
        for sandbox in self.made:
            await sandbox.delete()
        await self.provider.aclose()


async def run(sandbox: LocalSandbox, script: str, **kw: Any) -> tuple[int | None, str]:
    """A shell script: exit code and all output."""
    out = bytearray()
    arguments = {"env": {}, "cwd": None, "user": None, "stdin": None, **kw}
    argv = ("/bin/sh", "-c", script)
    result = await asyncio.wait_for(
        sandbox.exec_raw(argv, on_output=lambda name, data: out.extend(data), **arguments), 60
    )
    return result.exit_code, out.decode()


async def get(sandbox: LocalSandbox, path: str = "/health") -> bytes:
    """One request to the sandbox's server, through its endpoint."""
    endpoint = await sandbox.endpoint(sandbox.spec_port)

    def fetch() -> bytes:
        with urllib.request.urlopen(endpoint.url + path, timeout=60) as reply:
            return bytes(reply.read())

    try:
        return await asyncio.to_thread(fetch)
    finally:
        await endpoint.aclose()


async def about(sandbox: LocalSandbox) -> dict[str, Any]:
    """What the tiny environment's server says about itself."""
    found: dict[str, Any] = json.loads(await get(sandbox))
    return found


async def eventually(probe: Callable[..., Awaitable[Any]], *arguments: Any, within: float = 30.0) -> Any:
    """What ``probe`` returns once it does not raise OSError any more."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await probe(*arguments)
        except OSError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.02)
