"""Where the docker daemon is: DOCKER_HOST, the docker CLI's current context, or a default socket. No SDK."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from openenv_sandbox.errors import ConfigError

State = Literal["ready", "missing", "dead", "permission"]
SYSTEM, PODMAN = "/var/run/docker.sock", "/run/podman/podman.sock"


@dataclass(frozen=True)
class DockerHost:
    """One daemon's address.

    Attributes:
        url: ``unix://…``, ``tcp://…``, ``ssh://…`` or ``npipe://…``.
        source: What said so, in words for an error.
        tls: Folder with ca.pem, cert.pem and key.pem; None for no TLS.
        verify: Whether the daemon's certificate is checked.
        forwarded: The socket leads to another machine's daemon.
    """

    url: str
    source: str
    tls: str | None = None
    verify: bool = True
    forwarded: bool = False

    @property
    def socket_path(self) -> str | None:
        """The path of a unix socket, None for the other kinds."""
        return self.url[len("unix://") :] if self.url.startswith("unix://") else None

    @property
    def local(self) -> bool:
        """Whether ports published on 127.0.0.1 of the daemon's machine are on this one."""
        if self.forwarded or self.url.startswith("ssh://"):
            return False  # even of an address of this machine: a port of it may lead into a virtual one
        if not self.url.startswith(("tcp://", "http://", "https://")):
            return True
        return (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")

    @property
    def hostname(self) -> str:
        """Name or literal of the daemon's machine as seen from here."""
        return "127.0.0.1" if self.local else (urlsplit(self.url).hostname or "127.0.0.1")


def resolve(explicit: str | None = None) -> DockerHost:
    """The daemon that the docker CLI would talk to, or the one named.

    Raises:
        ConfigError: The address or the context cannot be read.
    """
    if explicit:
        return _with_tls(_normal(explicit, "the option host"))
    if os.environ.get("DOCKER_HOST"):
        return _with_tls(_normal(os.environ["DOCKER_HOST"], "DOCKER_HOST"))
    context = _context()
    if context is not None:
        return context
    hosts = [DockerHost(f"unix://{path}", f"{whose} socket") for path, whose in _sockets() if os.path.exists(path)]
    # A socket that its daemon left behind, or that is another user's, must not hide one that answers.
    living = (host for host in hosts if len(hosts) == 1 or probe(host)[0] == "ready")
    return next(living, hosts[0] if hosts else DockerHost(f"unix://{SYSTEM}", "the default socket"))


def _sockets() -> list[tuple[str, str]]:
    """Where daemons listen by default, best first, and whose socket that is."""
    home = Path.home()
    runtime = os.environ.get("XDG_RUNTIME_DIR") or (f"/run/user/{os.getuid()}" if hasattr(os, "getuid") else "")
    return [
        (SYSTEM, "the default"),
        *([(f"{runtime}/docker.sock", "the rootless daemon's")] if runtime else []),
        (str(home / ".docker/run/docker.sock"), "Docker Desktop's"),
        (str(home / ".docker/desktop/docker.sock"), "Docker Desktop's"),
        (str(home / ".colima/default/docker.sock"), "colima's"),
        (str(home / ".orbstack/run/docker.sock"), "OrbStack's"),
        (str(home / ".rd/docker.sock"), "Rancher Desktop's"),
        *([(f"{runtime}/podman/podman.sock", "podman's")] if runtime else []),
        (PODMAN, "podman's"),
    ]


def probe(host: DockerHost, *, timeout: float = 1.5) -> tuple[State, str]:
    """Whether somebody listens: the state and a phrase that says why not. Takes at most ``timeout`` seconds."""
    path = host.socket_path
    try:
        if path is not None:
            mode = os.stat(path).st_mode
            if not stat.S_ISSOCK(mode):
                return "missing", f"{path} is not a socket"
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(timeout)
                connection.connect(path)
        elif host.url.startswith(("tcp://", "http://", "https://")):
            parts = urlsplit(host.url)
            port = parts.port or (2376 if host.tls else 2375)
            socket.create_connection((parts.hostname or "127.0.0.1", port), timeout=timeout).close()
        return "ready", ""
    except FileNotFoundError:
        return "missing", f"{path} does not exist"
    except PermissionError:
        return "permission", f"no permission for {path}"
    except ConnectionRefusedError:
        return "dead", f"nobody listens on {path or host.url}"
    except (TimeoutError, OSError) as error:
        return "dead", f"{path or host.url} does not answer: {type(error).__name__}"


def _normal(url: str, source: str) -> DockerHost:
    url = url.strip()
    if url.startswith("/"):
        url = f"unix://{url}"
    if not url.startswith(("unix://", "tcp://", "http://", "https://", "ssh://", "npipe://")):
        raise ConfigError(
            f"{source} is not an address of a docker daemon: {url.split('@')[-1]!r}",
            hint="unix:///var/run/docker.sock or tcp://host:2376",
        )
    return DockerHost(url, source)


def _with_tls(host: DockerHost) -> DockerHost:
    folder = os.environ.get("DOCKER_CERT_PATH")
    verify = os.environ.get("DOCKER_TLS_VERIFY", "") not in ("", "0", "false")
    if host.url.startswith("unix://") or not (folder or verify):
        return host
    return DockerHost(host.url, host.source, tls=folder or str(Path.home() / ".docker"), verify=verify)


def _context() -> DockerHost | None:
    config = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    name = os.environ.get("DOCKER_CONTEXT")
    source = f"the docker context {name!r} (DOCKER_CONTEXT)"
    if not name:
        try:
            name = json.loads((config / "config.json").read_text(encoding="utf-8")).get("currentContext")
        except (OSError, ValueError, AttributeError):
            name = None
        source = f"the docker context {name!r}"
    if not name or name == "default":
        return None
    digest = hashlib.sha256(name.encode()).hexdigest()
    try:
        meta = json.loads((config / "contexts" / "meta" / digest / "meta.json").read_text(encoding="utf-8"))
        endpoint = meta["Endpoints"]["docker"]
        url = endpoint["Host"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{source} cannot be read: {type(error).__name__}", hint="docker context use default, or set DOCKER_HOST"
        ) from error
    tls = config / "contexts" / "tls" / digest / "docker"
    host = _normal(str(url), source)
    verify = not endpoint.get("SkipTLSVerify", False)
    return DockerHost(host.url, host.source, tls=str(tls) if tls.is_dir() else None, verify=verify)


def tls_context(host: DockerHost) -> ssl.SSLContext | None:
    """The context for a daemon behind TLS; None for one without.

    Raises:
        ConfigError: A file of the certificate folder is missing or malformed.
    """
    if host.tls is None:
        return None
    folder = Path(host.tls)
    try:
        ca = folder / "ca.pem"
        context = ssl.create_default_context(cafile=str(ca) if ca.is_file() else None)
        if not host.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if (folder / "cert.pem").is_file():
            context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificates in {folder} cannot be used: {error}", hint="ca.pem, cert.pem and key.pem belong there"
        ) from error
    return context
