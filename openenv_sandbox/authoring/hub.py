"""Spaces of the Hugging Face hub: an environment's folder pushed to one, and one copied into an own account.

Needs the extra ``hub``. The hub builds the Space from its Dockerfile, so the openenv that runs here goes along as a
wheel, as into every image that is built here.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox import _context
from openenv_sandbox.authoring._hub_api import Hub
from openenv_sandbox.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import SecretStr

MAX_FILE = 1 << 30
"""Bytes of the largest file that is pushed: what a Space may hold in all without a paid plan."""

_REPO = re.compile(r"[\w.-]+/[\w.-]+\Z")
_OURS = ("README.md", "Dockerfile")
_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n?", re.DOTALL)


@dataclass(frozen=True)
class Pushed:
    """What a push did, or would do.

    Attributes:
        repo_id: ``owner/name`` of the Space.
        url: Where people find it; of the pull request, where one was opened.
        created: Whether the Space is new.
        files: Paths in it and their sizes in bytes.
        deleted: Paths that are removed.
        variables: Names of the variables set.
        secrets: Names of the secrets set.
        dry_run: Nothing was changed.
    """

    repo_id: str
    url: str
    created: bool
    files: Mapping[str, int]
    deleted: Sequence[str] = ()
    variables: Sequence[str] = ()
    secrets: Sequence[str] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class Push:
    """What is asked of a push.

    Attributes:
        repo_id: ``owner/name``; None for the account's own name and the environment's.
        private: Whether a new Space is private; None for the hub's default.
        interface: Whether the page at /web is on.
        base_image: Replaces the Dockerfile's base; None leaves it as written.
        hardware: Of the hub's list, such as ``cpu-basic``; None leaves it.
        variables: Environment of the server, readable by everybody.
        secrets: Likewise, readable by the Space alone.
        exclude: Patterns of files that stay here, beside those of .dockerignore.
        delete: Patterns of files of the Space that are removed.
        create_pr: Open a pull request instead of changing the Space.
        dry_run: Change nothing.
        message: Of the commit.
    """

    repo_id: str | None = None
    private: bool | None = None
    interface: bool = True
    base_image: str | None = None
    hardware: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    exclude: Sequence[str] = ()
    delete: Sequence[str] = ()
    create_pr: bool = False
    dry_run: bool = False
    message: str = "Push by openenv"


def push(folder: Path, wish: Push, *, on_log: Callable[[str], None] = lambda line: None) -> Pushed:
    """Create or update the Space of an environment's folder. Blocks.

    Args:
        folder: The environment.
        wish: What is asked for.
        on_log: Told each stage.

    Raises:
        AuthError: There is no token, or it may not do this.
        ConfigError: The name cannot be, or belongs to something else; a file is too large. Nothing was changed.
        ImageError: The folder is no environment. Nothing was changed.
        CapabilityError: A pull request against a Space that does not exist.
        ProviderUnavailable: The hub cannot be reached.
        ProviderError: The hub refused. A Space that was new is deleted again.
    """
    hub = Hub()
    from openenv_sandbox import image

    parsed = image.parse(str(folder))
    repo_id = wish.repo_id or f"{hub.user()}/{parsed.name.replace('_', '-')}"
    if not _REPO.match(repo_id):
        raise ConfigError(f"{repo_id!r} does not name a Space", hint="write owner/name")
    there = hub.find(repo_id)
    if there is None and wish.create_pr:
        raise CapabilityError(
            f"{repo_id} does not exist, so there is nothing to open a pull request against", field="create_pr"
        )
    on_log("staging the files")
    return asyncio.run(_staged_push(hub, parsed, repo_id, there, wish, on_log))


async def _staged_push(
    hub: Hub, parsed: Any, repo_id: str, there: Sequence[str] | None, wish: Push, on_log: Callable[[str], None]
) -> Pushed:
    from openenv_sandbox import _manifest, staging

    async with staging.staged(parsed, base_image=wish.base_image or "") as context:
        await asyncio.to_thread(_no_links_out, context.folder, wish.exclude)
        await asyncio.to_thread(
            _dress, context.folder, context.dockerfile, _manifest.load(Path(parsed.path)), wish.interface
        )
        files = await asyncio.to_thread(_files, context.folder, wish.exclude)
        gone = [path for path in there or () if path not in files and _matches(path, wish.delete)]
        result = Pushed(
            repo_id,
            hub.page(repo_id),
            there is None,
            {name: path.stat().st_size for name, path in files.items()},
            gone,
            list(wish.variables),
            list(wish.secrets),
            wish.dry_run,
        )
        if wish.dry_run:
            return result
        url = await asyncio.to_thread(hub.push, result, files, wish, on_log)
        return Pushed(**{**vars(result), "url": url})


def fork(
    source: str,
    *,
    repo_id: str | None = None,
    private: bool | None = None,
    hardware: str | None = None,
    variables: Mapping[str, str] | None = None,
    secrets: Mapping[str, SecretStr] | None = None,
) -> Pushed:
    """Copy a Space into an own account. Blocks.

    Args:
        source: ``owner/name``.
        repo_id: Name of the copy; None for the account's own and the same name.
        private: Whether it is private; None for the hub's default.
        hardware: Of the hub's list; None for what the source asks for.
        variables: Environment of the server, readable by everybody.
        secrets: Likewise, readable by the Space alone.

    Raises:
        AuthError: There is no token, or it may not do this.
        ConfigError: A name cannot be, does not exist, or is taken. Nothing was changed.
        ProviderUnavailable: The hub cannot be reached.
        ProviderError: The hub refused.
    """
    hub = Hub()
    target = repo_id or f"{hub.user()}/{source.partition('/')[2]}"
    for name in (source, target):
        if not _REPO.match(name):
            raise ConfigError(f"{name!r} does not name a Space", hint="write owner/name")
    files = hub.find(source)
    if files is None:
        raise ConfigError(f"there is no Space {source}, or this account may not see it")
    if hub.find(target) is not None:
        raise ConfigError(f"the name {target} is taken", hint="choose another: --repo-id owner/name")
    url = hub.fork(source, target, private, hardware, dict(variables or {}), dict(secrets or {}))
    return Pushed(target, url, True, {}, (), list(variables or ()), list(secrets or ()))


def _no_links_out(folder: Path, exclude: Sequence[str]) -> None:
    """The hub takes files alone: a link is pushed as what it leads to, which must be a file of the folder."""
    links = [(name, path) for name, path in _context.walk(folder, _context.Ignore([])) if path.is_symlink()]
    # These two are read and written whether or not they are pushed.
    links = [(name, path) for name, path in links if name in _OURS or not _matches(name, exclude)]
    for name in (*_context.ways_out(folder, links), *(name for name, path in links if not path.is_file())):
        raise ConfigError(f"{name} is a link to what is no file of the folder", hint="leave it out by --exclude")


def _files(folder: Path, exclude: Sequence[str]) -> dict[str, Path]:
    found = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _matches(path.relative_to(folder).as_posix(), exclude)
    }
    for name, path in found.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"the name {os.fsencode(name)!r} is no UTF-8, which the hub wants", hint="leave it out by .dockerignore"
            ) from None
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(
                f"{name} has {path.stat().st_size / 1e6:.0f} MB, {MAX_FILE / 1e6:.0f} MB is the most",
                hint="leave it out by .dockerignore or --exclude",
            )
    return found


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(path, pattern) or path.startswith(f"{pattern.rstrip('/')}/") for pattern in patterns)


def _dress(folder: Path, dockerfile: Path, manifest: Any, interface: bool) -> None:
    """What the hub wants beside the context: a Dockerfile of that name and a README with front matter."""
    import yaml

    text = dockerfile.read_text(encoding="utf-8").rstrip("\n")
    if interface:
        text += "\n# The page of the Space.\nENV ENABLE_WEB_INTERFACE=true"
    (folder / "Dockerfile").write_text(text + "\n", encoding="utf-8")
    if os.path.realpath(dockerfile) != os.path.realpath(folder / "Dockerfile"):
        dockerfile.unlink()
    (folder / ".dockerignore").unlink(missing_ok=True)  # it was heeded; on the hub it may hide what was added
    own = manifest.path.with_name("README.md")
    body = own.read_text(encoding="utf-8") if own.is_file() else f"# {manifest.name}\n"
    found = _FRONT.match(body)
    try:
        front = (yaml.safe_load(found[1]) if found else None) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"the front matter of README.md cannot be read: {error}") from error
    if not isinstance(front, dict):
        raise ConfigError("the front matter of README.md is no mapping of fields")
    tags = [*(front.get("tags") or []), *([] if "openenv" in (front.get("tags") or []) else ["openenv"])]
    front = {
        "title": manifest.name.replace("_", " ").capitalize(),
        "emoji": "🎮",
        "colorFrom": "blue",
        "colorTo": "green",
        **front,
        "sdk": "docker",
        "app_port": manifest.port,
        "tags": tags,
    }
    front.pop("base_path", None)
    if interface:
        front["base_path"] = "/web"
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    (folder / "README.md").write_text(f"---\n{head}---\n{body[found.end() :] if found else body}", encoding="utf-8")
