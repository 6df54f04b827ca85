"""Taking apart what the wrapper of `openenv_sandbox.shell` sends back, while it arrives."""

from __future__ import annotations

import asyncio
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from openenv_sandbox.provider import OutputSink

Stream = Literal["stdout", "stderr"]
_TRAILER_MAX = 64
MASK = b"***"


def held_back(data: bytes, patterns: Iterable[bytes]) -> int:
    """How many bytes at the end of ``data`` may be the beginning of one of ``patterns``."""
    longest = 0
    for pattern in patterns:
        for size in range(min(len(pattern) - 1, len(data)), longest, -1):
            if data.endswith(pattern[:size]):
                longest = size
                break
    return longest


class Masker:
    """Replaces secrets in a stream, also where one is cut between two chunks."""

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        self._secrets = sorted({s for s in secrets if s}, key=len, reverse=True)
        self._rest = b""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """What can be passed on; with ``last`` everything."""
        if not self._secrets:
            return data
        data = self._rest + data
        for secret in self._secrets:
            data = data.replace(secret, MASK)
        keep = 0 if last else held_back(data, self._secrets)
        self._rest = data[len(data) - keep :] if keep else b""
        return data[: len(data) - keep] if keep else data


class Output:
    """The two streams of one command, bounded, masked and passed on.

    Args:
        limit: Bytes kept of each stream; the rest is passed on and counted as truncated.
        secrets: Values replaced in what is kept and passed on.
        sink: The caller's callback; its first error is kept in ``error`` and it is not called again.
    """

    def __init__(self, limit: int, secrets: Iterable[bytes] = (), sink: OutputSink | None = None) -> None:
        secrets = tuple(secrets)
        self._limit = limit
        self._kept: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._maskers: dict[Stream, Masker] = {"stdout": Masker(secrets), "stderr": Masker(secrets)}
        self._sink = sink
        self.truncated = False
        self.error: BaseException | None = None
        self.failed = asyncio.Event()

    @property
    def began(self) -> bool:
        """Whether anything came."""
        return any(self._kept.values())

    def add(self, stream: Stream, data: bytes, *, last: bool = False) -> None:
        """Take a chunk."""
        data = self._maskers[stream].feed(data, last=last)
        if not data:
            return
        kept = self._kept[stream]
        room = self._limit - len(kept)
        kept += data if len(data) <= room else memoryview(data)[: max(room, 0)]
        self.truncated |= len(data) > room
        if self._sink is not None and self.error is None:
            try:
                self._sink(stream, data)
            except BaseException as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The caller's own code raised: the command is to be ended, and this is what the caller gets."""
        self.error = error if self.error is None else self.error
        self.failed.set()

    def finish(self) -> tuple[bytes, bytes]:
        """Both streams as kept."""
        for stream in self._kept:
            self.add(stream, b"", last=True)
        return bytes(self._kept["stdout"]), bytes(self._kept["stderr"])


async def watched(stdin: AsyncIterator[bytes], output: Output) -> AsyncIterator[bytes]:
    """``stdin``, whose own error ends the command; a backend would not notice, or take it for one of its own."""
    try:
        async for chunk in stdin:
            if not isinstance(chunk, (bytes, bytearray, memoryview)):
                raise TypeError(f"the iterator given as stdin must give bytes, not {type(chunk).__name__}")
            yield chunk
    except Exception as error:
        output.fail(error)
        await asyncio.Event().wait()  # an end here would look like the end of the input


@dataclass(frozen=True)
class Trailer:
    """How the wrapper says the command ended; ``code`` is None when even the wrapper does not know."""

    code: int | None
    flag: str


class _Scanner:
    """Finds ``<nonce>…;`` in a stream and what is before it."""

    def __init__(self, nonce: bytes) -> None:
        self._nonce = nonce
        self._rest = b""
        self._inside = False

    def feed(self, data: bytes) -> tuple[bytes, bytes | None, bytes]:
        """Payload, the trailer's text once complete, and what follows it."""
        data = self._rest + data
        payload = b""
        if not self._inside:
            at = data.find(self._nonce)
            if at < 0:
                keep = held_back(data, (self._nonce,))
                self._rest = data[len(data) - keep :] if keep else b""
                return (data[: len(data) - keep] if keep else data), None, b""
            payload, data, self._inside = data[:at], data[at + len(self._nonce) :], True
        end = data.find(b";", 0, _TRAILER_MAX)
        if end < 0:
            self._rest = data
            return payload, None, b""
        self._rest, self._inside = b"", False
        return payload, data[:end], data[end + 1 :]

    def rest(self) -> bytes:
        """What was held back and turned out to be payload."""
        return b"" if self._inside else self._rest


class _Text:
    """Bytes out of ``B`` and base64 or ``H`` and hexadecimal digits; anything else passes as it is."""

    def __init__(self) -> None:
        self._kind = b""
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What is complete."""
        if not self._kind:
            data = data.lstrip()
            self._kind, data = data[:1], data[1:] if data[:1] in (b"B", b"H") else data
        if self._kind not in (b"B", b"H"):
            return data
        digits = self._rest + data.translate(None, b" \t\r\n")
        whole = len(digits) // 4 * 4
        digits, self._rest = digits[:whole], digits[whole:]
        return binascii.a2b_base64(digits) if self._kind == b"B" else binascii.unhexlify(digits)


class Decoder:
    """An `OutputSink` for a wrapped command.

    Args:
        nonce: Known to the wrapper and to us alone: the command cannot imitate the trailer.
        split: Whether the backend keeps the streams apart; else stderr follows stdout in one stream.
        output: Where the payload goes.
        text: The payload is encoded, because the backend delivers text.
    """

    def __init__(self, nonce: str, split: bool, output: Output, *, text: bool = False) -> None:
        self._out = _Scanner(nonce.encode())
        self._err = _Scanner(nonce.encode())
        self._split = split
        self._output = output
        self._texts: dict[Stream, _Text] = {"stdout": _Text(), "stderr": _Text()} if text else {}
        self._out_done = False
        self.trailer: Trailer | None = None
        self.done = asyncio.Event()

    @property
    def complete(self) -> bool:
        """Whether both streams came to their end."""
        return self._out_done and self.trailer is not None

    def __call__(self, stream: Stream, data: bytes) -> None:
        """Take a chunk as the backend sends it."""
        if stream == "stdout" or not self._split:
            if not self._out_done:
                payload, end, data = self._out.feed(data)
                self._add("stdout", payload)
                if end is None:
                    return
                self._out_done = True
            if not self._split:
                self._stderr(data)
        else:
            self._stderr(data)
        if self.complete:
            self.done.set()

    def _stderr(self, data: bytes) -> None:
        if self.trailer is not None:
            return
        payload, end, _ = self._err.feed(data)
        self._add("stderr", payload)
        if end is not None:
            code, _, flag = end.decode("ascii", "replace").removeprefix("E").partition(",")
            self.trailer = Trailer(int(code) if code.isdecimal() else None, flag)

    def flush(self) -> None:
        """The stream ended: pass on what was held back."""
        if not self._out_done:
            self._add("stdout", self._out.rest())
        if self.trailer is None:
            self._add("stderr", self._err.rest())

    def _add(self, stream: Stream, payload: bytes) -> None:
        self._output.add(stream, self._texts[stream].feed(payload) if self._texts else payload)
