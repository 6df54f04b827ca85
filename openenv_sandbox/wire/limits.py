"""Message limits of both ends, in bytes, and how the server announces its own."""

from __future__ import annotations

MIB = 1024 * 1024

SERVER_MAX = 64 * MIB
"""What a server takes and sends in one message unless ``OPENENV_MAX_MESSAGE_MB`` says otherwise."""

CLIENT_MAX = 100_000_000
"""What a client takes in one message unless ``max_message_size_mb`` says otherwise."""

HEADER = "openenv-max-message"
"""Response header of the upgrade: the most bytes the server takes in one message."""

SERVER_SETTING = "OPENENV_MAX_MESSAGE_MB"
CLIENT_SETTING = "max_message_size_mb"

DRAIN_FACTOR = 4
"""A message up to this many times the limit is read and dropped so that the session lives on; above, it is closed."""


def describe(size: int, limit: int, setting: str) -> str:
    """One sentence that names the size, the limit and the setting that changes it."""
    return f"Message of {size} bytes is over the limit of {limit} bytes; raise {setting} to allow it."


def parse_announced(value: str | bytes | None) -> int | None:
    """The limit in bytes announced by `HEADER`, or None when there is none that makes sense."""
    if value is None:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return parse_count(text.strip()) or None


def parse_count(text: str) -> int | None:
    """A number of bytes a peer wrote in decimal digits; None when it is none that makes sense."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
