"""What every client is made of: its configuration, the face it is used by, and the life of its session."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import anyio

from openenv_sandbox import _observers, portal
from openenv_sandbox.client import target as targets
from openenv_sandbox.client.blocking import BlockingConnection
from openenv_sandbox.client.connection import Connection, Settings, again
from openenv_sandbox.client.containers import Face, OwnContainer
from openenv_sandbox.client.handles import Handle, refuse_trio
from openenv_sandbox.client.transport import AsyncConnection
from openenv_sandbox.errors import (
    ConfigError,
    ConnectError,
    MessageTooLarge,
    OpenEnvError,
    ProtocolError,
    SessionLost,
    UsageError,
)
from openenv_sandbox.wire import codec, messages
from openenv_sandbox.wire.error_frames import from_error_frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from openenv_sandbox.provider import Endpoint

driving: contextvars.ContextVar[bool] = contextvars.ContextVar("openenv_driving", default=False)
"""Set while the blocking face runs a coroutine method of a subclass: awaiting inside it is not a change of face."""

_HOOK_S = 5.0
_DIAL_TRIES = 3


class ClientCore(OwnContainer):
    """Configuration and session of one client."""

    allow_insecure: bool = False
    """Accept that headers or a token travel unencrypted to a public address."""

    def _configure(
        self, base_url: str | None, settings: Settings, headers: Mapping[str, str] | None, provider: Any
    ) -> None:
        if base_url is None and provider is None:
            raise ConfigError("a client needs a base_url or a provider", hint="or use launch() to start one")
        if base_url is not None:
            targets.split_base(base_url)
        self._base_url = base_url.rstrip("/") if base_url else ""
        self._settings = settings
        self._headers = targets.check_headers(headers or {})
        self._provider, self._provider_runs = provider, False
        self._reset_session()
        self._recognise()

    def _reset_session(self) -> None:
        self._face: Face | None = None
        self._conn: Connection | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._children: weakref.WeakSet[Any] = weakref.WeakSet()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._moved = (0, 0)
        self._query = ""
        self._endpoint: Endpoint | None = None
        self._endpoint_used = False
        self._refresh: Callable[[], Awaitable[Endpoint]] | None = None
        self._token: str | None = None
        self._sandbox: Any = None
        self._on_close: Callable[[], Awaitable[None]] | None = None
        self._death: Callable[[], Awaitable[OpenEnvError | None]] | None = None
        self._home: asyncio.AbstractEventLoop | None = None

    def _bind(
        self,
        endpoint: Endpoint,
        *,
        refresh: Callable[[], Awaitable[Endpoint]] | None = None,
        token: str | None = None,
        sandbox: Any = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        death: Callable[[], Awaitable[OpenEnvError | None]] | None = None,
    ) -> None:
        """Tie the client to a sandbox; called by the launcher in the loop the callables belong to."""
        self._endpoint, self._refresh, self._token = endpoint, refresh, token
        self._sandbox, self._on_close, self._death = sandbox, on_close, death
        self._base_url = endpoint.url.rstrip("/")
        self._home = _running_loop()
        if on_close is not None:
            portal.closes_at_exit(self, ClientCore._close_async)

    # ---------------------------------------------------------------------------------------------------- faces

    def _call(self, make: Callable[[], Coroutine[Any, Any, Any]], label: str) -> Any:
        """The value outside a loop, a handle inside one."""
        if _running_loop() is None:
            if "trio" in sys.modules:
                refuse_trio()
            return self._block(make)
        return Handle(self, make, label)

    def _enter(self) -> None:
        if not driving.get():
            self._pin("async")

    async def _awaited(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._enter()
        return await make()

    def _block(self, make: Callable[[], Coroutine[Any, Any, Any]], *, touched: str = "", pin: bool = True) -> Any:
        """Perform a call in this thread, without a loop."""
        if driving.get():
            return drive(make())
        self._check_process()
        with self._lock:
            if pin:
                self._pin("sync", touched)
            return drive(make())

    def _pin(self, face: Face, touched: str = "") -> None:
        if self._face == face:
            return
        conn = self._conn
        if conn is not None and conn.lost is None:
            awaited = isinstance(conn, AsyncConnection)
            if isinstance(conn, AsyncConnection) and conn.loop.is_closed():
                conn.abort("the event loop it was opened in has ended")
            elif awaited != (face == "async"):
                raise self._mixed(face, touched)
        self._face = face

    def _mixed(self, face: Face, touched: str) -> UsageError:
        if touched:
            return UsageError(
                f"the result of {touched}() was used without await, while this client is used by await",
                hint=f"write: await client.{touched}(...)",
            )
        first, second = ("blocking calls", "await") if face == "async" else ("await", "blocking calls")
        return UsageError(
            f"this client's session was opened by {first} and cannot be used by {second}",
            hint="close() it first, or make a second client; new_session() gives one",
        )

    def _check_process(self) -> None:
        pid = os.getpid()
        if self._pid == pid:
            return
        if self._conn is not None or self._on_close is not None:
            raise UsageError(
                f"this client's session belongs to process {self._pid}; a forked child would share its socket",
                hint="make a new client in the child",
            )
        # Nothing was open: the child begins afresh, with locks that no thread of the parent may hold.
        self._pid, self._lock, self._opening = pid, threading.RLock(), None

    # -------------------------------------------------------------------------------------------------- session

    async def _session(self, fresh: bool) -> Connection:
        """The open session; with ``fresh`` a lost one is replaced.

        Raises:
            SessionLost: The session ended, and its state with it.
            UsageError: It belongs to another loop or process.
        """
        conn = self._conn
        if conn is not None:
            self._check_process()
            if isinstance(conn, AsyncConnection) and conn.loop is not _running_loop():
                if not conn.loop.is_closed():
                    raise UsageError(
                        "this client's session belongs to another event loop",
                        hint="use it in the loop it was opened in, close() it there, or use .sync() for many threads",
                    )
                conn.abort("the event loop it was opened in has ended")
            if conn.lost is None:
                return conn
            if not fresh:
                raise again(conn.lost)
        await self._connect()
        assert self._conn is not None
        return self._conn

    def _live(self) -> Connection | None:
        """The open session, where it may be used at once; all else is for `_session`, which costs a step more."""
        conn = self._conn
        if conn is None or conn.lost is not None or conn.pid != os.getpid():
            return None
        elsewhere = isinstance(conn, AsyncConnection) and conn.loop is not _running_loop()
        return None if elsewhere else conn

    async def _connect(self) -> None:
        self._check_process()
        if self._face == "sync":
            if self._conn is None or self._conn.lost is not None:
                self._conn = await self._open()
            return
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        async with self._opening[1]:
            if self._conn is None or self._conn.lost is not None:
                self._conn = await self._open()

    async def _open(self) -> Connection:
        await self._start_provider()
        await self._before_open()
        endpoint = self._endpoint
        if self._refresh is not None and endpoint is not None:
            expired = endpoint.expires_at is not None and endpoint.expires_at <= time.time()
            if self._endpoint_used or expired or endpoint.failure() is not None:
                endpoint = self._endpoint = await self._at_home(self._refresh)
        self._endpoint_used = True
        where = targets.resolve(
            self._base_url,
            query=self._query,
            headers=self._headers,
            endpoint=endpoint,
            token=self._token,
            allow_insecure=self.allow_insecure,
        )
        kind: type[AsyncConnection | BlockingConnection]
        kind = BlockingConnection if self._face == "sync" else AsyncConnection
        for attempt in range(1, _DIAL_TRIES + 1):
            try:
                return await kind.open(where, self._settings)
            except ConnectError as error:
                # Opening is idempotent, and the first connection after a standby is often reset. Steps never repeat.
                if attempt == _DIAL_TRIES or not isinstance(error.__cause__, ConnectionResetError):
                    explained = await self._explained(error)
                    if explained is error:
                        raise
                    raise explained from error
                await self._pause(0.05 * attempt)
        raise AssertionError("unreachable")

    async def _before_open(self) -> None:
        """Hook of subclasses that need something before the socket."""

    async def _pause(self, seconds: float) -> None:
        if self._face == "sync":
            time.sleep(seconds)  # noqa: ASYNC251 - the blocking face runs in a thread of the caller's
        else:
            await asyncio.sleep(seconds)

    async def _request(self, message: dict[str, Any], *, expect: str, fresh: bool = False) -> Any:
        """One message and the ``data`` of its reply."""
        if not _observers.calls:
            return await self._exchange(message, expect, fresh)
        kind = str(message.get("type"))
        return await _observers.observed(self, kind, lambda: self._exchange(message, expect, fresh))

    async def _exchange(self, message: dict[str, Any], expect: str, fresh: bool) -> Any:
        payload = codec.dumps(message)
        try:
            conn = self._live() or await self._session(fresh)
            raw = await conn.exchange(payload, self._settings.message_timeout)
            self._moved = (len(payload), len(raw))
        except SessionLost as error:
            explained = await self._explained(error)
            if explained is error:
                raise
            raise explained from error
        try:
            reply = codec.loads(raw)
            kind = reply["type"]
            data = reply.get("data")
        except (ValueError, TypeError, KeyError, AttributeError):
            conn.abort("the server sent something that is no message")
            raise ProtocolError("the server sent something that is no message", code="PROTOCOL") from None
        if kind == messages.ERROR:
            raise self._error(conn, data if isinstance(data, dict) else {})
        if kind != expect:
            conn.abort(f"the server answered {message.get('type')} with {kind}")
            raise ProtocolError(f"the server answered {message.get('type')!r} with {kind!r}", code="PROTOCOL")
        return data

    def _error(self, conn: Connection, data: dict[str, Any]) -> OpenEnvError:
        error = from_error_frame(data)
        if error.code in messages.FATAL:
            conn.abort(error.message)
            if self._conn is conn:
                self._conn = None
        if error.code == messages.MESSAGE_TOO_LARGE:
            return MessageTooLarge(error.message, outcome="unknown")
        return error

    async def _explained(self, error: OpenEnvError) -> OpenEnvError:
        """The deeper reason for a dead connection, where the launcher or the endpoint knows one."""
        if self._endpoint is not None and (cause := self._endpoint.failure()) is not None:
            error.message += f"; the way to the sandbox failed: {cause}"
            error.__cause__ = cause
        if self._death is None:
            return error
        try:
            found = await self._at_home(self._death, timeout=_HOOK_S)
        except Exception:
            return error
        if found is None:
            return error
        assert isinstance(found, OpenEnvError)
        return found

    async def _at_home(self, fn: Callable[[], Awaitable[Any]], *, timeout: float | None = None) -> Any:
        """Await one of the launcher's callables in the loop it belongs to."""
        here = _running_loop()
        home = self._home
        if here is not None and (home is None or home is here or home.is_closed()):
            if timeout is None:
                return await fn()
            with anyio.move_on_after(timeout):
                return await fn()
            return None
        if self._face == "sync" or here is None:
            return portal.run_sync(fn) if home is None else portal.call_in(home, fn, timeout=timeout)

        async def run() -> Any:
            return await fn()

        assert home is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), home))

    # ----------------------------------------------------------------------------------------------------- close

    async def _end_session(self) -> None:
        conn, self._conn = self._conn, None
        if conn is None:
            return
        if conn.pid != os.getpid():
            return
        if isinstance(conn, AsyncConnection):
            here = _running_loop()
            if conn.loop is not here:
                if conn.loop.is_running():
                    closing = asyncio.run_coroutine_threadsafe(conn.close(), conn.loop)
                    limit = self._settings.close_timeout + 1
                    with contextlib.suppress(Exception):
                        await asyncio.wrap_future(closing) if here is not None else closing.result(limit)
                else:
                    conn.abort("it was closed outside its event loop")
                return
        await conn.close()

    async def _close_async(self) -> None:
        """End the session, then whatever was started for it."""
        children, self._children = list(self._children), weakref.WeakSet()
        try:
            for child in children:
                with contextlib.suppress(OpenEnvError, OSError):
                    await child._close_async()
            await self._end_session()
        finally:
            on_close, self._on_close = self._on_close, None
            try:
                if on_close is not None:
                    await self._at_home(on_close)
            finally:
                portal.closed(self)
                await self._stop_provider()
                self._face = None
                loop, self._own_loop = self._own_loop, None
                if loop is not None and not loop.is_running():
                    loop.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def drive(coro: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends.

    Raises:
        UsageError: It needs an event loop after all.
    """
    try:
        coro.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        coro.close()
    raise UsageError(
        "this call waits for an event loop, which the blocking face does not have", hint="await it instead"
    )
