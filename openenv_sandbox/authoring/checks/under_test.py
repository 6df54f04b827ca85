"""The server under test: its address, its sessions, and what can be asked about its process."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import OpenEnvError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    import httpx

    from openenv_sandbox.events import Event

MARK = "openenv-facts "


@dataclass
class UnderTest:
    """A server.

    Attributes:
        http: For its plain routes.
        origin: A client that knows the way; every session is made from it.
        cold_start_s: From the start of its sandbox to its first answer; None for a server that ran already.
        modules: ``module:attribute`` that its application may have, where it is a folder's.
        ports: Where it may listen, as seen from inside its sandbox.
        facts: What its environment class claims; empty where that could not be asked.
    """

    http: httpx.AsyncClient
    origin: GenericEnvClient
    cold_start_s: float | None = None
    modules: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[GenericEnvClient]:
        """A session of its own, closed at the end."""
        client = await self.origin.new_session()
        try:
            yield client
        finally:
            await client.close()

    async def ask(self, *argv: str) -> Any:
        """What `facts` prints inside the sandbox; None where that does not work."""
        sandbox = self.origin.sandbox
        if sandbox is None:
            return None
        script = resources.files("openenv_sandbox").joinpath("authoring/checks/facts.py").read_text(encoding="utf-8")
        for python in ("python3", "python"):
            try:
                result = await sandbox.exec([python, "-", *argv], stdin=script, timeout=60)
            except OpenEnvError:
                continue
            for line in result.text().splitlines():
                if line.startswith(MARK):
                    return json.loads(line.removeprefix(MARK))
        return None


@asynccontextmanager
async def launched(
    path: Path, timeout: float, on_event: Callable[[Event], object] | None, arguments: Mapping[str, Any]
) -> AsyncIterator[UnderTest]:
    """A folder's server in a sandbox of its own.

    Raises:
        OpenEnvError: What `openenv_sandbox.launch` raises.
    """
    import asyncio

    from openenv_sandbox import _manifest, folder, launch

    found = await asyncio.to_thread(folder.read, path)
    manifest = await asyncio.to_thread(_manifest.load, path)
    modules = tuple(name for name in (found.module, manifest.app) if name)
    begun: list[float] = []

    def watch(event: Event) -> None:
        if event.stage in ("starting", "ready"):
            begun.append(time.monotonic())
        if on_event is not None:
            on_event(event)

    given = {"timeouts": {"ready": max(60.0, timeout)}, **arguments}
    async with launch(str(path), on_event=watch, **given) as client:
        endpoint, token = client._endpoint, client._token
        assert endpoint is not None
        await client.disconnect()  # its slot may be the only one
        headers = {**endpoint.headers, **({"Authorization": f"Bearer {token}"} if token else {})}
        async with _http(endpoint.url, headers, timeout) as http:
            cold = begun[-1] - begun[0] if len(begun) > 1 else None
            # Where it listens as seen from inside: a backend without a network of its own moves the port.
            ports = (client.sandbox.spec.port, urlsplit(endpoint.url).port or 0)
            yield UnderTest(http, client, cold, modules, ports)


@asynccontextmanager
async def reached(url: str, headers: Mapping[str, str], timeout: float) -> AsyncIterator[UnderTest]:
    """A server that runs already."""
    async with _http(url, headers, timeout) as http:
        client: GenericEnvClient = GenericEnvClient(
            base_url=url, headers=headers, connect_timeout_s=timeout, message_timeout_s=max(60.0, timeout)
        )
        try:
            yield UnderTest(http, client)
        finally:
            await client.close()


def _http(url: str, headers: Mapping[str, str], timeout: float) -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(base_url=url.rstrip("/"), headers=dict(headers), timeout=timeout, trust_env=False)
