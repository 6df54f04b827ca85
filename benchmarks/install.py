"""A bare install into a fresh environment: packages and megabytes, counted as documented in the function."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def count(python: Path) -> dict[str, Any]:
    """Packages without pip, setuptools and openenv; bytes of site-packages without pip and setuptools."""
    listing = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    )
    names = {item["name"].lower() for item in json.loads(listing.stdout)} - {"pip", "setuptools", "openenv"}
    site = next((python.parents[1] / "lib").glob("python*/site-packages"))
    skipped = ("pip", "setuptools", "_distutils_hack", "pkg_resources")
    size = sum(
        path.lstat().st_size
        for path in site.rglob("*")
        if path.is_file() and not path.relative_to(site).parts[0].startswith(skipped)
    )
    return {"packages": len(names), "mb": round(size / 1e6, 1), "names": sorted(names)}


def run(reference: str | None, rounds: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv/bin/python"
        subprocess.run(["sh", str(ROOT / "scripts/venv.sh"), str(python.parents[1])], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
        results["ours"] = count(python)
    if reference:
        results["reference"] = count(Path(reference))
    for name, row in results.items():
        print(f"{name:10} {row['packages']:4} packages  {row['mb']:7.1f} MB  ({sys.version.split()[0]})")
    return results
