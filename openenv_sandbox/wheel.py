"""Our own wheel, made from the running installation without a build backend.

The openenv that goes into an environment is the one that is running: the index may hold another implementation under
the same name. An installed distribution is zipped again from its RECORD; an editable one from its source roots.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import posixpath
import sys
import threading
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from openenv_sandbox.errors import BuildError

DISTRIBUTION = "openenv"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold: equal content makes equal bytes
# Written by the installer, about this one installation.
_LOCAL_RECORDS = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s", "uv_cache.json"}
_NOT_SOURCE = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}

_lock = threading.Lock()
_known: dict[tuple[tuple[str, int, int], ...], str] = {}


def own_wheel(cache_dir: str | os.PathLike[str]) -> Path:
    """The wheel of the running openenv, made when its content is not in the cache yet.

    Reads files: call it from a worker thread when on an event loop.

    Args:
        cache_dir: Folder for wheels; made when missing.

    Raises:
        BuildError: The running code belongs to no installation, or the cache cannot be written.
    """
    files = _files()
    digest = _digest(files)
    name = next(n for n in files if n.endswith(".dist-info/METADATA")).split(".dist-info/")[0]
    target = Path(cache_dir) / digest[:32] / f"{name}-py3-none-any.whl"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
        partial.write_bytes(_zip(files))
        os.replace(partial, target)
    except OSError as error:
        raise BuildError(f"the wheel cache {cache_dir} cannot be written: {error.strerror}") from error
    return target


def fingerprint() -> str:
    """A digest of the running openenv's code and metadata, as hex.

    Raises:
        BuildError: The running code belongs to no installation.
    """
    return _digest(_files())


def _files() -> dict[str, bytes | Path]:
    """Archive name to content or file, sorted, without RECORD."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise BuildError(
            "openenv runs from files that belong to no installation, so there is no wheel of it",
            hint="pip install -e . in the checkout",
        ) from None
    root = _editable_root(distribution)
    files = _installed(distribution)
    if root is not None:
        files.update(_sources(root))
    info = {name for name in files if name.endswith(".dist-info/METADATA")}
    if len(info) != 1:
        raise BuildError(f"the installation of {DISTRIBUTION} has {len(info)} METADATA files", hint="reinstall openenv")
    return dict(sorted(files.items()))


def _installed(distribution: metadata.Distribution) -> dict[str, bytes | Path]:
    found: dict[str, bytes | Path] = {}
    for entry in distribution.files or ():
        name = entry.as_posix()
        if name.startswith("../") or name.endswith((".pyc", ".pth")) or "/__pycache__/" in name:
            continue
        if ".dist-info/" in name and posixpath.basename(name) in _LOCAL_RECORDS:
            continue
        path = Path(str(distribution.locate_file(entry)))
        if path.is_file():
            found[name] = path
    return found


def _editable_root(distribution: metadata.Distribution) -> Path | None:
    text = distribution.read_text("direct_url.json")
    try:
        origin: dict[str, Any] = json.loads(text) if text else {}
    except ValueError:
        return None
    if not origin.get("dir_info", {}).get("editable"):
        return None
    root = Path(unquote(urlsplit(str(origin.get("url", ""))).path))
    if not (root / "pyproject.toml").is_file():
        raise BuildError(
            f"openenv is installed in editable form from {root}, which is gone", hint="pip install openenv again"
        )
    return root


def _sources(root: Path) -> dict[str, bytes | Path]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, bytes | Path] = {}
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        folder = root / package
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder)
            if path.is_file() and not _NOT_SOURCE.intersection(relative.parts) and path.suffix != ".pyc":
                found[f"{folder.name}/{relative.as_posix()}"] = path
    return found


def _content(source: bytes | Path) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _digest(files: dict[str, bytes | Path]) -> str:
    """By content; asked again with the same names, sizes and times the answer is remembered."""
    signature = []
    for name, source in files.items():
        if isinstance(source, Path):
            status = source.stat()
            signature.append((name, status.st_size, status.st_mtime_ns))
    key = tuple(signature)
    with _lock:
        if key in _known:
            return _known[key]
    total = hashlib.sha256()
    for name, source in files.items():
        content = _content(source)
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    with _lock:
        return _known.setdefault(key, total.hexdigest())


def _zip(files: dict[str, bytes | Path]) -> bytes:
    rows: list[tuple[str, str, str]] = []
    info = next(name for name in files if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    # dist-info last, as the format recommends
    ordered = sorted(files.items(), key=lambda item: (item[0].startswith(f"{info}/"), item[0]))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in ordered:
            content = _content(source)
            checksum = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append((name, f"sha256={checksum}", str(len(content))))
            _add(archive, name, content)
        record = io.StringIO()
        csv.writer(record, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
        _add(archive, f"{info}/RECORD", record.getvalue().encode())
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
