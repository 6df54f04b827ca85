"""Installs the project and environments, editable, into the running virtual environment: install.py [SPEC …]."""

from __future__ import annotations

import subprocess
import sys

# The project comes last: an environment's requirement on `openenv` must be met by this checkout, not by the index.
project, *others = sys.argv[1:]
pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
subprocess.run([*pip, "-e", project], check=True)
for folder in others:
    subprocess.run([*pip, "--no-deps", "-e", folder], check=True)
