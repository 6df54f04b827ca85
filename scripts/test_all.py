"""`make test-all`: every part, its outcome and duration into docs/verified.json: test_all.py [PART …].

A backend counts as verified only through the part that ran it here, with its engine required.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "verified.json"
PART_S = 1200

# part -> its command; a backend's part names the backend and how passing it proves it.
PARTS: dict[str, list[str]] = {
    "lint": ["make", "lint"],
    "types": ["make", "types"],
    "quick": ["make", "quick"],
    "local": [sys.executable, "-m", "pytest", "tests/local", "-q", "-m", "not full"],
    "docker": [sys.executable, "-m", "pytest", "tests/docker", "-q", "-m", "not full"],
    "full": [sys.executable, "-m", "pytest", "-q", "-m", "full and not interop"],
    "pythons": ["make", "wire-pythons"],
    "interop": ["make", "interop"],
}
BACKENDS = {"local": "engine", "docker": "engine"}


def run(name: str) -> dict[str, Any]:
    """Run one part; its output passes through."""
    start = time.monotonic()
    environment = {**os.environ, "OPENENV_REQUIRE_ENGINES": "1"}
    process = subprocess.Popen(PARTS[name], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    counts = ""
    for line in process.stdout:
        sys.stdout.write(line)
        found = re.search(
            r"=* ?((?:\d+ (?:passed|failed|skipped|deselected|error\w*|warning\w*),? ?)+)in [\d.]+s", line
        )
        counts = found.group(1).strip(" ,") if found else counts
    code = process.wait(PART_S)
    return {"passed": code == 0, "seconds": round(time.monotonic() - start), "counts": counts}


def used(backend: str) -> str:
    """What the backend ran on: its SDK, or the program it starts."""
    if backend == "local":
        return subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip()
    return f"docker {version('docker')}"


def main() -> None:
    """Run the parts named, or all, and write what happened."""
    names = sys.argv[1:] or list(PARTS)
    unknown = set(names) - set(PARTS)
    if unknown:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    record = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {"parts": {}, "backends": {}}
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    for name in names:
        outcome = run(name)
        stamp = {"commit": commit.strip(), "date": time.strftime("%Y-%m-%d")}
        record["parts"][name] = {**stamp, **outcome}
        if name in BACKENDS:
            if outcome["passed"]:
                record["backends"][name] = {"how": BACKENDS[name], "sdk": used(name), **stamp}
            else:
                record["backends"].pop(name, None)
        TARGET.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    failed = [name for name in names if not record["parts"][name]["passed"]]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
