"""Environments that lie elsewhere: ``hf://org/space`` and ``git+https://…`` as folders at one commit.

A name is resolved to a commit first; what is fetched is that commit, kept under the state folder, and never fetched
again. The code is somebody else's, so nothing is even asked for without ``trust``. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from openenv_sandbox import _context
from openenv_sandbox._paths import remove_tree, state_dir
from openenv_sandbox.errors import ImageError, ProviderUnavailable, TrustError

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMES = ("hf://", "git+https://")
FETCH_S = 600.0
"""How long one fetch may take, in seconds."""
ASK_S = 60.0
"""How long resolving a name may take, in seconds."""

_SPACE = re.compile(r"hf://(?:spaces/)?([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_REVISION = re.compile(r"(?!-)[\w./-]+\Z")
_OFFLINE = re.compile(r"could not resolve host|failed to connect|connection refused|timed out", re.IGNORECASE)
_OF_A_REPOSITORY = frozenset(
    f"GIT_{name}"
    for name in "DIR WORK_TREE INDEX_FILE OBJECT_DIRECTORY ALTERNATE_OBJECT_DIRECTORIES COMMON_DIR NAMESPACE PREFIX "
    "SHALLOW_FILE GRAFT_FILE REPLACE_REF_BASE IMPLICIT_WORK_TREE INTERNAL_SUPER_PREFIX QUARANTINE_PATH".split()
)


@dataclass(frozen=True)
class Source:
    """What a name means.

    Attributes:
        kind: ``hf`` or ``git``.
        where: ``org/space``, or the repository's address.
        revision: Branch, tag or commit; None for the default one.
        subfolder: Of the repository; empty for its root.
    """

    kind: str
    where: str
    revision: str | None = None
    subfolder: str = ""

    def pinned(self, commit: str) -> str:
        """The name with the commit in it."""
        if self.kind == "hf":
            return f"hf://{self.where}@{commit}"
        return f"git+{self.where}@{commit}" + (f"#subdirectory={self.subfolder}" if self.subfolder else "")


def parse_source(text: str) -> Source:
    """Take a name apart.

    Raises:
        ImageError: It is malformed.
    """
    if text.startswith("hf://"):
        found = _SPACE.match(text)
        if found is None:
            raise ImageError(f"{text!r} names no Space", hint="write hf://org/space or hf://org/space@commit")
        return Source("hf", found[1], found[2])
    hint = "write git+https://host/repository, with @revision and #subdirectory=folder where needed"
    try:
        parts = urlsplit(text.removeprefix("git+"))
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise ImageError(f"{text!r} is no address of a repository", hint=hint) from None
    path, _, revision = parts.path.partition("@")
    subfolder = (parse_qs(parts.fragment).get("subdirectory") or [""])[0].strip("/")
    if not parts.hostname or not port_is_fine or not path.strip("/") or parts.query:
        raise ImageError(f"{text!r} is no address of a repository", hint=hint)
    if "@" in parts.netloc:
        raise ImageError(
            f"{parts.hostname}: a login does not belong into an image's name", hint="git config credential.helper …"
        )
    if (revision and not _REVISION.match(revision)) or ".." in subfolder.split("/"):
        raise ImageError(f"{text!r} is no address of a repository", hint=hint)
    return Source("git", f"https://{parts.netloc}{path}", revision or None, subfolder)


def fetch(text: str, *, trust: bool) -> tuple[Path, str]:
    """The folder behind a name.

    Args:
        text: ``hf://…`` or ``git+https://…``.
        trust: The user vouches for the code.

    Returns:
        The folder, and the name with its commit in it.

    Raises:
        TrustError: Without ``trust``; nothing was asked of anybody.
        ImageError: The name is malformed, there is no such thing, or no such revision.
        MissingExtraError: The extra ``hub`` is not installed.
        ProviderUnavailable: It cannot be reached, or there is no git.
    """
    source = parse_source(text)
    if not trust:
        raise untrusted(text)
    ask, get = (_hub_commit, _hub_files) if source.kind == "hf" else (_git_commit, _git_files)
    commit = source.revision if source.revision and _COMMIT.match(source.revision) else ask(source)
    folder = _cache() / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', source.where.rpartition('//')[2])}-{commit[:16]}"
    if not folder.is_dir():
        try:
            _fill(folder, lambda partial: get(source, commit, partial))
        except OSError as error:
            raise ImageError(f"{text} cannot be kept in {folder.parent}: {error.strerror or error}") from error
    inside = folder / source.subfolder
    if not inside.is_dir():
        raise ImageError(f"{source.pinned(commit)} has no folder {source.subfolder!r}")
    _stay_inside(inside, folder)
    return inside, source.pinned(commit)


def _fill(folder: Path, get: Callable[[Path], None]) -> None:
    """Make a folder that is there whole or not at all, whoever else makes it meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(".partial-*"):  # by a process that was killed
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - 2 * FETCH_S:
                remove_tree(left)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        get(partial)
        try:
            os.rename(partial, folder)
        except OSError:  # another process was faster: its folder holds the same
            if not folder.is_dir():
                raise
    finally:
        remove_tree(partial)


def _stay_inside(inside: Path, folder: Path) -> None:
    """Make sure that reading the files of a folder reads nothing else of this machine."""
    if not Path(os.path.realpath(inside)).is_relative_to(os.path.realpath(folder)):
        raise ImageError(f"{inside.name!r} is a link that leads out of what was fetched")
    if out := _context.ways_out(folder, _context.walk(inside, _context.Ignore([]))):
        raise ImageError(f"{os.fsencode(out[0])!r} is a link that leads out of what was fetched")


def untrusted(text: str) -> TrustError:
    """What is raised where nobody vouches for code from elsewhere."""
    return TrustError(
        f"{text} is code from elsewhere, which nobody has vouched for", hint="read it and pass trust=True (--trust)"
    )


def _cache() -> Path:
    return state_dir() / "sources"


def _hub_commit(source: Source) -> str:
    from openenv_sandbox.authoring._hub_api import Hub

    commit = Hub(login=False).commit(source.where, source.revision)
    if commit is None:
        at = f" at {source.revision}" if source.revision else ""
        raise ImageError(f"there is no Space {source.where}{at}, or it is private", hint="hf auth login")
    return commit


def _hub_files(source: Source, commit: str, target: Path) -> None:
    from openenv_sandbox.authoring._hub_api import Hub

    Hub(login=False).download(source.where, commit, target)
    remove_tree(target / ".cache")


def _git_commit(source: Source) -> str:
    wanted = source.revision or "HEAD"
    lines = _git("ls-remote", source.where, wanted, f"refs/tags/{wanted}^{{}}", timeout=ASK_S).splitlines()
    found = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
    for name in (f"refs/tags/{wanted}^{{}}", f"refs/heads/{wanted}", f"refs/tags/{wanted}", wanted):
        if name in found:
            return found[name]
    raise ImageError(f"{source.where} has no revision {wanted!r}", hint="a branch, a tag, or a whole commit")


def _git_files(source: Source, commit: str, target: Path) -> None:
    _git("init", "-q", str(target), timeout=ASK_S)
    try:
        _git("fetch", "-q", "--depth", "1", source.where, commit, inside=target, timeout=FETCH_S)
    except ImageError:  # a server that gives whole branches alone
        refs = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        _git("fetch", "-q", source.where, *refs, inside=target, timeout=FETCH_S)
    _git("checkout", "-q", "--detach", commit, inside=target, timeout=FETCH_S)
    remove_tree(target / ".git")


def _git(*args: str, timeout: float, inside: Path | None = None) -> str:
    """Run git, which asks nobody for a password."""
    # What is set inside a git hook would lead to the repository of the hook.
    kept = {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
    env = {**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=inside,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
        )
    except FileNotFoundError:
        raise ProviderUnavailable("git is not installed", hint="apt-get install git") from None
    except subprocess.TimeoutExpired:
        raise ProviderUnavailable(f"git {args[0]} did not end within {timeout:g} s", retryable=True) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        text = f"git {args[0]}: {said[-1] if said else 'failed'}"
        if _OFFLINE.search(done.stderr):
            raise ProviderUnavailable(text, retryable=True)
        raise ImageError(text)
    return done.stdout
