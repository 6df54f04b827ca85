"""What a local sandbox and its supervisor say: a length, a kind, a payload; file descriptors go beside it."""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct("!IB")
NUMBER = struct.Struct("!i")
LIMIT = 32 * 2**20
KEPT_LOG = 2**20
TAIL = 64 * 2**10

# Requests. START comes once, first, on the connection made before the process.
START, ADOPT, RELEASE, QUIT = b"SARQ"
EXEC, DIAL, LOGS, PAUSE, RESUME, STATUS = b"EDLPCT"
# Answers and events.
HELLO, OUTPUT, EXITED, PORT, FAILED, DONE, CHANNEL = b"hoxpfdc"


def frame(kind: int, payload: bytes = b"") -> bytes:
    """One message."""
    return HEADER.pack(len(payload), kind) + payload


def take(inbox: bytearray) -> tuple[int, bytes] | None:
    """Remove the first whole message from ``inbox``; None while there is none.

    Raises:
        ValueError: It is longer than anybody sends.
    """
    if len(inbox) < HEADER.size:
        return None
    size, kind = HEADER.unpack_from(inbox)
    if size > LIMIT:
        raise ValueError("message too long")
    if len(inbox) < HEADER.size + size:
        return None
    payload = bytes(inbox[HEADER.size : HEADER.size + size])
    del inbox[: HEADER.size + size]
    return kind, payload


def fields(*items: str | bytes | int) -> bytes:
    """Texts as one payload.

    Raises:
        ValueError: One contains NUL, as no argument, variable or path can.
    """
    encoded = [os.fsencode(str(item) if isinstance(item, int) else item) for item in items]
    if any(b"\0" in item for item in encoded):
        raise ValueError("an argument or variable contains a NUL byte")
    return b"\0".join(encoded)
