"""Commands and port-forwards: the channels of the API server's WebSockets."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from openenv_providers._kube_objects import CONTAINER
from openenv_sandbox.errors import EndpointError, ExecError, OpenEnvError
from openenv_sandbox.values import RawResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openenv_providers._kube_api import Api
    from openenv_sandbox.values import OutputSink, SandboxRef

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
_CHUNK = 1 << 16
# v4 cannot say that stdin ends: the shell counts.
_COUNTED = 'n=$1; shift; head -c "$n" | "$@"'


class ConnectionCut(ExecError):
    """The command's connection ended without its result."""

    default_outcome = "unknown"


async def run(
    api: Api, path: str, ref: SandboxRef, argv: Sequence[str], stdin: bytes | None, on_output: OutputSink
) -> RawResult:
    """One command in the container.

    Raises:
        ExecError: It could not be run, or the connection broke before it ended.
    """
    socket = await _open(api, path, argv, stdin)
    sender = asyncio.ensure_future(_feed(socket, stdin)) if stdin is not None else None
    status = b""
    try:
        async for message in socket:
            data = message.data
            if not isinstance(data, bytes) or not data:
                continue
            channel = data[0]
            if channel == _STATUS:
                status += data[1:]
            elif channel in (_STDOUT, _STDERR) and len(data) > 1:
                on_output("stdout" if channel == _STDOUT else "stderr", data[1:])
    finally:
        if sender is not None:
            sender.cancel()
            await asyncio.wait({sender})
        await socket.close()
    return _result(status, ref)


async def _open(api: Api, path: str, argv: Sequence[str], stdin: bytes | None) -> Any:
    """The command is part of the address, so its form has to be chosen before the protocol is agreed upon."""
    if stdin is None:
        return await api.socket(f"{path}/exec", query=_query(argv, stdin=False), protocols=(V5, V4))
    if api.closes_stdin:
        try:
            return await api.socket(f"{path}/exec", query=_query(argv, stdin=True), protocols=(V5,))
        except OpenEnvError as error:
            if error.outcome == "unknown":
                raise
            api.closes_stdin = False  # another server behind the same address, which is older
    counted = ["/bin/sh", "-c", _COUNTED, "oe", str(len(stdin)), *argv]
    socket = await api.socket(f"{path}/exec", query=_query(counted, stdin=True), protocols=(V5, V4))
    api.closes_stdin = socket.protocol == V5
    return socket


def _query(argv: Sequence[str], *, stdin: bool) -> list[tuple[str, str]]:
    flags = [("container", CONTAINER), ("stdout", "true"), ("stderr", "true"), ("stdin", "true" if stdin else "false")]
    return [*(("command", word) for word in argv), *flags]


async def _feed(socket: Any, stdin: bytes) -> None:
    try:
        for start in range(0, len(stdin), _CHUNK):
            await socket.send_bytes(bytes([_STDIN]) + stdin[start : start + _CHUNK])
        if socket.protocol == V5:
            await socket.send_bytes(bytes([_CLOSE, _STDIN]))
    except ConnectionError:
        return  # the command ended without reading all of it


def _result(status: bytes, ref: SandboxRef) -> RawResult:
    if not status:
        raise ConnectionCut("the connection of the command broke before it ended", ref=ref, retryable=False)
    try:
        said = json.loads(status)
    except ValueError:
        said = {"message": status.decode("utf-8", "replace")}
    if said.get("status") == "Success":
        return RawResult(0)
    for cause in (said.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return RawResult(int(cause["message"]))
    raise ExecError(f"the command could not be run: {said.get('message')}", ref=ref)


class PortStream:
    """One connection to a port, as `openenv_sandbox.tunnel.forward` wants it."""

    def __init__(self, socket: Any, ref: SandboxRef, port: int) -> None:
        self._socket, self._ref, self._port = socket, ref, port
        self._greeted: set[int] = set()

    async def receive(self) -> bytes:
        while True:
            message = await self._socket.receive()
            data = message.data
            if not isinstance(data, bytes):
                return b""
            if not data:
                continue
            channel, rest = data[0], data[1:]
            if channel not in self._greeted:  # both channels begin with the number of the port
                self._greeted.add(channel)
                rest = rest[2:]
            if not rest:
                continue
            if channel == 1:
                raise EndpointError(
                    f"port {self._port} cannot be reached: {rest.decode('utf-8', 'replace').strip()}", ref=self._ref
                )
            return rest

    async def send(self, data: bytes) -> None:
        await self._socket.send_bytes(b"\0" + data)

    async def send_eof(self) -> None:
        """A port-forward has no half-closed connections."""

    async def aclose(self) -> None:
        await self._socket.close()


async def connect(api: Api, path: str, ref: SandboxRef, port: int) -> PortStream:
    """One connection to ``port`` inside."""
    socket = await api.socket(f"{path}/portforward", query=[("ports", str(port))], protocols=(V4,))
    return PortStream(socket, ref, port)
