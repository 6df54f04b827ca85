"""Waiting until the server inside a sandbox answers, and saying why it does not.

/health through the real endpoint with the real headers is the only proof. What the sandbox writes wakes the probe; its
end is noticed as an event; in between the probe backs off from 10 ms.
"""

from __future__ import annotations

import asyncio
import shlex
import socket
import ssl
from typing import TYPE_CHECKING, Protocol

from openenv_sandbox import probe
from openenv_sandbox.errors import AuthError, EndpointError, OpenEnvError, ReadyTimeout, SandboxGone, ServerExited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Any

    from openenv_sandbox.provider import Endpoint, Exit, SandboxRef

FIRST_WAIT_S, FACTOR, LONGEST_WAIT_S = 0.01, 1.3, 0.5
PROBE_S = 5.0
LOOK_AGAIN_S = 30.0
"""Longest pause between two looks at the server's end while looking fails, in seconds."""
AUTH_ANSWERS = 3
LOG_LINES, LOG_BYTES = 50, 1 << 16


class Server(Protocol):
    """What readiness wants to know of a server."""

    @property
    def ref(self) -> SandboxRef:
        """Its sandbox."""

    async def wait_exit(self) -> Exit:
        """Return when it has ended."""

    async def first_output(self) -> None:
        """Return when it has written something; may never return."""


async def wait_ready(
    endpoint_fn: Callable[[], Awaitable[Endpoint]],
    server: Server,
    *,
    timeout: float,
    token: str | None = None,
    command: Sequence[str] | None = None,
    port: int = 8000,
    logs: Callable[[], Awaitable[bytes]] | None = None,
) -> Endpoint:
    """The endpoint, once /health answered through it.

    Args:
        endpoint_fn: Gives the way to the port; asked again while the port is not published yet.
        server: Whose end and first output are watched.
        timeout: Seconds.
        token: Sent as the client will send it.
        command: What the server runs, for messages.
        port: Likewise.
        logs: The server's output, for messages.

    Raises:
        ServerExited: It ended; carries exit code, command and its last 50 lines.
        AuthError: The way asks for credentials that were not given or are wrong.
        EndpointError: The way leads elsewhere (a redirect).
        ReadyTimeout: Nothing good answered in time; says what did.
        SandboxGone: The sandbox ended.
    """
    waiting = _Waiting(endpoint_fn, server, timeout, token, command, port, logs)
    try:
        return await waiting.run()
    except BaseException:
        if waiting.endpoint is not None:
            endpoint, waiting.endpoint = waiting.endpoint, None
            await _quietly(endpoint.aclose())
        raise
    finally:
        for task in waiting.tasks:
            task.cancel()


class _Waiting:
    def __init__(
        self,
        endpoint_fn: Callable[[], Awaitable[Endpoint]],
        server: Server,
        timeout: float,
        token: str | None,
        command: Sequence[str] | None,
        port: int,
        logs: Callable[[], Awaitable[bytes]] | None,
    ) -> None:
        self.endpoint_fn, self.server, self.timeout, self.token = endpoint_fn, server, timeout, token
        self.command, self.port, self.logs = command, port, logs
        self.endpoint: Endpoint | None = None
        self.attempts = self.refusals = 0
        self.last: BaseException | str = "nothing was tried"
        self.url = ""
        loop = asyncio.get_running_loop()
        self.began, self.end = loop.time(), loop.time() + timeout
        self.exit: asyncio.Task[Exit] = loop.create_task(lasting_exit(server))
        self.hint: asyncio.Task[None] = loop.create_task(server.first_output())
        self.tasks: tuple[asyncio.Task[Any], ...] = (self.exit, self.hint)
        for task in self.tasks:
            task.add_done_callback(lambda t: t.cancelled() or t.exception())

    @property
    def elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self.began

    async def run(self) -> Endpoint:
        wait, hinted = FIRST_WAIT_S, False
        while True:
            left = self.end - asyncio.get_running_loop().time()
            if left <= 0:
                raise await self._timed_out()
            try:
                found = await self._unless_ended(self._try(min(PROBE_S, left)), left)
            except SandboxGone:
                # The backend's answer came before the news of how it ended, which says more.
                await asyncio.wait({self.exit}, timeout=1)
                if self.exit.done() and not self.exit.cancelled():
                    raise await self._exited() from None
                raise
            if found is not None:
                return found
            if not hinted and self.hint.done():
                # It speaks, so it will listen in a moment: look at once, and then closely.
                hinted, wait = True, FIRST_WAIT_S
                continue
            waited: set[asyncio.Task[Any]] = {self.exit} if hinted else {self.exit, self.hint}
            await asyncio.wait(waited, timeout=min(wait, left), return_when=asyncio.FIRST_COMPLETED)
            wait = min(wait * FACTOR, LONGEST_WAIT_S)
            if self.exit.done():
                raise await self._exited()

    async def _unless_ended(self, attempt: Coroutine[Any, Any, Endpoint | None], left: float) -> Endpoint | None:
        task = asyncio.get_running_loop().create_task(attempt)
        try:
            await asyncio.wait({task, self.exit}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self.exit.done():
                raise await self._exited()
            self.last = "no answer"
            return None
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1)

    async def _try(self, timeout: float) -> Endpoint | None:
        self.attempts += 1
        try:
            if self.endpoint is None:
                self.endpoint = await self.endpoint_fn()
                self.url = _shown(self.endpoint.url)
            answer = await probe.get(self.endpoint, "/health", token=self.token, timeout=timeout)
        except EndpointError as error:
            if not error.retryable:
                raise
            self.last = error
        except asyncio.TimeoutError:
            self.last = f"no answer within {timeout:g} s"
        except OSError as error:
            self.last = error
        else:
            return await self._judge(answer)
        await self._look_at_way()
        return None

    async def _look_at_way(self) -> None:
        endpoint = self.endpoint
        if endpoint is not None and (cause := endpoint.failure()) is not None:
            self.last, self.endpoint = cause, None
            await _quietly(endpoint.aclose())

    async def _judge(self, answer: probe.Answer) -> Endpoint | None:
        status = answer.status
        if 200 <= status < 300:
            return self.endpoint
        self.last = f"HTTP {status}"
        self.refusals = self.refusals + 1 if status in (401, 403) or 300 <= status < 400 else 0
        if self.refusals < AUTH_ANSWERS:
            return None
        if status in (401, 403):
            raise AuthError(
                f"{self.url}/health answered {status}: the way to the sandbox wants other credentials",
                ref=self.server.ref,
                hint="check the backend's API key and whether this port is private",
            )
        where = _shown(answer.headers.get("location", "")) or "nowhere"
        raise EndpointError(
            f"{self.url}/health answered {status} and points to {where}: most likely a login page (auth)",
            ref=self.server.ref,
            retryable=False,
            hint="the port is private and the request carried no accepted token; check the backend's API key",
        )

    # -------------------------------------------------------------------------------------------------- endings

    async def _exited(self) -> OpenEnvError:
        error = None if self.exit.cancelled() else self.exit.exception()
        if isinstance(error, OpenEnvError):
            return error
        if error is not None:
            return SandboxGone(f"the sandbox ended: {error}", ref=self.server.ref)
        ended = self.exit.result()
        log = tail_text(ended.tail) or await self._log()
        what = f" (command: {shlex.join(self.command)})" if self.command else ""
        return ServerExited(
            f"the server exited with {ended} {self.elapsed:.1f} s after its start, before it was ready{what}",
            exit_code=ended.code,
            log=log,
            ref=self.server.ref,
            hint=exit_hint(ended.code),
        )

    async def _timed_out(self) -> ReadyTimeout:
        kind, hint = _explain(self.last, self.port)
        where = f"{self.url}/health" if self.url else f"port {self.port}"
        return ReadyTimeout(
            f"the server did not become ready: {where} last gave {kind} after {self.attempts} attempts "
            f"in {self.elapsed:.1f} s (limit {self.timeout:g} s)",
            attempts=self.attempts,
            last=kind,
            log=await self._log(),
            ref=self.server.ref,
            hint=hint,
        )

    async def _log(self) -> str:
        if self.logs is None:
            return ""
        try:
            return tail_text(await asyncio.wait_for(self.logs(), 5))
        except Exception:
            return ""


EXIT_HINTS: dict[int, str] = {
    126: "the command is there but cannot be executed",
    127: "the command was not found in the image: check it, or give command=",
    137: "it was killed, most often for want of memory",
}


def exit_hint(code: int | None) -> str | None:
    """What an exit code most often means."""
    return EXIT_HINTS.get(code) if code is not None else None


def _explain(last: BaseException | str, port: int) -> tuple[str, str]:
    """What the last attempt gave, and what most likely helps."""
    if isinstance(last, str):
        if last == "HTTP 404":
            return last, "something answers there, but not an OpenEnv server: check port= and the command"
        if last.startswith("HTTP 5"):
            return last, "the server or the proxy before it is failing: see its log, or raise timeouts.ready"
        return last, f"is it listening on 0.0.0.0:{port}? else raise timeouts.ready"
    if isinstance(last, socket.gaierror):
        return f"a DNS error ({last})", "the name of the sandbox does not resolve here: check DNS, VPN and proxy"
    if isinstance(last, ConnectionRefusedError):
        return (
            "ConnectionRefusedError",
            f"nothing listens: does the server bind 0.0.0.0:{port}, or $PORT where set? else raise timeouts.ready",
        )
    if isinstance(last, ssl.SSLError):
        return f"{type(last).__name__} ({last})", "the certificate is not accepted: check SSL_CERT_FILE and proxies"
    name = type(last).__name__
    text = last.message if isinstance(last, OpenEnvError) else str(last)
    return f"{name} ({text})" if text else name, f"is it listening on 0.0.0.0:{port}? else raise timeouts.ready"


def tail_text(raw: bytes) -> str:
    """The last lines as they may be shown."""
    from openenv_sandbox.redact import clean, mask

    return "\n".join(mask(clean(raw[-LOG_BYTES:].decode("utf-8", "replace"))).rstrip().split("\n")[-LOG_LINES:])


async def lasting_exit(server: Server) -> Exit:
    """The server's end; a look that fails and may succeed later is no news of it, and is begun again."""
    pause = 0.25
    while True:
        try:
            return await server.wait_exit()
        except OpenEnvError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LOOK_AGAIN_S)


def _shown(url: str) -> str:
    from openenv_sandbox.client.target import shown

    return shown(url).rstrip("/") if url else ""


async def _quietly(closing: Awaitable[None]) -> None:
    try:
        await closing
    except Exception:
        return
