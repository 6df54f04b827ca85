"""``.dockerignore`` as docker means it, and where the daemon is."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import _context, _dockerhost
from openenv_sandbox.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("patterns", "out", "kept"),
    [
        (["*.md"], ["a.md"], ["sub/a.md", "a.mdx"]),
        (["**/*.md"], ["a.md", "x/y/a.md"], ["a.txt"]),
        (["docs"], ["docs", "docs/a/b"], ["docs2", "x/docs"]),
        (["/docs/"], ["docs/a"], ["x/docs"]),
        (["*", "!keep", "!sub/*.py"], ["a", "sub/a.txt"], ["keep", "keep/x", "sub/a.py"]),
        (["a?c", "[xy]z"], ["abc", "xz", "yz"], ["ac", "zz"]),
        (["# no", "", "a/../b"], ["b"], ["a", "# no"]),
        (["foo/**"], ["foo/a", "foo/a/b"], ["foo2"]),
        ([], ["x/__pycache__", "__pycache__/a.pyc", ".venv/bin/python", ".git/HEAD"], ["a.py", ".env", "gitx"]),
    ],
)
def test_patterns(patterns: list[str], out: list[str], kept: list[str]) -> None:
    ignore = _context.Ignore(patterns)
    assert [name for name in out if not ignore.excludes(name)] == []
    assert [name for name in kept if ignore.excludes(name)] == []


def test_the_file_beside_the_dockerfile_goes_first(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("a\n")
    (tmp_path / "Dockerfile.dockerignore").write_text("b\n")
    ignore = _context.Ignore.of(tmp_path, tmp_path / "Dockerfile")
    assert (ignore.excludes("a"), ignore.excludes("b")) == (False, True)
    assert _context.Ignore.of(tmp_path).excludes("a")


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("k")
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "deep").mkdir()
    (folder / "deep" / "a").write_text("1")
    assert [name for name, _ in _context.walk(folder, _context.Ignore([]))] == ["deep/a", "link"]
    assert [name for name, _ in _context.walk(folder, _context.Ignore(["deep", "!deep/b"]))] == ["link"]


def test_the_order_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text('{"currentContext": "far"}')
    meta = tmp_path / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": "tcp://10.0.0.9:2376"}}}))
    found = _dockerhost.resolve()
    assert (found.url, found.local, found.hostname) == ("tcp://10.0.0.9:2376", False, "10.0.0.9")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert _dockerhost.resolve().local
    assert _dockerhost.resolve("/run/x.sock").socket_path == "/run/x.sock"
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    with pytest.raises(ConfigError, match="'gone'"):
        _dockerhost.resolve()
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert _dockerhost.resolve().url.startswith("unix://")
    with pytest.raises(ConfigError, match="not an address"):
        _dockerhost.resolve("nonsense")


def test_why_nobody_answers(tmp_path: Path) -> None:
    path = tmp_path / "d.sock"
    host = _dockerhost.resolve(str(path))
    assert _dockerhost.probe(host)[0] == "missing"
    path.write_text("")
    assert _dockerhost.probe(host) == ("missing", f"{path} is not a socket")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert _dockerhost.probe(host)[0] == "dead"
        listener.listen()
        assert _dockerhost.probe(host)[0] == "ready"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert _dockerhost.probe(_dockerhost.resolve(f"tcp://127.0.0.1:{unused.getsockname()[1]}"))[0] == "dead"


@pytest.mark.parametrize("call", ["stat", "connect"])
def test_no_permission(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "d.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        # Root may open every socket, so the kernel's answer is put in its mouth.
        monkeypatch.setattr(os if call == "stat" else socket.socket, call, refused)
        assert _dockerhost.probe(_dockerhost.resolve(str(path))) == ("permission", f"no permission for {path}")
