"""Removing what strangers made."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from openenv_sandbox._paths import remove_tree

if TYPE_CHECKING:
    from pathlib import Path


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    """Deeper than the stack and longer than a path may be, with modes that forbid looking; links are not followed.

    Mutation: remove_tree uses shutil.rmtree
    """
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    script = "import os\nfor _ in range(2500): os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(kept)
    subprocess.run([sys.executable, "-c", script], cwd=top, check=True)
    remove_tree(top)
    assert sorted(os.listdir(tmp_path)) == ["kept"]
    assert (kept / "file").exists()
    remove_tree(top)
    remove_tree(kept / "file")
    assert os.listdir(kept) == []
