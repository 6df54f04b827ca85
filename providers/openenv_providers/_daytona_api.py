"""The vendor's generated clients, one pair for each event loop, and the one table that turns their errors into ours.

`AsyncDaytona` sits on the same clients and is not used: it reads ``.env`` and ``.env.local`` of the working directory
(a cloned repository could choose the region or switch telemetry on), opens a Socket.IO connection of its own, sets
a timer of 60 s where ours applies, and imports OpenTelemetry. The generated clients read nothing and start nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mimetypes
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.retry import retry_after, throttled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from openenv_sandbox.errors import Outcome
    from openenv_sandbox.provider import SandboxRef

T = TypeVar("T")

SDK = (
    "daytona",
    "daytona_api_client_async.api.object_storage_api",
    "daytona_api_client_async.api.sandbox_api",
    "daytona_api_client_async.api.snapshots_api",
    "daytona_toolbox_api_client_async.api.file_system_api",
    "daytona_toolbox_api_client_async.api.process_api",
    "obstore.store",
)
"""What the constructor imports; named down to the module, since the packages import their parts on first use."""

LIMITS = "https://app.daytona.io/dashboard/limits"
NEVER_SENT = ("ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorCertificateError", "InvalidURL")

# status -> (error, retryable, hint). 5xx and the lack of a status are below: whether they had an effect depends on what
# was asked. Account limits come as 403 with a text, which `throttled` knows.
TABLE: Mapping[int, tuple[type[OpenEnvError], bool, str]] = {
    401: (AuthError, False, "is DAYTONA_API_KEY right, and of this DAYTONA_API_URL?"),
    402: (QuotaExceeded, False, "the account has no credit left"),
    403: (AuthError, False, "the key lacks a permission; see its scopes in the dashboard"),
    404: (SandboxGone, False, ""),
    408: (ProviderUnavailable, True, ""),
    409: (ProviderError, True, "it is changing its state; the same call succeeds once that has ended"),
    410: (SandboxGone, False, ""),
    429: (RateLimited, True, ""),
    503: (ProviderUnavailable, True, "see https://status.app.daytona.io"),
}


def translate(error: Exception, *, what: str, ref: SandboxRef | None = None, started: bool = False) -> OpenEnvError:
    """Ours for any error of the SDK.

    Args:
        error: What it raised.
        what: What was attempted, as the beginning of a sentence.
        ref: The sandbox, where there is one.
        started: The request may have had an effect although no good answer came.
    """
    if isinstance(error, OpenEnvError):
        return error
    where: dict[str, Any] = {"provider": "daytona", "ref": ref}
    lost: Outcome = "unknown" if started else "failed"
    status = getattr(error, "status", None)
    if not isinstance(status, int) or not 100 <= status <= 599:
        kind = type(error).__name__
        if isinstance(error, ValueError):  # pydantic: an answer that the SDK's models do not take
            text = f"{what}: the answer does not fit this SDK ({kind})"
            return ProviderError(text, outcome=lost, hint="pip install -U daytona", **where)
        never = kind in NEVER_SENT
        silent = isinstance(error, asyncio.TimeoutError)
        text = f"{what}: the API {'did not answer in time' if silent else 'cannot be reached'} ({kind})"
        return ProviderUnavailable(text, retryable=True, outcome="failed" if never else lost, **where)
    text = f"{what}: {message(error)}"
    limit = throttled(_Said(status, message(error), getattr(error, "headers", None)), provider="daytona")
    if isinstance(limit, QuotaExceeded) and status != 402:
        # A limit on what runs at once: the next sandbox that ends lifts it.
        return RateLimited(text, hint=f"delete what you do not need, or raise the limit: {LIMITS}", **where)
    if "maximum allowed per sandbox" in text.lower():
        return CapabilityError(text, field="resources", hint=f"ask for less, or raise the limit: {LIMITS}", **where)
    if isinstance(limit, RateLimited):
        return RateLimited(text, retry_after=retry_after(error), **where)
    if (row := TABLE.get(status)) is not None:
        cls, retryable, hint = row
        return cls(text, retryable=retryable, hint=hint or None, **where)
    server = status >= 500
    return ProviderError(f"{text} (status {status})", retryable=server, outcome=lost if server else "failed", **where)


class _Said(Exception):
    """An answer without what the SDK writes around it: its headers would be searched for words too."""

    def __init__(self, status: int, text: str, headers: Any) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers


def message(error: Exception) -> str:
    """The sentence in the body of an answer."""
    body = str(getattr(error, "body", None) or "")
    try:
        data = json.loads(body)
        return str(data.get("message") or data.get("error") or body)[:1000]
    except (ValueError, AttributeError):
        # Never the error's own text: the SDK writes the headers of the answer into it.
        return (body or str(getattr(error, "reason", None) or f"status {getattr(error, 'status', None)}")).strip()[:300]


class Clients:
    """The API's two clients on one loop."""

    def __init__(self, api_url: str, headers: Mapping[str, str]) -> None:
        import daytona_api_client_async as api
        import daytona_toolbox_api_client_async as toolbox

        mimetypes.guess_type("data")  # reads /etc/mime.types once; the SDK would do so on the loop, at the first upload
        # Commands that hold a server each hold a connection: no bound here, the start gate is core's.
        self.main = api.ApiClient(api.Configuration(host=api_url, connection_pool_maxsize=0))
        self.box = toolbox.ApiClient(toolbox.Configuration(host="", connection_pool_maxsize=0))
        self.main.default_headers.update(headers)
        self.box.default_headers.update(headers)
        self.sandboxes = api.SandboxApi(self.main)
        self.snapshots = api.SnapshotsApi(self.main)
        self.storage = api.ObjectStorageApi(self.main)

    def toolbox(self, base_url: str) -> tuple[Any, Any]:
        """The process and the file API of one sandbox."""
        import daytona_toolbox_api_client_async as toolbox

        there = _At(self.box, base_url)
        return toolbox.ProcessApi(there), toolbox.FileSystemApi(there)

    async def close(self) -> None:
        """Close both sessions."""
        await self.main.rest_client.close()
        await self.box.rest_client.close()


class _At:
    """A client whose requests go to one sandbox: the SDK's have one host each, and a session of their own."""

    def __init__(self, client: Any, base_url: str) -> None:
        self._client, self._base_url = client, base_url

    def param_serialize(self, *args: Any, **kw: Any) -> Any:
        return self._client.param_serialize(*args, **{**kw, "_host": self._base_url})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Api:
    """One account as the provider sees it.

    Args:
        api_url: Where its API is.
        headers: Authorization, and the organization where a token needs it; secret.
        timeout_s: For one request, in seconds.
    """

    def __init__(self, api_url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url, self.timeout_s = api_url.rstrip("/"), float(timeout_s)
        self._headers = dict(headers)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Clients]]
        self._clients = weakref.WeakKeyDictionary()
        self._closed: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Clients]:
        """The clients of the running loop, made in a thread: certificates are read from disk.

        What still has to be done after `aclose` (a delete, mostly) has clients of its own, which end with it.
        """
        loop = asyncio.get_running_loop()
        if loop in self._closed:
            clients = await asyncio.to_thread(Clients, self.url, self._headers)
            try:
                yield clients
            finally:
                await clients.close()
            return
        making = self._clients.get(loop)
        if making is None:
            making = self._clients[loop] = asyncio.ensure_future(asyncio.to_thread(Clients, self.url, self._headers))
        yield await asyncio.shield(making)

    async def call(
        self,
        what: str,
        fn: Callable[[Clients], Awaitable[T]],
        *,
        ref: SandboxRef | None = None,
        started: bool = False,
        timeout: float | None = None,
    ) -> T:
        """``fn(clients)`` within ``timeout`` seconds.

        Raises:
            OpenEnvError: What `translate` makes of the SDK's error.
        """
        try:
            async with self.session() as clients:
                return await asyncio.wait_for(fn(clients), timeout or self.timeout_s)
        except Exception as error:
            raise translate(error, what=what, ref=ref, started=started) from error

    async def aclose(self) -> None:
        """Close the clients of the running loop."""
        loop = asyncio.get_running_loop()
        self._closed.add(loop)
        making = self._clients.pop(loop, None)
        if making is not None:
            await (await making).close()
