"""`make bench`: prints figures beside those of the published package and writes them to benchmarks/results/.

    python benchmarks/run.py [steps] [sessions] [startup] [install] [launches] [--rounds N]

Ratios hold only within one run: contenders are interleaved. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import install
import launches
import sessions
import startup
import steps
from harness import HERE, machine, reference_python

PARTS = {"steps": steps, "sessions": sessions, "startup": startup, "launches": launches, "install": install}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    reference = reference_python()
    if reference is None:
        print("the published package is not installed (make interop-env): its columns stay empty", file=sys.stderr)
    results = {"machine": machine(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    for name in args.parts or PARTS:
        print(f"\n## {name}")
        results[name] = PARTS[name].run(reference, args.rounds)
    target = HERE / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    target.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {target.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
