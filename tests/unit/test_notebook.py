"""What a notebook shows: escaped, bounded, and images as images."""

from __future__ import annotations

import base64
import html.parser
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest

import openenv_sandbox
from openenv_sandbox import launch, notebook
from openenv_sandbox.client import GenericEnvClient, StepResult
from openenv_sandbox.models import Observation
from openenv_sandbox.testing import FakeCloud


class Seen(html.parser.HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_of_an_observation_is_markup() -> None:
    """Names and values, in texts, mappings and models.

    Mutation: write a value as it is
    """
    bad = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    for observation in ({bad: bad, "n": {bad: [bad]}, "long": bad * 50}, Observation(metadata={"x": bad})):
        seen = Seen(StepResult(observation, reward=1.0)._repr_html_())
        assert not [tag for tag, _ in seen.tags if tag in ("script", "img")]
    assert "alert" not in str(Seen(notebook.cell('data:image/png;base64,AA" onerror="alert(1)')).tags)


def test_reward_end_and_fields() -> None:
    """Reward and end first, then the fields that hold something."""
    seen = Seen(StepResult({"hint": "lower", "left": 3, "nothing": None}, reward=0.5, done=True)._repr_html_())
    assert seen.text == "reward0.5donetruehintlowerleft3"
    assert len(notebook.cell("x" * 100_000)) < 3000


def decoded(data: bytes) -> bytes:
    """Rows of a PNG without filters; its checksums are checked."""
    stream = io.BytesIO(data)
    assert stream.read(8) == b"\x89PNG\r\n\x1a\n"
    body = b""
    while head := stream.read(8):
        size, name = struct.unpack(">I4s", head)
        part = stream.read(size)
        assert struct.unpack(">I", stream.read(4))[0] == zlib.crc32(name + part)
        body += part if name == b"IDAT" else b""
    return zlib.decompress(body)


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 1), (8, 6, 3), (8, 6, 4)])
def test_arrays_of_pixels_are_images(shape: tuple[int, ...]) -> None:
    """Byte for byte, with rows from the top.

    Mutation: swap width and height
    """
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    source = notebook.image(pixels)
    assert source is not None
    data = base64.b64decode(source.partition(",")[2])
    assert struct.unpack(">II", data[16:24]) == (6, 8)
    rows = np.frombuffer(decoded(data), np.uint8).reshape(8, -1)
    assert (rows[:, 0] == 0).all()
    assert rows[:, 1:].tobytes() == pixels.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((8, 8), np.float32),
        np.zeros((8, 8, 2), np.uint8),
        np.zeros((3, 3), np.uint8),
        np.zeros((4000, 4000), np.uint8),
        b"no image",
        "data:text/html;base64,AAAA",
        "a" * 100,
        5,
    ],
    ids=str,
)
def test_what_is_no_image(value: Any) -> None:
    assert notebook.image(value) is None


def test_encoded_images() -> None:
    """As bytes, as base64 text, as a data URI."""
    data = notebook.png(bytes(64), 8, 8, 1)
    text = base64.b64encode(data).decode()
    for value in (data, text, f"data:image/png;base64,{text}"):
        assert notebook.image(value) == f"data:image/png;base64,{text}"


@pytest.mark.anyio
async def test_clients_sandboxes_and_backends() -> None:
    """Each shows itself, without secrets."""
    with FakeCloud() as cloud:
        async with launch("fake-env:1", provider=cloud.provider(), options={"address": cloud.address}) as env:
            assert "open" in Seen(env._repr_html_()).text
            assert str(env.sandbox.ref) in Seen(env.sandbox._repr_html_()).text
            assert env._token is not None
            assert env._token not in env._repr_html_() + env.sandbox._repr_html_()
            assert Seen(env.sync()._repr_html_()).text == Seen(env._repr_html_()).text
    assert "pw" not in GenericEnvClient("http://user:pw@h:1")._repr_html_()
    table = openenv_sandbox.providers()
    assert "Docker" in Seen(table._repr_html_()).text  # type: ignore[attr-defined]


class Odd:
    """Compares like an array, and cannot show itself."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __str__(self) -> str:
        raise ValueError("no text")


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "observation",
    [{"a": nested(3000)}, {1: 2}, {"a": "\ud800"}, {"\ud800": 1}, {"a": np.zeros(3)}, {"a": Odd()}],
    ids=["deep", "number-as-name", "half-a-character", "half-a-name", "array", "odd"],
)
def test_whatever_an_environment_sends_is_shown(observation: dict[Any, Any]) -> None:
    """An observation that cannot be shown would hide the reward as well; a notebook takes UTF-8 alone.

    Mutation: ask ``item in (None, {})``; let RecursionError through
    """
    text = notebook.result(StepResult(observation=observation, reward=2.5, done=False))
    assert text.encode()
    assert "2.5" in Seen(text).text
    assert "<td>" in text.partition("2.5")[2]
