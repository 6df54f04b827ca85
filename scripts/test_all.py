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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "verified.json"
PART_S = 1200

PYTEST = [sys.executable, "-m", "pytest", "-q"]
EMULATED = ("aca", "daytona", "e2b", "islo", "kubernetes", "modal", "novita", "runloop")
# Fewer passes than this is no contract suite: an SDK that is not installed skips its whole module.
ENOUGH = 100


def emulated(name: str) -> list[str]:
    """The tests of one emulated backend."""
    more = sorted((ROOT / "tests" / "emulators").glob(f"test_{name}_*.py"))
    return [
        *PYTEST,
        f"tests/emulators/test_{name}.py",
        *(str(path.relative_to(ROOT)) for path in more),
        "-m",
        "not full",
    ]


# part -> its command; a backend's part has its name. Backends come before `quick`, which compares what they claim.
PARTS: dict[str, list[str]] = {
    "lint": ["make", "lint"],
    "types": ["make", "types"],
    "local": [*PYTEST, "tests/local", "-m", "not full"],
    "docker": [*PYTEST, "tests/docker", "-m", "not full"],
    **{name: emulated(name) for name in EMULATED},
    "quick": [
        *PYTEST,
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-m",
        "not full and not interop",
        *(f"--ignore-glob=*/test_{name}*.py" for name in EMULATED),
    ],
    "full": [*PYTEST, "-m", "full and not interop and not emulator"],
    "mutants": [*PYTEST, "tests/emulators", "-m", "full and emulator"],
    "pythons": ["make", "wire-pythons"],
    "interop": ["make", "interop"],
    "gradio": ["make", "gradio"],
}
BACKENDS = {"local": "engine", "docker": "engine", **dict.fromkeys(EMULATED, "emulator")}
# Only when asked for by name: they need accounts and cost money (docs/live.md).
LIVE = {f"live-{name}": [*PYTEST, "tests/live", "-m", "live", "-k", name] for name in EMULATED}


def run(name: str) -> dict[str, Any]:
    """Run one part; its output passes through."""
    start = time.monotonic()
    environment = {**os.environ, "OPENENV_REQUIRE_ENGINES": "1"}
    if name in LIVE:
        environment["OPENENV_LIVE"] = name.removeprefix("live-")
    process = subprocess.Popen({**PARTS, **LIVE}[name], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
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
    with (ROOT / "pyproject.toml").open("rb") as file:
        brings = tomllib.load(file)["project"]["optional-dependencies"][backend]
    name = re.split(r"[<>=!~;\[ ]", brings[0])[0]
    return f"{name} {version(name)}"


def commit() -> str:
    """What was run; with a word when the tree held more than the commit."""
    asked = {"cwd": ROOT, "capture_output": True, "text": True}
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **asked).stdout.strip()  # type: ignore[call-overload]
    code = ["openenv_sandbox", "providers", "tests", "pyproject.toml"]
    changed = subprocess.run(["git", "status", "--porcelain", "--", *code], **asked).stdout  # type: ignore[call-overload]
    return f"{head} with changes" if changed else str(head)


def keep(record: dict[str, Any], backend: str, outcome: dict[str, Any], stamp: dict[str, str], how: str) -> None:
    """Write down that a backend is proven, or that it is not any more."""
    passed = int((re.search(r"(\d+) passed", outcome["counts"]) or [0, 0])[1])
    if outcome["passed"] and passed >= ENOUGH:
        record["backends"][backend] = {"how": how, "sdk": used(backend), "counts": outcome["counts"], **stamp}
    else:
        record["backends"].pop(backend, None)


def main() -> None:
    """Run the parts named, or all, and write what happened."""
    names = sys.argv[1:] or list(PARTS)
    unknown = set(names) - {*PARTS, *LIVE}
    if unknown:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join([*PARTS, *LIVE])}")
    record = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {"parts": {}, "backends": {}}
    for name in names:
        stamp = {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
        outcome = run(name)
        record["parts"][name] = {**stamp, **outcome}
        if name in BACKENDS:
            keep(record, name, outcome, stamp, BACKENDS[name])
        elif name in LIVE and outcome["passed"]:
            keep(record, name.removeprefix("live-"), outcome, stamp, "live")
        TARGET.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, "scripts/backend_docs.py"], cwd=ROOT, check=True)
    failed = [name for name in names if not record["parts"][name]["passed"]]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
