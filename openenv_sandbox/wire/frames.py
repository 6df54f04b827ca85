"""WebSocket frames (RFC 6455) without any I/O: bytes in, messages out, and back.

Used by the server on a connection it has taken over, by the asynchronous client and by the blocking one.
Extensions are never negotiated, so a frame with a reserved bit is an error.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import TYPE_CHECKING

from openenv_sandbox.wire.limits import DRAIN_FACTOR

if TYPE_CHECKING:
    from collections.abc import Callable

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
OVERSIZE = -1
"""Pseudo opcode: a message over the limit was read and dropped; the payload is its size in ASCII digits."""

NORMAL, GOING_AWAY, PROTOCOL_ERROR, NO_STATUS, ABNORMAL, INVALID_DATA, TOO_BIG, INTERNAL, RESTART = (
    1000,
    1001,
    1002,
    1005,
    1006,
    1007,
    1009,
    1011,
    1012,
)
IDLE = 4408
"""Private close code: the server closed a session that nobody used."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_OPCODES = frozenset((CONT, TEXT, BINARY, CLOSE, PING, PONG))

Readable = bytes | bytearray | memoryview


class FrameError(Exception):
    """The peer broke the protocol or a limit; ``code`` and ``reason`` belong into the close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def _mask_slowly(data: Readable, key: bytes) -> bytes:
    size = len(data)
    if not size:
        return b""
    keys = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(size, "little")


def _load_mask() -> Callable[[Readable, bytes], bytes]:
    try:
        from websockets.speedups import apply_mask
    except ImportError:  # a platform for which websockets has no compiled wheel
        return _mask_slowly
    mask: Callable[[Readable, bytes], bytes] = apply_mask
    return mask


apply_mask = _load_mask()


def new_key() -> str:
    """A random ``Sec-WebSocket-Key``."""
    return base64.b64encode(os.urandom(16)).decode()


def accept_key(key: str | bytes) -> str:
    """The ``Sec-WebSocket-Accept`` that answers a key."""
    raw = key.encode() if isinstance(key, str) else key
    return base64.b64encode(hashlib.sha1(raw + _GUID, usedforsecurity=False).digest()).decode()


def header(opcode: int, size: int, *, masked: bool) -> bytes:
    """Head of an unfragmented frame of ``size`` bytes, without the masking key."""
    bit = 0x80 if masked else 0
    if size < 126:
        return bytes((0x80 | opcode, bit | size))
    if size < 65536:
        return bytes((0x80 | opcode, bit | 126)) + size.to_bytes(2, "big")
    return bytes((0x80 | opcode, bit | 127)) + size.to_bytes(8, "big")


def encode_frame(opcode: int, payload: Readable, *, mask: bool) -> bytes:
    """One whole frame; clients mask, servers do not."""
    if not mask:
        return header(opcode, len(payload), masked=False) + payload
    key = os.urandom(4)
    return header(opcode, len(payload), masked=True) + key + apply_mask(payload, key)


def close_payload(code: int, reason: str = "") -> bytes:
    """Payload of a close frame; a reason over 123 bytes is cut at a character."""
    raw = reason.encode()
    if len(raw) > 123:
        raw = raw[:123].decode("utf-8", "ignore").encode()
    return code.to_bytes(2, "big") + raw


def parse_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame; `NO_STATUS` when the peer gave none."""
    if len(payload) < 2:
        return NO_STATUS, ""
    return int.from_bytes(payload[:2], "big"), payload[2:].decode("utf-8", "replace")


class FrameReader:
    """Puts the bytes of one connection together to messages.

    Args:
        max_size: Most bytes of one message, all fragments together.
        require_mask: True on the server's side, where frames must be masked; on the client's they must not.
        skip_oversize: Read and drop a message over the limit and report it as `OVERSIZE`, instead of failing with
            1009. Above `DRAIN_FACTOR` times the limit it fails all the same.
    """

    def __init__(self, max_size: int, require_mask: bool, *, skip_oversize: bool = False) -> None:
        self.max_size = max_size
        self._require_mask = require_mask
        self._skip = skip_oversize
        self._buffer = bytearray()
        self._need = 2
        self._opcode = CONT
        self._parts = bytearray()
        self._size = 0
        self._dropping = 0
        self._fin = False

    def feed(self, data: Readable) -> list[tuple[int, bytes]]:
        """Take what arrived; returns the messages that are now whole, as (opcode, payload).

        Raises:
            FrameError: The peer broke the protocol; nothing more may be fed.
        """
        out: list[tuple[int, bytes]] = []
        if self._dropping:
            cut = min(self._dropping, len(data))
            self._dropping -= cut
            if self._dropping:
                return out
            data = data[cut:]
            self._finish_dropped(out)
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return out
            whole: Readable = self._buffer
            used = self._parse(whole, out)
            del self._buffer[:used]
        else:
            used = self._parse(data, out)
            if used < len(data):
                self._buffer += data[used:]
        return out

    def _finish_dropped(self, out: list[tuple[int, bytes]]) -> None:
        if self._fin:
            out.append((OVERSIZE, b"%d" % self._size))
            self._opcode, self._size = CONT, 0

    def _parse(self, data: Readable, out: list[tuple[int, bytes]]) -> int:
        pos, end = 0, len(data)
        while end - pos >= 2:
            first, second = data[pos], data[pos + 1]
            size, head = second & 0x7F, 2
            if size == 126:
                head = 4
                if end - pos < 4:
                    break
                size = data[pos + 2] << 8 | data[pos + 3]
            elif size == 127:
                head = 10
                if end - pos < 10:
                    break
                size = int.from_bytes(data[pos + 2 : pos + 10], "big")
            masked = second & 0x80
            self._check(first, size, masked)
            opcode = first & 0x0F
            if masked:
                head += 4
            if opcode < CLOSE and self._size + size > self.max_size:
                if end - pos < head:
                    break
                pos += self._drop(first, size, head, end - pos, out)
                continue
            if end - pos < head + size:
                self._need = head + size
                return pos
            start = pos + head
            with memoryview(data) as view, view[start : start + size] as body:
                payload = apply_mask(body, bytes(view[start - 4 : start])) if masked else bytes(body)
            pos = start + size
            self._take(first, opcode, payload, out)
        self._need = 2
        return pos

    def _check(self, first: int, size: int, masked: int) -> None:
        opcode = first & 0x0F
        if first & 0x70 or opcode not in _OPCODES:
            raise FrameError(PROTOCOL_ERROR, "reserved bit or opcode")
        if bool(masked) != self._require_mask:
            raise FrameError(
                PROTOCOL_ERROR, "frame must be masked" if self._require_mask else "frame must not be masked"
            )
        if opcode >= CLOSE:
            if size > 125 or not first & 0x80:
                raise FrameError(PROTOCOL_ERROR, "control frame too long or fragmented")
        elif (opcode == CONT) != (self._opcode != CONT):
            raise FrameError(PROTOCOL_ERROR, "continuation out of place")

    def _drop(self, first: int, size: int, head: int, available: int, out: list[tuple[int, bytes]]) -> int:
        total = self._size + size
        if not self._skip or total > self.max_size * DRAIN_FACTOR:
            raise FrameError(TOO_BIG, f"message of {total} bytes exceeds limit of {self.max_size} bytes")
        self._size, self._parts, self._fin = total, bytearray(), bool(first & 0x80)
        self._opcode = first & 0x0F or self._opcode
        cut = min(size, available - head)
        self._dropping = size - cut
        if not self._dropping:
            self._finish_dropped(out)
        return head + cut

    def _take(self, first: int, opcode: int, payload: bytes, out: list[tuple[int, bytes]]) -> None:
        if opcode >= CLOSE:
            out.append((opcode, payload))
        elif first & 0x80 and opcode != CONT:
            out.append((opcode, payload))
        else:
            self._opcode = opcode or self._opcode
            self._parts += payload  # not a list: each of millions of small fragments would cost an object
            self._size += len(payload)
            if first & 0x80:
                out.append((self._opcode, bytes(self._parts)))
                self._opcode, self._parts, self._size = CONT, bytearray(), 0
