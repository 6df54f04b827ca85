"""Frames: what goes in comes out, whatever the chunks, and what breaks the protocol is refused."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openenv_sandbox.wire import frames
from openenv_sandbox.wire.frames import (
    BINARY,
    CLOSE,
    CONT,
    OVERSIZE,
    PING,
    TEXT,
    FrameError,
    FrameReader,
    accept_key,
    close_payload,
    encode_frame,
    parse_close,
)
from openenv_sandbox.wire.limits import parse_announced

payloads = st.binary(max_size=300) | st.integers(60_000, 70_000).map(lambda n: b"x" * n)


def fragment(opcode: int, payload: bytes, *, fin: bool) -> bytes:
    raw = bytearray(encode_frame(opcode, payload, mask=True))
    if not fin:
        raw[0] &= 0x7F
    return bytes(raw)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from((TEXT, BINARY)), payloads), max_size=5), st.booleans(), st.data())
def test_messages_survive_any_chunking(messages: list[tuple[int, bytes]], mask: bool, data: st.DataObject) -> None:
    stream = b"".join(encode_frame(op, body, mask=mask) for op, body in messages)
    reader = FrameReader(1 << 20, mask)
    got: list[tuple[int, bytes]] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        got += reader.feed(memoryview(stream)[:cut])
        stream = stream[cut:]
    assert got == messages


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(min_size=4, max_size=4))
def test_slow_mask_equals_the_fast_one(data: bytes, key: bytes) -> None:
    assert frames._mask_slowly(data, key) == bytes(frames.apply_mask(data, key))


def test_fragments_are_joined_and_control_frames_pass_between_them() -> None:
    reader = FrameReader(100, True)
    stream = fragment(TEXT, b"ab", fin=False) + fragment(PING, b"p", fin=True)
    stream += fragment(CONT, b"", fin=False) + fragment(CONT, b"cd", fin=True)
    assert reader.feed(stream) == [(PING, b"p"), (TEXT, b"abcd")]


def test_small_fragments_cost_their_bytes() -> None:
    """A message within the limit takes no more than a few times its size, however it was cut.

    Mutation: keep the fragments in a list
    """
    reader = FrameReader(1_000_000, True)
    stream = fragment(TEXT, b"ab", fin=False) + fragment(CONT, b"ab", fin=False) * 100_000
    tracemalloc.start()
    try:
        for at in range(0, len(stream), 4096):
            assert reader.feed(stream[at : at + 4096]) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000
    assert reader.feed(fragment(CONT, b"", fin=True)) == [(TEXT, b"ab" * 100_001)]


@pytest.mark.parametrize("chunk", [1, 7, 5000])
def test_oversize_is_dropped_and_reading_goes_on(chunk: int) -> None:
    """Scenario: C16
    Mutation: leave out the loop over the rest of a dropped message
    """
    reader = FrameReader(100, True, skip_oversize=True)
    stream = encode_frame(TEXT, b"x" * 101, mask=True) + encode_frame(TEXT, b"ok", mask=True)
    stream += fragment(TEXT, b"x" * 90, fin=False) + fragment(CONT, b"x" * 20, fin=False)
    stream += fragment(CONT, b"x", fin=True) + encode_frame(TEXT, b"x" * 100, mask=True)
    got = [item for at in range(0, len(stream), chunk) for item in reader.feed(stream[at : at + chunk])]
    assert got == [(OVERSIZE, b"101"), (TEXT, b"ok"), (OVERSIZE, b"111"), (TEXT, b"x" * 100)]


def test_without_skipping_or_far_over_the_limit_it_fails_with_1009() -> None:
    for skip, size in ((False, 101), (True, 401)):
        with pytest.raises(FrameError, match=f"message of {size} bytes exceeds limit of 100 bytes") as caught:
            FrameReader(100, True, skip_oversize=skip).feed(encode_frame(TEXT, b"x" * size, mask=True))
        assert caught.value.code == frames.TOO_BIG


@pytest.mark.parametrize(
    "raw",
    [
        encode_frame(TEXT, b"x", mask=False),
        b"\xc1\x80aaaa",  # a compressed frame
        b"\x83\x80aaaa",  # opcode 3
        b"\x09\x80aaaa",  # a fragmented ping
        encode_frame(PING, b"x" * 126, mask=True),
        fragment(CONT, b"x", fin=True),
        fragment(TEXT, b"x", fin=False) + fragment(TEXT, b"x", fin=True),
    ],
    ids=["unmasked", "compressed", "opcode-3", "fragmented-ping", "long-ping", "continued", "interrupted"],
)
def test_broken_frames_are_refused(raw: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        FrameReader(100, True).feed(raw)
    assert caught.value.code == frames.PROTOCOL_ERROR


def test_close_reasons_are_cut_at_a_character() -> None:
    payload = close_payload(1001, "é" * 100)
    assert len(payload) <= 125
    assert parse_close(payload) == (1001, "é" * 61)
    assert parse_close(b"") == (frames.NO_STATUS, "")
    reader = FrameReader(100, False)
    assert reader.feed(encode_frame(CLOSE, payload, mask=False)) == [(CLOSE, payload)]


def test_accept_key_is_the_one_of_the_rfc() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert len(frames.new_key()) == 24
    assert frames.new_key() != frames.new_key()


def test_announced_limit() -> None:
    assert parse_announced(b" 67108864 ") == 67108864
    assert [parse_announced(value) for value in (None, "", "-1", "0", "1e3", "²", "1" * 5000)] == [None] * 7
