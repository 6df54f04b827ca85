"""How clients, sandboxes, results and the table of backends look in a notebook. Standard library alone.

Everything shown is escaped: observations come from code that nobody vouches for.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import re
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.client.result import StepResult
    from openenv_sandbox.registry import ProviderInfo
    from openenv_sandbox.running import RunningSandbox

LONGEST = 2000
"""Characters of a text or a JSON value that are shown."""
MAX_PIXELS = 1 << 21
_DATA_URI = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+\Z")
_MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


def result(value: StepResult[Any]) -> str:
    """A step's result: reward and end, then the observation field by field, images as images."""
    observation = value.observation
    fields: Mapping[str, Any] = observation if isinstance(observation, dict) else _fields(observation)
    head = [("reward", value.reward), ("done", value.done), *([("truncated", True)] if value.truncated else [])]
    shown = [(name, item) for name, item in fields.items() if name not in ("reward", "done") and not _empty(item)]
    return _table([*head, *shown])


def client(value: EnvClient[Any, Any, Any]) -> str:
    """A client: where it is, and whether it is connected."""
    from openenv_sandbox.client.target import shown

    where = shown(value.base_url) if value.base_url else "not started"
    rows: list[tuple[str, Any]] = [("server", where), ("session", "open" if value.connected else "not open")]
    if value.sandbox is not None:
        rows.append(("sandbox", str(value.sandbox.ref)))
    return _table(rows, title=type(value).__name__)


def sandbox(value: RunningSandbox) -> str:
    """A sandbox: its name and when the backend ends it."""
    import time

    info = value.info
    ends = info.expires_at
    left = "never by itself" if ends is None else f"in {max(0, round(ends - time.time()))} s"
    rows = [("sandbox", str(info.ref)), ("image", info.image), ("status", info.status), ("ends", left)]
    return _table([row for row in rows if row[1] is not None], title="Sandbox")


def providers(infos: Iterable[ProviderInfo]) -> str:
    """The table of backends."""
    rows = [
        (
            info.name,
            info.title,
            "ready" if info.check.ready else info.check.reason,
            info.check.hint,
            info.verified.how if info.verified else "",
        )
        for info in infos
    ]
    return _grid(("name", "backend", "state", "do", "verified"), rows)


def _fields(observation: Any) -> Mapping[str, Any]:
    if hasattr(type(observation), "model_fields"):
        names = [*type(observation).model_fields, *(getattr(observation, "model_extra", None) or {})]
        return {name: getattr(observation, name) for name in names}
    if dataclasses.is_dataclass(observation):
        return {field.name: getattr(observation, field.name) for field in dataclasses.fields(observation)}
    return {"observation": observation}


def _empty(value: Any) -> bool:
    # Not by comparing: an array answers that with an array.
    return value is None or (isinstance(value, dict) and not value)


def _table(rows: Sequence[tuple[Any, Any]], title: str = "") -> str:
    caption = f"<caption>{_escaped(title)}</caption>" if title else ""
    body = "".join(f"<tr><th>{_escaped(name)}</th><td>{cell(value)}</td></tr>" for name, value in rows)
    return f"<table>{caption}{body}</table>"


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_escaped(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def cell(value: Any) -> str:
    """One value as HTML: an image where it is one, else text, folded where it is long."""
    source = image(value)
    if source is not None:
        return f'<img src="{source}" style="image-rendering:pixelated;max-width:400px;min-width:64px">'
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, default=_plain, ensure_ascii=False, indent=1 if _nested(value) else None)
        except (TypeError, ValueError, RecursionError):
            text = _shown(value)
    cut = _escaped(text[:LONGEST]) + ("…" if len(text) > LONGEST else "")
    if len(text) <= 80 and "\n" not in text:
        return cut
    first = _escaped(text.splitlines()[0][:60]) if text.strip() else ""
    return f"<details><summary>{first}…</summary><pre>{cut}</pre></details>"


def _escaped(value: Any) -> str:
    # Half a character has no UTF-8, and what a notebook cannot encode it does not show at all.
    return html.escape(str(value).encode("utf-8", "replace").decode())


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # nested too deeply, or a class that cannot show itself
        return f"a {type(value).__name__}"


def image(value: Any) -> str | None:
    """The ``src`` of an image, where a value is one: a data URI, encoded bytes, or an array of pixels."""
    if isinstance(value, str):
        if _DATA_URI.match(value):
            return "".join(value.split())
        if len(value) > 64 and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", value):
            return _encoded(_decoded(value))
        return None
    if isinstance(value, (bytes, bytearray)):
        return _encoded(bytes(value))
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and str(getattr(value, "dtype", "")) == "uint8" and len(shape) in (2, 3):
        channels = shape[2] if len(shape) == 3 else 1
        if channels in (1, 3, 4) and min(shape[:2]) > 4 and shape[0] * shape[1] <= MAX_PIXELS:
            return _uri("png", png(value.tobytes(), shape[1], shape[0], channels))
    return None


def png(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Pixels as PNG (https://www.w3.org/TR/png/), 8 bits a sample, rows from the top.

    Args:
        pixels: ``height * width * channels`` bytes.
        width: In pixels.
        height: In pixels.
        channels: 1 grey, 3 RGB, 4 RGBA.
    """
    kind = {1: 0, 3: 2, 4: 6}[channels]
    row = width * channels
    lines = b"".join(b"\0" + pixels[start : start + row] for start in range(0, row * height, row))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _encoded(data: bytes) -> str | None:
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    return _uri(kind, data) if kind is not None else None


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _nested(value: Any) -> bool:
    return isinstance(value, (dict, list)) and any(isinstance(item, (dict, list)) for item in _items(value))


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
