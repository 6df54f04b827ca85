"""Environments that lie elsewhere: names, trust, commits, and what stays on disk."""

from __future__ import annotations

import http.server
import os
import ssl
import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import fetching, launch
from openenv_sandbox.authoring.scaffold import scaffold
from openenv_sandbox.errors import ImageError, ProviderUnavailable, TrustError
from openenv_sandbox.fetching import Source, fetch, parse_source
from openenv_sandbox.image import parse
from tests.authoring.hub_standin import COMMIT, Hub, Space, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://org/space", Source("hf", "org/space")),
        ("hf://spaces/org/space@v1", Source("hf", "org/space", "v1")),
        ("git+https://h.example/a/b.git", Source("git", "https://h.example/a/b.git")),
        (
            "git+https://h.example:8443/a/b@feature/x#subdirectory=envs/echo_env",
            Source("git", "https://h.example:8443/a/b", "feature/x", "envs/echo_env"),
        ),
    ],
)
def test_names(text: str, source: Source) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "hf://space",
        "hf://org/space/more",
        "hf://",
        "git+https://",
        "git+https://h.example",
        "git+https://user:password@h.example/a",
        "git+https://h.example/a@--upload-pack=x",
        "git+https://h.example/a#subdirectory=../../etc",
        "git+https://h.example:x/a",
        "git+https://h.example/a?x=1",
    ],
)
def test_names_that_are_none(text: str) -> None:
    """Refused before anything is asked, without repeating a password."""
    with pytest.raises(ImageError) as caught:
        fetch(text, trust=True)
    assert "password@" not in str(caught.value)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that this process's client asks; its endpoint is read when its module is first used."""
    import huggingface_hub

    with served() as hub:
        monkeypatch.setattr(huggingface_hub, "HfApi", partial(huggingface_hub.HfApi, endpoint=hub.url))
        folder = scaffold("far_env", tmp_path)
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        hub.spaces["org/far"] = Space(files=files)
        yield hub


def test_a_space(hub: Hub) -> None:
    """Nothing is asked without trust; with it the folder is that of one commit, and is fetched once.

    Mutation: resolve the name before trust is looked at; fetch again
    """
    with pytest.raises(TrustError, match="vouched for"):
        parse("hf://org/far")
    assert not hub.requests
    image = parse("hf://org/far", trust=True)
    assert (image.name, image.source) == ("far_env", f"hf://org/far@{COMMIT}")
    assert image.config is not None
    assert image.config.argv[:3] == ("python3", "-m", "uvicorn")
    asked = len(hub.requests)
    again = parse(f"hf://org/far@{COMMIT}", trust=True)
    assert (again.path, len(hub.requests)) == (image.path, asked)
    with pytest.raises(ImageError, match="no Space org/far at v9"):
        parse("hf://org/far@v9", trust=True)
    with pytest.raises(ImageError, match="no Space org/none"):
        parse("hf://org/none", trust=True)


def test_half_of_a_fetch_is_nothing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that breaks off leaves no folder, and the next one is whole.

    Mutation: fetch into the final folder
    """
    whole = fetching._hub_files

    def broken(source: Source, commit: str, target: Path) -> None:
        whole(source, commit, target)
        (target / "openenv.yaml").unlink()
        raise ProviderUnavailable("cut off")

    monkeypatch.setattr(fetching, "_hub_files", broken)
    with pytest.raises(ProviderUnavailable):
        parse("hf://org/far", trust=True)
    assert not list(fetching._cache().iterdir())
    monkeypatch.setattr(fetching, "_hub_files", whole)
    assert parse("hf://org/far", trust=True).name == "far_env"


@pytest.mark.anyio
async def test_launch_asks_for_trust(hub: Hub) -> None:
    """By an argument or a setting; the error says how."""
    with pytest.raises(TrustError, match="trust=True"):
        await launch("hf://org/far", provider="local")
    assert not hub.requests


@pytest.fixture(params=["smart", "dumb"])
def repository(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A repository over HTTPS with a branch, a tag and a subfolder; smart HTTP, or plain files."""
    work = tmp_path / "work"
    work.mkdir()
    scaffold("far_env", work)
    git = partial(subprocess.run, cwd=work, check=True, capture_output=True)
    name = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    git(["git", "init", "-q", "-b", "main"])
    git(["git", "add", "."])
    git(["git", *name, "commit", "-q", "-m", "one"])
    git(["git", *name, "tag", "-a", "v1", "-m", "v1"])
    (work / "far_env" / "marker").write_text("two")
    git(["git", "add", "."])
    git(["git", *name, "commit", "-q", "-m", "two"])
    bare = tmp_path / "served" / "far.git"
    git(["git", "clone", "-q", "--bare", str(work), str(bare)])
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True)
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    certify = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key)]
    subprocess.run([*certify, "-out", str(cert), *subject], check=True, capture_output=True)
    handler = Smart if request.param == "smart" else partial(Quiet, directory=str(bare.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.root = str(bare.parent)  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("GIT_SSL_CAINFO", str(cert))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield f"git+https://127.0.0.1:{server.server_address[1]}/far.git"
    server.shutdown()
    thread.join()
    server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Smart(http.server.BaseHTTPRequestHandler):
    """Git's own CGI program behind a few lines."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        size = int(self.headers.get("content-length") or 0)
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": self.server.root,  # type: ignore[attr-defined]
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
        }
        body = self.rfile.read(size)
        done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        fields = {name.lower(): value for name, value in lines}
        self.send_response(int(fields.pop("status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_repository(repository: str, tmp_path: Path) -> None:
    """The default branch, a branch, an annotated tag, a commit, each as the folder of its commit without history.

    Mutation: take the tag's object for its commit; leave .git in the folder
    """
    newest = parse(f"{repository}#subdirectory=far_env", trust=True)
    assert newest.path is not None
    folder = os.path.dirname(newest.path)
    assert os.path.exists(os.path.join(newest.path, "marker"))
    assert not os.path.exists(os.path.join(folder, ".git"))
    commit = newest.source.partition("@")[2].partition("#")[0]
    assert len(commit) == 40
    assert newest.source == f"{repository}@{commit}#subdirectory=far_env"
    assert parse(f"{repository}@main#subdirectory=far_env", trust=True).path == newest.path
    tagged = parse(f"{repository}@v1#subdirectory=far_env", trust=True)
    assert tagged.path is not None
    assert not os.path.exists(os.path.join(tagged.path, "marker"))
    pinned = tagged.source
    assert parse(pinned, trust=True).path == tagged.path
    with pytest.raises(ImageError, match="no revision 'nothing'"):
        parse(f"{repository}@nothing", trust=True)
    with pytest.raises(ImageError, match="no folder 'other'"):
        parse(f"{repository}#subdirectory=other", trust=True)
    with pytest.raises(ImageError, match=r"^git checkout: "):
        fetch(f"{repository}@{'0' * 39}1", trust=True)
    with pytest.raises(ImageError):
        parse(repository.replace("far.git", "none.git"), trust=True)


def test_a_host_that_is_not_there() -> None:
    """Told as such, without waiting for a password."""
    with pytest.raises(ProviderUnavailable):
        fetch("git+https://127.0.0.1:9/a", trust=True)
