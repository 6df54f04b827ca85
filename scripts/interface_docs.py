"""Puts recorded traffic into docs/interface.md: interface_docs.py [--check].

Between `<!-- frames: FILE LINES -->` and `<!-- end -->` stand those lines of `tests/wire/frames/FILE.jsonl`, which the
test suite replays against this server and this client.
"""

from __future__ import annotations

import json
import re
from typing import Any

from _pages import ROOT, write_or_check

PAGE = ROOT / "docs" / "interface.md"
FRAMES = ROOT / "tests" / "wire" / "frames"
MARKER = re.compile(r"(<!-- frames: (?P<file>\S+) (?P<lines>[\d, -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 116


def page(text: str) -> str:
    """The page with its examples made anew."""
    return MARKER.sub(lambda m: f"{m[1]}\n```text\n{examples(m['file'], m['lines']).strip()}\n```\n\n{m[4]}", text)


def examples(name: str, lines: str) -> str:
    """Some lines of a recording, as one reads them.

    Raises:
        ValueError: The recording has fewer lines.
    """
    records = (FRAMES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    wanted: list[int] = []
    for piece in lines.split(","):
        first, _, last = piece.strip().partition("-")
        wanted += range(int(first), int(last or first) + 1)
    if max(wanted) > len(records):
        raise ValueError(f"{name} has {len(records)} lines, not {max(wanted)}")
    return "\n".join(shown(json.loads(records[number - 1])) for number in wanted)


def shown(record: dict[str, Any]) -> str:
    """One record: a request with its answer, or a frame with its direction."""
    if record.get("t") == "http":
        query = f"?{record['query']}" if record.get("query") else ""
        request = f"{record['method']} {record['path']}{query}"
        body = f"\n{laid_out(record['req'])}" if record.get("req") else ""
        return f"{request}{body}\n\n{record['status']}\n{laid_out(record['body'])}\n"
    if record.get("t") == "ws_open":
        query = f"?{record['query']}" if record.get("query") else ""
        return f"(the client opens {record['path']}{query})"
    who = "client" if record["dir"] == "c2s" else "server"
    if record.get("event"):
        return f"{who} closes with {record.get('code', record.get('sent_code'))}"
    return f"{who}: {laid_out(record['frame'])}"


def laid_out(value: Any, depth: int = 0) -> str:
    """JSON, broken only where a line would be too long."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + 2 * depth <= WIDTH or not isinstance(value, (dict, list)):
        return line
    inner, outer = "  " * (depth + 1), "  " * depth
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + laid_out(item, depth + 1) for item in value) + f"\n{outer}]"
    pairs = (f"{inner}{json.dumps(key)}: {laid_out(item, depth + 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(pairs) + f"\n{outer}}}"


if __name__ == "__main__":
    write_or_check(PAGE, page(PAGE.read_text(encoding="utf-8")))
