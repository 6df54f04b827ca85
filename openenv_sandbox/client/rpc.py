"""JSON-RPC over HTTP to the same server a session is with: same headers, same way, either face."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_sandbox.client import handshake
from openenv_sandbox.client.target import http_url
from openenv_sandbox.errors import ProtocolError, StepTimeout
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    import httpx

    from openenv_sandbox.client.target import Target


class RpcError(ProtocolError):
    """The server answered with a JSON-RPC error; ``number`` is its code."""

    def __init__(self, message: str, *, number: int = 0, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.number = number


class Rpc:
    """Calls to ``/mcp``.

    Args:
        base_url: Address of the server.
        target: The way to it, as the session takes it.
        connect_timeout: In seconds.
        timeout: Longest wait for an answer, in seconds; None for no bound.
    """

    def __init__(self, base_url: str, target: Target, connect_timeout: float, timeout: float | None) -> None:
        self._url = http_url(base_url, "/mcp")
        self._target = target
        self._timeouts = (connect_timeout, timeout)
        self._ids = itertools.count(1)
        self._blocking: httpx.Client | None = None
        self._awaited: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def call(self, method: str, params: dict[str, Any], *, blocking: bool) -> Any:
        """The ``result`` of one call.

        Raises:
            RpcError: The server answered with an error.
            ConnectError: Nothing answered, or something that is no such server.
            StepTimeout: No answer in time.
        """
        import httpx

        message = {"jsonrpc": "2.0", "method": method, "params": params, "id": next(self._ids)}
        url, kwargs = self._request()
        try:
            if blocking:
                response = self._client().post(url, json=message, **kwargs)
            else:
                response = await self._async_client().post(url, json=message, **kwargs)
        except httpx.ConnectTimeout:
            raise handshake.failed(self._target, f"no answer within {self._timeouts[0]:g} s") from None
        except httpx.TimeoutException:
            raise StepTimeout(
                f"{method} at {self._target.url} was not answered within {self._timeouts[1]:g} s"
            ) from None
        except httpx.HTTPError as error:
            raise handshake.failed(self._target, str(error) or type(error).__name__) from error
        if response.status_code != 200:
            headers = {name.lower(): value for name, value in response.headers.items()}
            head = handshake.Head(response.status_code, response.reason_phrase, headers)
            raise handshake.refused(self._target, head, response.content)
        try:
            reply = codec.loads(response.content)
            failure = reply.get("error")
        except (ValueError, AttributeError):
            raise handshake.failed(self._target, "POST /mcp was answered by something that is no JSON-RPC") from None
        if failure:
            if not isinstance(failure, dict):  # of a gateway in between
                failure = {"message": failure}
            text = str(failure.get("message") or "unknown error")
            data = failure.get("data") if isinstance(failure.get("data"), dict) else {}
            code = failure.get("code")
            number = code if isinstance(code, int) else 0
            raise RpcError(f"Server error: {text} (code: {number})", number=number, code=str(number), data=data)
        return reply.get("result")

    def _request(self) -> tuple[str, dict[str, Any]]:
        parts = urlsplit(self._url)
        host, port = self._target.dial
        if self._target.proxy is not None or (host, port) == (parts.hostname, parts.port):
            return self._url, {"headers": dict(self._target.headers)}
        # Dialled elsewhere: Host, SNI and the certificate check keep the URL's name.
        literal = f"[{host}]" if ":" in host else host
        headers = {"Host": self._target.netloc, **self._target.headers}
        url = parts._replace(netloc=f"{literal}:{port}").geturl()
        return url, {"headers": headers, "extensions": {"sni_hostname": self._target.host}}

    def _options(self) -> dict[str, Any]:
        import httpx

        options: dict[str, Any] = {
            "trust_env": False,
            "timeout": httpx.Timeout(self._timeouts[1], connect=self._timeouts[0]),
        }
        if self._target.tls is not None:
            options["verify"] = self._target.tls
        proxy = self._target.proxy
        if proxy is not None:
            login = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else None
            options["proxy"] = httpx.Proxy(f"http://{proxy.host}:{proxy.port}", headers=login)
        return options

    def _client(self) -> httpx.Client:
        import httpx

        if self._blocking is None:
            self._blocking = httpx.Client(**self._options())
        return self._blocking

    def _async_client(self) -> httpx.AsyncClient:
        import httpx

        loop = asyncio.get_running_loop()
        if self._awaited is None or self._awaited[0] is not loop:
            self._awaited = (loop, httpx.AsyncClient(**self._options()))
        return self._awaited[1]

    async def aclose(self) -> None:
        """Let go of the sockets. May be called twice."""
        blocking, self._blocking = self._blocking, None
        awaited, self._awaited = self._awaited, None
        if blocking is not None:
            blocking.close()
        if awaited is not None and awaited[0].is_running():  # sockets of another loop end with it
            await awaited[1].aclose()
