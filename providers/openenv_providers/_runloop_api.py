"""Runloop's generated client, one for each event loop, and the one table that turns its errors into ours."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox.errors import (
    AuthError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.retry import retry_after, status_of, throttled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from openenv_sandbox.errors import Outcome
    from openenv_sandbox.values import SandboxRef

T = TypeVar("T")

SDK = (
    "runloop_api_client",
    "runloop_api_client.resources.blueprints",
    "runloop_api_client.resources.devboxes",
    "runloop_api_client.resources.network_policies",
    "runloop_api_client.resources.objects",
    "runloop_api_client.sdk.async_storage_object",
)
"""What the constructor imports; named down to the module, since the package imports its parts on first use."""

HOLD_S = 25
"""How long the service holds a question for a status before it answers 408; more is not granted for commands."""

ENDED = ("failure", "shutdown")
_ASK_AGAIN = 4

# status -> (error, retryable, hint). 402, 429 and texts about limits are `throttled`'s; 5xx and the lack of a status
# are below: whether they had an effect depends on what was asked.
TABLE: dict[int, tuple[type[OpenEnvError], bool, str]] = {
    401: (AuthError, False, "is RUNLOOP_API_KEY right, and of this RUNLOOP_BASE_URL?"),
    403: (AuthError, False, "the key lacks a permission; see its scopes in the dashboard"),
    404: (SandboxGone, False, ""),
    408: (ProviderUnavailable, True, ""),
    409: (ProviderError, True, "it is changing its state; the same call succeeds once that has ended"),
}


def translate(error: Exception, *, what: str, ref: SandboxRef | None = None, started: bool = False) -> OpenEnvError:
    """Ours for any error of the SDK.

    Args:
        error: What it raised.
        what: What was attempted, as the beginning of a sentence.
        ref: The devbox, where there is one.
        started: The request may have had an effect although no good answer came.
    """
    if isinstance(error, OpenEnvError):
        return error
    where: dict[str, Any] = {"provider": "runloop", "ref": ref}
    lost: Outcome = "unknown" if started else "failed"
    status = status_of(error)
    if status is None:
        return _unanswered(error, what, lost, where)
    text = f"{what}: {said(error)}"
    limit = throttled(error, provider="runloop")
    if isinstance(limit, QuotaExceeded):
        return QuotaExceeded(text, hint="raise the limit of the account: waiting does not lift it", **where)
    if isinstance(limit, RateLimited):
        return RateLimited(text, retry_after=retry_after(error), **where)
    if (row := TABLE.get(status)) is not None:
        cls, retryable, hint = row
        return cls(text, retryable=retryable, hint=hint or None, **where)
    if status < 500:
        return ProviderError(f"{text} (status {status})", **where)
    kind = ProviderUnavailable if status in (502, 503, 504) else ProviderError
    return kind(f"{text} (status {status})", retryable=True, outcome=lost, **where)


def _unanswered(error: Exception, what: str, lost: Outcome, where: dict[str, Any]) -> OpenEnvError:
    name = type(error.__cause__ or error).__name__
    if isinstance(error, ValueError):  # json or pydantic
        text = f"{what}: the answer does not fit this SDK ({name})"
        return ProviderError(text, outcome=lost, hint="pip install -U runloop-api-client", **where)
    outcome: Outcome = "failed" if name in ("ConnectError", "ConnectTimeout") else lost
    text = f"{what}: the API cannot be reached, or did not answer ({name})"
    return ProviderUnavailable(text, retryable=True, outcome=outcome, hint="see https://status.runloop.ai", **where)


def said(error: Exception) -> str:
    """The sentence in the body of an answer."""
    body = getattr(error, "body", None)
    text = body.get("message") or body.get("error") if isinstance(body, dict) else body
    return str(text or type(error).__name__)[:1000]


@contextlib.contextmanager
def missing() -> Iterator[None]:
    """That something does not exist is no error inside the block."""
    try:
        yield
    except SandboxGone:
        return


class Api:
    """One account.

    Args:
        base_url: Where its API is.
        scope: Of the refs.
        key: Secret.
    """

    def __init__(self, base_url: str, scope: str, key: str) -> None:
        self.base_url, self.scope, self._key = base_url, scope, key
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Any]]
        self._clients = weakref.WeakKeyDictionary()
        self._closed: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    def _client(self) -> Any:
        import httpx
        from runloop_api_client import AsyncRunloop

        mimetypes.guess_type("data")  # reads /etc/mime.types once; httpx would do so on the loop, at the first upload
        # The SDK's own pools put all requests on a few HTTP/2 connections, where questions that the service holds
        # (one for each devbox) would take the places of others. Core repeats what may be repeated.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        http = httpx.AsyncClient(base_url=self.base_url, limits=limits, timeout=httpx.Timeout(30.0, connect=5.0))
        return AsyncRunloop(bearer_token=self._key, base_url=self.base_url, max_retries=0, http_client=http)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """The client of the running loop, made in a thread: certificates are read from disk.

        What still has to be done after `aclose` has a client of its own, which ends with it.
        """
        if not self._key:
            raise ProviderUnavailable("RUNLOOP_API_KEY not set", provider="runloop", hint="export RUNLOOP_API_KEY=…")
        loop = asyncio.get_running_loop()
        if loop in self._closed:
            client = await asyncio.to_thread(self._client)
            try:
                yield client
            finally:
                await client.close()
            return
        making = self._clients.get(loop)
        if making is None:
            making = self._clients[loop] = asyncio.ensure_future(asyncio.to_thread(self._client))
        yield await asyncio.shield(making)

    async def call(
        self, what: str, fn: Callable[[Any], Awaitable[T]], *, ref: SandboxRef | None = None, started: bool = False
    ) -> T:
        """``fn(client)``; every request in it has the client's own timeout.

        Raises:
            OpenEnvError: What `translate` makes of the SDK's error.
        """
        try:
            async with self.session() as client:
                return await fn(client)
        except Exception as error:
            raise translate(error, what=what, ref=ref, started=started) from error

    async def rows(self, what: str, pages: Callable[[Any], Any]) -> list[Any]:
        """Everything of a listing, over all its pages."""

        async def collect(client: Any) -> list[Any]:
            return [row async for row in pages(client)]

        return await self.call(what, collect)

    async def patient(self, what: str, fn: Callable[[Any], Awaitable[T]], *, ref: SandboxRef | None = None) -> T:
        """`call` for a look amid a longer wait: what may succeed later is asked again a few times."""
        for attempt in range(_ASK_AGAIN):
            try:
                return await self.call(what, fn, ref=ref)
            except OpenEnvError as error:
                if not error.retryable:
                    raise
                wait = error.retry_after if isinstance(error, RateLimited) else None
            await asyncio.sleep(0.25 * 2**attempt if wait is None else wait)
        return await self.call(what, fn, ref=ref)

    async def poll(self, path: str, statuses: Sequence[str], model: Any, ref: SandboxRef) -> Any:
        """One long question for a status; None when nothing changed while the service held it."""
        from runloop_api_client import APIStatusError

        async def ask(client: Any) -> Any:
            body = {"statuses": list(statuses), "timeout_seconds": HOLD_S}
            try:
                return await client.post(
                    f"{path}/wait_for_status", cast_to=model, body=body, options={"timeout": HOLD_S + 10.0}
                )
            except APIStatusError as error:
                if error.status_code != 408:
                    raise
                return None

        return await self.patient("asking for the status", ask, ref=ref)

    async def aclose(self) -> None:
        """Close the client of the running loop."""
        loop = asyncio.get_running_loop()
        self._closed.add(loop)
        making = self._clients.pop(loop, None)
        if making is not None:
            await (await making).close()
