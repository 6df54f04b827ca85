"""The API server, as kubernetes and its relatives (gke, ack, openshift) reach it.

The SDK loads the kubeconfig, signs, and sends; bodies and answers are plain mappings, because the SDK's models cost
more than the requests and drop what they do not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

from openenv_sandbox.backend_kit import PerLoop
from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from openenv_sandbox.lifecycle import daemon_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from openenv_providers._kube_config import Where

_RELOAD_S = 10.0
_READ_S = 60.0


class Gone(ProviderError):
    """The object is not there (404), or what was asked from has expired (410)."""


class Taken(ProviderError):
    """An object of that name is there already."""


class _Login:
    """The SDK's client, and a session for WebSockets.

    The client's own pool is bounded; a tunnel and a command each hold a connection for as long as they live.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self.client: Any = None
        self._session: Any = None
        self._loaded_at = 0.0

    async def load(self) -> _Login:
        self.client = await daemon_call(self._load)
        self._loaded_at = time.monotonic()
        return self

    async def again(self) -> bool:
        """Tokens that a kubeconfig's helper program makes run out after minutes or an hour."""
        if time.monotonic() - self._loaded_at < _RELOAD_S:
            return False
        old = self.client
        await self.load()
        await old.close()
        return True

    def session(self) -> Any:
        import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self.client.rest_client.ssl_context, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=True)
        return self._session

    async def aclose(self) -> None:
        await self.client.close()
        if self._session is not None:
            await self._session.close()


class Api:
    """Requests to one cluster."""

    def __init__(self, name: str, where: Where) -> None:
        self.name, self.where = name, where
        self.closes_stdin = False
        self._logins = PerLoop(lambda: _Login(self._load).load(), _Login.aclose)

    async def aclose(self) -> None:
        """Close connections."""
        await self._logins.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float = _READ_S,
    ) -> dict[str, Any]:
        """One request; what it answers.

        Raises:
            OpenEnvError: By `refused` and `unreachable`.
        """
        sent = self._send(method, path, query=query, body=body, content_type=content_type, timeout=timeout)
        async with sent as response:
            answer = json.loads(await response.read() or b"{}")
        return answer if isinstance(answer, dict) else {}

    async def raw(self, path: str, *, query: Mapping[str, str]) -> bytes:
        """A body that is not JSON."""
        async with self._send("GET", path, query=query, accept="*/*") as response:
            return bytes(await response.read())

    @contextlib.asynccontextmanager
    async def lines(self, path: str, *, query: Mapping[str, str], timeout: float) -> AsyncIterator[Any]:
        """A body as it comes: what it gives is iterated by lines."""
        async with self._send("GET", path, query=query, timeout=timeout) as response:
            try:
                yield response.response.content
            finally:
                response.response.close()

    async def socket(self, path: str, *, query: list[tuple[str, str]], protocols: tuple[str, ...]) -> Any:
        """A WebSocket to a subresource of a Pod.

        Raises:
            OpenEnvError: By `refused` and `unreachable`.
        """
        import aiohttp
        from yarl import URL

        async with self._logins.use() as login:
            _, url, headers, _, _ = await login.client.param_serialize(
                "GET", path, query_params=query, auth_settings=["BearerToken"]
            )
            try:
                return await login.session().ws_connect(
                    URL(url, encoded=True), protocols=protocols, headers=headers,
                    proxy=login.client.rest_client.proxy, max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
                )  # fmt: skip
            except aiohttp.WSServerHandshakeError as error:
                said = {"message": error.message}
                raise self.refused(error.status, said, "GET", path, error.headers or {}) from error
            except Exception as error:
                raise self.unreachable(error, "GET") from error

    @contextlib.asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = _READ_S,
    ) -> AsyncIterator[Any]:
        headers = {"Accept": accept, "Content-Type": content_type}
        async with self._logins.use() as login:
            try:
                for last in (False, True):
                    call = await login.client.param_serialize(
                        method, path, query_params=list((query or {}).items()), body=body,
                        auth_settings=["BearerToken"], header_params=dict(headers),
                    )  # fmt: skip
                    response = await login.client.call_api(*call, _request_timeout=timeout)
                    if response.status < 300:
                        yield response
                        return
                    text = await response.read()
                    if response.status != 401 or last or not await login.again():
                        break
                try:
                    status = json.loads(text)
                except ValueError:
                    status = {}
                raise self.refused(response.status, status, method, path, response.headers)
            except OpenEnvError:
                raise
            except Exception as error:
                raise self.unreachable(error, method) from error

    def _load(self) -> Any:
        """In a thread: files, certificates and perhaps a helper program are read."""
        client: Any = importlib.import_module("kubernetes.aio.client")
        config: Any = importlib.import_module("kubernetes.aio.config")
        settings = client.Configuration()
        try:
            if self.where.in_cluster:
                config.load_incluster_config(client_configuration=settings)
            else:
                asyncio.run(
                    config.load_kube_config(
                        config_file=self.where.paths, context=self.where.context,
                        client_configuration=settings, persist_config=False,
                    )
                )  # fmt: skip
            return client.ApiClient(settings)
        except Exception as error:
            raise ProviderUnavailable(
                f"the login of the kubeconfig does not work: {type(error).__name__}",
                provider=self.name, hint="try `kubectl get pods` with the same kubeconfig and context",
            ) from error  # fmt: skip

    def unreachable(self, error: BaseException, method: str) -> OpenEnvError:
        """Our error for a request that got no answer."""
        import aiohttp

        if isinstance(error, OpenEnvError):
            return error
        never_sent = isinstance(error, aiohttp.ClientConnectorError)
        return ProviderUnavailable(
            f"the API server {self.where.server} does not answer: {type(error).__name__}",
            provider=self.name, retryable=True, hint="check the cluster and the network",
            outcome="failed" if never_sent or method == "GET" else "unknown",
        )  # fmt: skip

    def refused(
        self, code: int, status: Mapping[str, Any], method: str, path: str, headers: Mapping[str, str]
    ) -> OpenEnvError:
        """Our error for an answer; the table of this module."""
        message = str(status.get("message") or f"HTTP {code}")
        said = f"kubernetes answered {code} to {method} {path}: {message}"
        kw: dict[str, Any] = {"provider": self.name}
        if code in (404, 410):
            hint = f"create the namespace {self.where.namespace}" if "namespaces" in message else None
            return Gone(said, hint=hint, **kw)
        if code == 409:
            return Taken(said, retryable=status.get("reason") != "AlreadyExists", **kw)
        if code == 429:
            wait = headers.get("Retry-After", "")
            return RateLimited(said, retry_after=float(wait) if wait.isdigit() else None, **kw)
        if code == 403 and "exceeded quota" in message:
            used = re.search(r"used: (.*), limited", message)
            if used and not re.search("=0*[1-9]", used[1]):
                return QuotaExceeded(said, hint="one such Pod is more than the ResourceQuota: raise it", **kw)
            return RateLimited(said, hint="wait for other Pods to end, or raise the ResourceQuota", **kw)
        if code == 403 and "PodSecurity" in message:
            return CapabilityError(
                said, field="hardening", hint='the namespace wants restricted Pods: say hardening="strict"', **kw
            )
        if code in (401, 403):
            return AuthError(said, hint="check the context and the role of its user", **kw)
        if code >= 500:
            return ProviderUnavailable(said, retryable=True, outcome="failed" if method == "GET" else "unknown", **kw)
        return ProviderError(said, **kw)
