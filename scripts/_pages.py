"""What the scripts that make pages of docs/ share."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_or_check(path: Path, text: str) -> None:
    """Write a page, or with --check exit with a sentence where it differs."""
    if "--check" not in sys.argv:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path.relative_to(ROOT)} is stale: run python scripts/{Path(sys.argv[0]).name}")


def cell(text: str) -> str:
    """A text as it stands in a table of Markdown."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
