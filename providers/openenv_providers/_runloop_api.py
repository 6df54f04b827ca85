"""Runloop's generated client, one for each event loop, and the one table that turns its errors into ours."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox import backend_kit
from openenv_sandbox.backend_kit import Row, poll
from openenv_sandbox.errors import AuthError, OpenEnvError, ProviderUnavailable, SandboxGone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

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
PATIENCE_S = 10.0
"""How long a look may fail amid a longer wait."""

TABLE: Mapping[int, Row] = {
    401: Row(AuthError, hint="is RUNLOOP_API_KEY right, and of this RUNLOOP_BASE_URL?"),
    403: Row(AuthError, hint="the key lacks a permission; see its scopes in the dashboard"),
    404: Row(SandboxGone),
    503: Row(ProviderUnavailable, True, "see https://status.runloop.ai"),
}


def translate(error: Exception, *, what: str, ref: SandboxRef | None = None, started: bool = False) -> OpenEnvError:
    """Ours for any error of the SDK.

    Args:
        error: What it raised.
        what: What was attempted, as the beginning of a sentence.
        ref: The devbox, where there is one.
        started: The request may have had an effect although no good answer came.
    """
    return backend_kit.translate(
        error, provider="runloop", what=what, ref=ref, acted=started, said=said(error), table=TABLE
    )


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
        # Certificates are read from disk.
        self.clients = backend_kit.PerLoop[Any](partial(asyncio.to_thread, self._client), lambda client: client.close())

    def _client(self) -> Any:
        import httpx
        from runloop_api_client import AsyncRunloop

        mimetypes.guess_type("data")  # reads /etc/mime.types once; httpx would do so on the loop, at the first upload
        # The SDK's own pools put all requests on a few HTTP/2 connections, where questions that the service holds
        # (one for each devbox) would take the places of others. Core repeats what may be repeated.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        http = httpx.AsyncClient(base_url=self.base_url, limits=limits, timeout=httpx.Timeout(30.0, connect=5.0))
        return AsyncRunloop(bearer_token=self._key, base_url=self.base_url, max_retries=0, http_client=http)

    async def call(
        self, what: str, fn: Callable[[Any], Awaitable[T]], *, ref: SandboxRef | None = None, started: bool = False
    ) -> T:
        """``fn(client)``; every request in it has the client's own timeout.

        Raises:
            OpenEnvError: What `translate` makes of the SDK's error.
        """
        if not self._key:
            raise ProviderUnavailable("RUNLOOP_API_KEY not set", provider="runloop", hint="export RUNLOOP_API_KEY=…")
        try:
            async with self.clients.use() as client:
                return await fn(client)
        except Exception as error:
            raise translate(error, what=what, ref=ref, started=started) from error

    async def rows(self, what: str, pages: Callable[[Any], Any]) -> list[Any]:
        """Everything of a listing, over all its pages."""

        async def collect(client: Any) -> list[Any]:
            return [row async for row in pages(client)]

        return await self.call(what, collect)

    async def patient(self, what: str, fn: Callable[[Any], Awaitable[T]], *, ref: SandboxRef | None = None) -> T:
        """`call` for a look amid a longer wait: what may succeed later is asked again for a while."""
        return await poll(
            lambda: self.call(what, fn, ref=ref), lambda found: True, deadline=PATIENCE_S, first=0.25, factor=2.0
        )

    async def held(self, path: str, statuses: Sequence[str], model: Any, ref: SandboxRef) -> Any:
        """One question that the service holds until a status is reached; None when it was not."""
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

        return await self.call("asking for the status", ask, ref=ref)

    async def reached(self, path: str, statuses: Sequence[str], model: Any, ref: SandboxRef) -> Any:
        """`held`, again and again; a question that fails is asked again for a while."""

        async def look() -> Any:
            return await self.held(path, statuses, model, ref)

        while True:
            found = await poll(look, lambda found: True, deadline=PATIENCE_S, first=0.25, factor=2.0)
            if found is not None:
                return found

    async def aclose(self) -> None:
        """Close the client of the running loop."""
        await self.clients.aclose()
