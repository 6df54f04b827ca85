"""The one place that says what may differ between a recording and what is seen now.

Recordings were made with the published package, release 0.10.0. Allowed to differ: ids that the server draws, the
version in links of validation errors, ``openenv_version``, the contents of /schema, /openapi.json and the pages drawn
from it, request headers that name the client or the connection, and the two additions of our echo environment.
Anything else is a difference.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAMES = Path(__file__).parent / "frames"
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LINK = re.compile(r"errors\.pydantic\.dev/[\d.]+/")
FREE_BODIES = frozenset({"/schema", "/openapi.json", "/docs", "/redoc"})
GREETING = "Echo environment ready!"
FREE_HEADERS = frozenset(
    {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "sec-websocket-key",
        "sec-websocket-extensions",
        "sec-websocket-protocol",
    }
)


def records(name: str) -> list[dict[str, Any]]:
    """The records of one recording."""
    return [json.loads(line) for line in (FRAMES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


class Ids:
    """Which id seen now stands for which recorded one: the same one everywhere, and never two for one."""

    def __init__(self) -> None:
        self._now: dict[str, str] = {}

    def sent(self, value: Any) -> Any:
        """A recorded request with the ids of now."""
        return _texts(value, lambda text: UUID.sub(lambda m: self._now.get(m[0], m[0]), text))

    def same(self, recorded: Any, seen: Any) -> bool:
        """Whether both are equal once ids are matched."""
        if isinstance(recorded, str) and isinstance(seen, str):
            old, new = UUID.findall(recorded), UUID.findall(seen)
            if len(old) != len(new) or UUID.sub("id", recorded) != UUID.sub("id", seen):
                return False
            return all(self._bind(a, b) for a, b in zip(old, new, strict=True))
        if isinstance(recorded, dict) and isinstance(seen, dict):
            return recorded.keys() == seen.keys() and all(self.same(recorded[key], seen[key]) for key in recorded)
        if isinstance(recorded, list) and isinstance(seen, list):
            return len(recorded) == len(seen) and all(map(self.same, recorded, seen))
        return type(recorded) is type(seen) and bool(recorded == seen)

    def _bind(self, recorded: str, seen: str) -> bool:
        known = self._now.setdefault(recorded, seen)
        return known == seen and list(self._now.values()).count(seen) == 1


def plain(value: Any) -> Any:
    """Without versions in links, and without the version of the server."""
    value = _texts(value, lambda text: _LINK.sub("errors.pydantic.dev/*/", text))
    if isinstance(value, dict) and "readme_content" in value:
        value.pop("openenv_version", None)
    return value


def without_additions(message: Any) -> Any:
    """An envelope of our echo environment as the existing one would have sent it.

    The greeting is taken out of the observation of a reset, and the number that rewards a tool call becomes null; both
    must be there to be taken out.
    """
    envelope = message.get("data") if isinstance(message, dict) and message.get("type") == "observation" else message
    if not isinstance(envelope, dict) or not isinstance(envelope.get("observation"), dict):
        return message
    observation = envelope["observation"]
    if observation.get("metadata", {}).get("message") == GREETING:
        assert observation.pop("echoed_message", None) == GREETING, "the greeting is not on the observation"
    if observation.get("tool_name") is not None and observation.get("error") is None:
        reward = envelope["reward"]
        assert isinstance(reward, float), f"the reward of a tool call is {reward!r}"
        envelope["reward"] = None
    return message


def headers(seen: Mapping[str, str]) -> dict[str, str]:
    """Those request headers that must be equal."""
    return {key.lower(): value for key, value in seen.items() if key.lower() not in FREE_HEADERS}


def _texts(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, change) for item in value]
    return value
