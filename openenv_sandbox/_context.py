"""The files of a build context: what ``.dockerignore`` leaves, their digest, and a staged copy of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from openenv_sandbox.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Never part of an environment: they change by merely using the folder, and would make every run a rebuild.
ALWAYS = ("**/__pycache__", "**/*.pyc", "**/.git", "**/.venv", "**/.pytest_cache", "**/.mypy_cache", "**/.ruff_cache")


class Ignore:
    """The patterns of one ``.dockerignore``: the last one that matches decides, ``!`` takes back in."""

    def __init__(self, patterns: list[str]) -> None:
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        self._exceptions = False
        for line in (*ALWAYS, *patterns):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            keep = text.startswith("!")
            text = os.path.normpath(text[keep:].strip()).replace(os.sep, "/").lstrip("/")
            if text in (".", ""):
                continue
            self._exceptions |= keep
            self._rules.append((not keep, _pattern(text)))

    @classmethod
    def of(cls, folder: Path, dockerfile: Path | None = None) -> Ignore:
        """The file beside the Dockerfile where there is one, else the folder's."""
        candidates = [dockerfile.with_name(dockerfile.name + ".dockerignore")] if dockerfile is not None else []
        for path in (*candidates, folder / ".dockerignore"):
            try:
                return cls(path.read_text(encoding="utf-8").splitlines())
            except FileNotFoundError:
                continue
        return cls([])

    def excludes(self, relative: str, *, below_kept: bool = False) -> bool:
        """Whether ``relative`` (with forward slashes) is left out; a pattern that matches a parent matches it too.

        Args:
            relative: The name.
            below_kept: Its folder is known not to be left out, which saves looking at its parents.
        """
        if below_kept and self.prunes:
            parents = [relative]
        else:
            parts = relative.split("/")
            parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        out = False
        for exclude, pattern in self._rules:
            if exclude != out and any(pattern.match(parent) for parent in parents):
                out = exclude
        return out

    @property
    def prunes(self) -> bool:
        """Whether an excluded folder need not be entered: nothing below can come back in."""
        return not self._exceptions


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    out, index = "", 0
    while index < len(text):
        char = text[index]
        if text.startswith("**/", index):
            out, index = out + "(?:.*/)?", index + 3
        elif text.startswith("**", index):
            out, index = out + ".*", index + 2
        elif char == "*":
            out, index = out + "[^/]*", index + 1
        elif char == "?":
            out, index = out + "[^/]", index + 1
        elif char == "[" and "]" in text[index + 2 :]:
            end = text.index("]", index + 2)
            inner = text[index + 1 : end].replace("\\", "\\\\")
            out, index = out + f"[{inner}]", end + 1
        elif char == "\\" and index + 1 < len(text):
            out, index = out + re.escape(text[index + 1]), index + 2
        else:
            out, index = out + re.escape(char), index + 1
    try:
        return re.compile(out + r"\Z")
    except re.error as error:
        raise ImageError(f".dockerignore: cannot read the pattern {text!r}: {error}") from error


def walk(folder: Path, ignore: Ignore) -> Iterator[tuple[str, Path]]:
    """Every file and symlink that is part of the context, sorted, as (relative name, path). Links are not followed."""
    # No recursion: how deep it goes is up to whoever wrote the folder.
    open_folders = [_sorted(folder)]
    prefix = [""]
    while open_folders:
        entry = next(open_folders[-1], None)
        if entry is None:
            open_folders.pop()
            prefix.pop()
            continue
        relative = prefix[-1] + entry.name
        excluded = ignore.excludes(relative, below_kept=True)
        if entry.is_dir(follow_symlinks=False):
            if not (excluded and ignore.prunes):
                open_folders.append(_sorted(entry.path))
                prefix.append(relative + "/")
        elif not excluded and (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
            yield relative, Path(entry.path)


def _sorted(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return iter(sorted(entries, key=lambda entry: entry.name))


def digest(folder: Path, ignore: Ignore, *extra: Path | None) -> str:
    """``sha256:…`` over names, executable bits and bytes of the context and of ``extra`` (the Dockerfile)."""
    total = hashlib.sha256()
    for relative, path in (*walk(folder, ignore), *(("\0extra", path) for path in extra if path is not None)):
        if path.is_symlink():
            kind, content = b"l", hashlib.sha256(os.fsencode(os.readlink(path)))
        else:
            kind, content = b"x" if os.access(path, os.X_OK) else b"f", hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    content.update(chunk)
        total.update(b"%s %s %s\n" % (kind, content.hexdigest().encode(), relative.encode("utf-8", "surrogateescape")))
    return f"sha256:{total.hexdigest()}"


def ways_out(folder: Path, names: Iterable[tuple[str, Path]]) -> list[str]:
    """Names of links among ``names``, as `walk` gives them, that lead out of ``folder``."""
    root = os.path.realpath(folder)
    return [
        name
        for name, path in names
        if path.is_symlink() and not os.path.realpath(path).startswith(root + os.sep) and os.path.realpath(path) != root
    ]


def stage(folder: Path, ignore: Ignore, target: Path) -> None:
    """Copy the context to ``target``, links as links, times kept so that a builder's cache stays warm."""
    target.mkdir(parents=True, exist_ok=True)
    for relative, path in walk(folder, ignore):
        destination = target / relative
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, destination, follow_symlinks=False)
