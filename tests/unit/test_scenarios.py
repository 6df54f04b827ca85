from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_scenario_has_a_test_or_a_reason() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "scenarios.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
