"""The few Engine API calls that building needs, without an SDK, over unix socket or TCP."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from openenv_sandbox import _dockerhost, _dockerssh
from openenv_sandbox.errors import ProviderUnavailable
from openenv_sandbox.lifecycle import daemon_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType
    from typing import BinaryIO

    from openenv_sandbox._dockerhost import DockerHost

_CHUNK = 256 * 1024


class EngineError(Exception):
    """The daemon answered a request with an error; ``status`` is None when it spoke up in the middle of a stream."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """One connection pool to one daemon. Used as an async context manager.

    Args:
        host: The daemon.
    """

    def __init__(self, host: DockerHost) -> None:
        self.host = host

    def _open(self, host: DockerHost) -> None:
        import httpx

        timeout = httpx.Timeout(60.0, read=None)  # builds are silent for minutes; `prepare` has a timer of its own
        if host.socket_path is not None:
            transport = httpx.AsyncHTTPTransport(uds=host.socket_path)
            self._http = httpx.AsyncClient(
                transport=transport, base_url="http://docker", timeout=timeout, trust_env=False
            )
        elif host.url.startswith(("tcp://", "http://", "https://")):
            address = urlsplit(host.url).netloc
            context = _dockerhost.tls_context(host)
            scheme = "https" if context is not None or host.url.startswith("https://") else "http"
            verify = context if context is not None else True
            self._http = httpx.AsyncClient(
                base_url=f"{scheme}://{address}", timeout=timeout, trust_env=False, verify=verify
            )
        else:
            raise ProviderUnavailable(
                f"a daemon at {host.url.split('://')[0]}:// is not supported ({host.source})",
                provider="docker",
                hint="DOCKER_HOST=unix://…, tcp://… or ssh://…",
            )

    async def __aenter__(self) -> Engine:
        self._open(await daemon_call(_dockerssh.reached, self.host))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def inspect(self, ref: str) -> dict[str, Any] | None:
        """What the daemon knows about an image; None when it has none of that name.

        Raises:
            EngineError: The daemon refused.
            ProviderUnavailable: It cannot be reached.
        """
        try:
            status, body = await self._request("GET", f"/images/{quote(ref, safe='/:@')}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return body if status == 200 and isinstance(body, dict) else None

    async def untag(self, ref: str) -> None:
        """Remove a name; the layers stay while another image uses them. What does not exist is fine."""
        try:
            await self._request("DELETE", f"/images/{quote(ref, safe='/:@')}")
        except EngineError as error:
            if error.status not in (404, 409):
                raise

    async def tag(self, ref: str, name: str) -> None:
        """Give an image a further name, ``repository:tag``; whatever had it loses it.

        Raises:
            EngineError: The name is malformed, or there is no such image.
            ProviderUnavailable: The daemon cannot be reached.
        """
        repository, colon, tag = name.rpartition(":")
        if not colon or "/" in tag:
            repository, tag = name, "latest"
        query = f"repo={quote(repository, safe='')}&tag={quote(tag, safe='')}"
        await self._request("POST", f"/images/{quote(ref, safe='/:@')}/tag?{query}")

    async def build(
        self, context: BinaryIO, parameters: Mapping[str, str], logins: Mapping[str, Mapping[str, str]]
    ) -> AsyncIterator[str]:
        """Build by the classic builder and yield pieces of its output. Closing the iterator ends the build.

        Args:
            context: A tar.
            parameters: Of the query.
            logins: Registry to username and password, for base images.

        Raises:
            EngineError: The build failed.
            ProviderUnavailable: The daemon cannot be reached.
        """
        import anyio

        async def body() -> AsyncIterator[bytes]:
            while chunk := await anyio.to_thread.run_sync(context.read, _CHUNK):
                yield chunk

        headers = {"content-type": "application/x-tar", "x-registry-config": _encoded(logins)}
        async for item in self._told("/build", params=dict(parameters), content=body(), headers=headers):
            if item.get("stream"):
                yield str(item["stream"])
            elif item.get("status"):
                yield f"{item['status']}\n"

    async def push(self, repository: str, tag: str, login: Mapping[str, str]) -> AsyncIterator[str]:
        """Push an image and yield lines of progress.

        Args:
            repository: With its registry's host.
            tag: Which.
            login: username and password; empty for none.

        Raises:
            EngineError: The push failed.
            ProviderUnavailable: The daemon cannot be reached.
        """
        headers = {"x-registry-auth": _encoded(login)}
        path = f"/images/{quote(repository, safe='/:')}/push"
        async for item in self._told(path, params={"tag": tag}, headers=headers):
            if item.get("status"):
                yield " ".join(str(item[part]) for part in ("id", "status") if item.get(part))

    async def _told(self, path: str, **request: Any) -> AsyncIterator[dict[str, Any]]:
        """What the daemon tells while it works."""
        import httpx

        try:
            async with self._http.stream("POST", path, **request) as reply:
                if reply.status_code != 200:
                    raise EngineError(_message(await reply.aread()), reply.status_code)
                async for line in reply.aiter_lines():
                    if not line.strip():
                        continue
                    item = json.loads(line)
                    if "error" in item:
                        raise EngineError(str(item["error"]))
                    yield item
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _request(self, method: str, path: str) -> tuple[int, Any]:
        import httpx

        try:
            reply = await self._http.request(method, path, timeout=60.0)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if reply.status_code >= 400:
            raise EngineError(_message(reply.content), reply.status_code)
        return reply.status_code, reply.json() if reply.content else None

    def _unreachable(self, error: Exception) -> ProviderUnavailable:
        return ProviderUnavailable(
            f"the docker daemon at {self.host.url} ({self.host.source}) cannot be reached: {type(error).__name__}",
            provider="docker",
            retryable=True,
            hint="is it running? openenv providers docker --check",
        )


def _encoded(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip()[:500]
