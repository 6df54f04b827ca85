"""Snapshots: a container's files as an image, without the variables that the container was given.

A plain commit would write them into the image, where secrets outlive the sandbox and travel with it.
"""

from __future__ import annotations

import contextlib
import json
import os.path
from typing import TYPE_CHECKING, Any

from openenv_sandbox._remote_config import from_oci
from openenv_sandbox.provider import Prepared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from openenv_providers._docker_daemon import Daemon
    from openenv_sandbox.provider import SandboxInfo

SNAPSHOT = "openenv.snapshot"
"""Label of every snapshot; its value is the key of the sandbox it was taken from."""
_AT_MOST = 200
"""More changes than this are not copied one by one."""
_DELETED, _ADDED = 2, 1


async def commit(daemon: Daemon, info: SandboxInfo, inspected: Mapping[str, Any]) -> Prepared:
    """Keep a container's files as an image, without the variables that were given to the container.

    Where there are any, what changed is copied into a container that never had them, and that is committed; where
    that cannot say everything, the image is made from all files, with the start configuration of the container.

    Args:
        daemon: The daemon.
        info: The sandbox.
        inspected: What the daemon says about its container.
    """
    key = info.ref.key or info.ref.id[:12]
    whose = [f"LABEL oe-install={info.labels['oe-install']}"] if info.labels.get("oe-install") else []

    def make(api: Any) -> Mapping[str, Any]:
        base = api.inspect_image(inspected["Image"]).get("Config") or {}
        own = inspected["Config"]
        plain = set(own.get("Env") or ()) <= set(base.get("Env") or ())
        number = len(api.images(filters={"label": f"{SNAPSHOT}={key}"})) + 1
        name, tag = "openenv/snapshot", f"{key}-{number}"
        if plain:
            api.commit(info.ref.id, name, tag, changes=[*_no_labels(own, base), f"LABEL {SNAPSHOT}={key}", *whose])
        else:
            changes = [*_changes(own, base.get("Env") or ()), f"LABEL {SNAPSHOT}={key}", *whose]
            with _frozen(api, info.ref.id, inspected):
                paths = _changed(api.diff(info.ref.id) or ())
                if paths is None:
                    stream = _Stream(api.export(info.ref.id))
                    api.import_image(src=stream, repository=name, tag=tag, changes=changes)
                else:
                    _copy_changes(api, inspected, paths, (name, tag), changes)
        found: Mapping[str, Any] = api.inspect_image(f"{name}:{tag}")
        return found

    found = await daemon.call("taking a snapshot", make, ref=info.ref, started=True)
    return Prepared(str(found["RepoTags"][0]), from_oci(found.get("Config") or {}), str(found["Id"]), owned=True)


@contextlib.contextmanager
def _frozen(api: Any, identifier: str, inspected: Mapping[str, Any]) -> Iterator[None]:
    """Nothing writes meanwhile."""
    freeze = (inspected.get("State") or {}).get("Status") == "running"
    if freeze:
        api.pause(identifier)
    try:
        yield
    finally:
        if freeze:
            api.unpause(identifier)


def _changed(rows: Iterable[Mapping[str, Any]]) -> list[str] | None:
    """Paths that bring every change when they are copied, whole folders included; None where copying does not do.

    A folder is said to have changed when something in it did: where nothing below it is named, it has by itself.
    """
    kinds = {str(row["Path"]): int(row["Kind"]) for row in rows}
    parents = {os.path.dirname(path) for path in kinds}
    wanted = [
        path
        for path, kind in kinds.items()
        if kinds.get(os.path.dirname(path)) != _ADDED and (kind == _ADDED or path not in parents)
    ]
    unfit = _DELETED in kinds.values() or len(wanted) > _AT_MOST
    return None if unfit else wanted


def _copy_changes(
    api: Any, inspected: Mapping[str, Any], paths: Sequence[str], name: tuple[str, str], changes: list[str]
) -> None:
    """The changes as one layer on the image of the container."""
    own = inspected["Config"]
    start = {"entrypoint": own.get("Entrypoint") or None, "command": own.get("Cmd") or None}
    bare = str(api.create_container(inspected["Image"], **start)["Id"])
    try:
        for path in paths:
            stream, _ = api.get_archive(inspected["Id"], path)
            api.put_archive(bare, os.path.dirname(path), _Stream(stream))
        api.commit(bare, *name, changes=changes)
    finally:
        api.remove_container(bare, v=True)


class _Stream:
    """Chunks as the file that the SDK uploads."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def read(self, size: int = -1) -> bytes:
        return next(self._chunks, b"")


def _no_labels(own: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """A commit inherits the container's labels, which would make later containers look like this sandbox."""
    kept = base.get("Labels") or {}
    return [f'LABEL {name}=""' for name in own.get("Labels") or {} if name not in kept]


def _changes(own: Mapping[str, Any], env: Sequence[str]) -> list[str]:
    pairs = (item.partition("=") for item in env)
    changes = [f"ENV {name}={json.dumps(value)}" for name, _, value in pairs]
    changes += [f"EXPOSE {port}" for port in own.get("ExposedPorts") or ()]
    for word, field in (("USER", "User"), ("WORKDIR", "WorkingDir")):
        if own.get(field):
            changes.append(f"{word} {own[field]}")
    for word, field in (("ENTRYPOINT", "Entrypoint"), ("CMD", "Cmd")):
        if own.get(field):
            changes.append(f"{word} {json.dumps(own[field])}")
    return changes
