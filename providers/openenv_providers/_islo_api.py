"""Requests to islo: one client for each event loop, the exchanged token, and the one table of errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
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
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.retry import retry_after, status_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from openenv_sandbox.values import SandboxRef

T = TypeVar("T")

NAME, KEY = "islo", "ISLO_API_KEY"
SDK = ("islo", "islo.custom", "islo.gateway_profiles.client", "islo.sandboxes.client", "islo.shares.client")
"""What the constructor imports; named down to the module, since the package imports its parts on first use."""

REQUEST_S, CONNECT_S = 30.0, 5.0
ONCE: dict[str, Any] = {"max_retries": 0}
"""For every request: the SDK would repeat a create of unknown outcome, and a refusal that is final."""

_EARLY_S = 60.0
_ACCOUNT = ("BILLING_NOT_ALLOWED", "TENANT_SUSPENDED", "INSUFFICIENT_CREDITS")


def translate(error: Exception, *, what: str, ref: SandboxRef | None = None) -> OpenEnvError:
    """Ours for any error of the SDK.

    Args:
        error: What it raised.
        what: What was attempted, as the beginning of a sentence.
        ref: The sandbox, where there is one.
    """
    import httpx

    if isinstance(error, OpenEnvError):
        return error
    where: dict[str, Any] = {"provider": NAME, "ref": ref}
    status = status_of(error)
    if status is not None and status >= 400:
        return _refusal(error, status, what, where)
    kind = type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return ProviderUnavailable(f"{what}: islo cannot be reached ({kind})", retryable=True, **where)
    if isinstance(error, httpx.TransportError):
        text = f"{what}: islo did not answer ({kind})"
        return ProviderUnavailable(text, retryable=True, outcome="unknown", **where)
    text = f"{what}: the answer does not fit this SDK ({kind})"
    return ProviderError(text, outcome="unknown", hint="pip install -U islo", **where)


def _refusal(error: Exception, status: int, what: str, where: dict[str, Any]) -> OpenEnvError:
    """What a status and islo's own code of the error mean."""
    body = getattr(error, "body", None)
    fields = body if isinstance(body, dict) else vars(body) if hasattr(body, "__dict__") else {}
    code = str(getattr(fields.get("code"), "value", fields.get("code") or ""))
    said = f"{str(fields.get('message') or 'refused')[:1000]} ({' '.join(filter(None, (str(status), code)))})"
    text = f"{what}: {said}"
    if status == 401:
        return AuthError(text, hint=f"is {KEY} right, and of this ISLO_BASE_URL?", **where)
    if status == 402 or code in _ACCOUNT:
        return QuotaExceeded(text, hint="see the account's credits and limits: waiting does not lift it", **where)
    if status == 403:
        return AuthError(text, hint="the key lacks a permission", **where)
    if status == 404 and where["ref"] is not None:
        return SandboxGone(text, **where)
    if status == 429 or (status == 503 and code == "RESOURCE_UNAVAILABLE"):
        return RateLimited(text, retry_after=retry_after(error), **where)
    if status >= 500:
        kind = ProviderUnavailable if status in (502, 503, 504) else ProviderError
        return kind(text, retryable=True, outcome="unknown", **where)
    return ProviderError(text, retryable=status in (408, 409), **where)


def refused(error: OpenEnvError, *statuses: int) -> bool:
    """Whether islo answered one of ``statuses``."""
    return error.__cause__ is not None and status_of(error.__cause__) in statuses


class Token:
    """The session token that an access key is exchanged for, fetched once for all who wait.

    The SDK's own keeps one asyncio lock for the whole process, which fails once two loops want a token.
    """

    def __init__(self, control: str, key: str) -> None:
        self._control, self._key = control, key
        self._value, self._until = "", 0.0
        self._lock = asyncio.Lock()

    async def __call__(self) -> str:
        """The token; a new one shortly before the last one ends."""
        from islo.custom import exchange_access_key

        async with self._lock:
            if time.monotonic() >= self._until:
                try:
                    answer = await daemon_call(exchange_access_key, self._control, self._key)
                except Exception as error:
                    ours = translate(error, what="logging in")
                    ours.outcome = "failed"  # nothing was asked for yet
                    raise ours from error
                self._value = answer["session_token"]
                self._until = time.monotonic() + max(float(answer.get("cookie_max_age", 600)) - _EARLY_S, 0.0)
        return self._value


class Api:
    """One account.

    Args:
        control: Address of the control plane.
        compute: Address of the plane that has the sandboxes.
        scope: Of the refs.
    """

    def __init__(self, control: str, compute: str, scope: str) -> None:
        self.control, self.compute, self.scope = control, compute, scope
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Any]]
        self._clients = weakref.WeakKeyDictionary()
        self._closed: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    async def _client(self) -> tuple[Any, Any]:
        """A client and what carries it, made in a thread: certificates are read from disk."""
        import httpx
        from islo import AsyncIslo

        key = os.environ.get(KEY)
        if not key:  # the SDK would go on without a login
            raise ProviderUnavailable(f"islo: {KEY} not set", provider=NAME, hint=f"export {KEY}=…")
        token = Token(self.control, key)

        def make() -> tuple[Any, Any]:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            http = httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(REQUEST_S, connect=CONNECT_S))
            sdk = AsyncIslo(
                base_url=self.control, compute_url=self.compute, async_token=token, httpx_client=http, timeout=REQUEST_S
            )
            return sdk, http

        return await daemon_call(make)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """The client of the running loop. What is still to be done after `aclose` has one of its own."""
        loop = asyncio.get_running_loop()
        if loop in self._closed:
            sdk, http = await self._client()
            try:
                yield sdk
            finally:
                await http.aclose()
            return
        making = self._clients.get(loop)
        if making is None:
            making = self._clients[loop] = asyncio.ensure_future(self._client())
        try:
            sdk, _ = await asyncio.shield(making)
        except OpenEnvError:
            if self._clients.get(loop) is making:
                del self._clients[loop]
            raise
        yield sdk

    async def call(self, what: str, fn: Callable[[Any], Awaitable[T]], *, ref: SandboxRef | None = None) -> T:
        """``fn(client)``.

        Raises:
            OpenEnvError: What `translate` makes of the SDK's error.
        """
        try:
            async with self.session() as client:
                return await fn(client)
        except Exception as error:
            # What cannot be parsed is repeated in the SDK's text: it may hold the address of a share.
            cause = None if type(error).__name__ in ("ParsingError", "ValidationError") else error
            raise translate(error, what=what, ref=ref) from cause

    async def poll(
        self,
        what: str,
        fn: Callable[[Any], Awaitable[T]],
        done: Callable[[T], bool],
        *,
        ref: SandboxRef | None = None,
        longest: float = 1.0,
    ) -> T:
        """Ask until ``done``; the caller has the deadline. A look that may succeed later is no answer."""
        pause = 0.05
        while True:
            wait = 0.0
            try:
                if done(answer := await self.call(what, fn, ref=ref)):
                    return answer
            except OpenEnvError as error:
                if not error.retryable:
                    raise
                wait = error.retry_after or 0.0 if isinstance(error, RateLimited) else 0.0
            await asyncio.sleep(max(pause, wait))
            pause = min(pause * 1.5, longest)

    async def aclose(self) -> None:
        """Close the client of the running loop."""
        loop = asyncio.get_running_loop()
        self._closed.add(loop)
        making = self._clients.pop(loop, None)
        if making is not None:
            with contextlib.suppress(OpenEnvError):
                await (await making)[1].aclose()
