"""The docker SDK's client behind counted threads, and the one table that turns its errors into ours."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox import _dockerhost, _dockerssh
from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    ConfigError,
    ImageError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.lifecycle import CountedThreads
from openenv_sandbox.retry import retry_after

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox._dockerhost import DockerHost
    from openenv_sandbox.provider import SandboxRef

T = TypeVar("T")
REMEDY: Mapping[str, str] = {
    "ready": "",
    "missing": "install and start docker (apt-get install docker.io), or set DOCKER_HOST",
    "dead": "the socket is left over from a daemon that ended: start docker (systemctl start docker)",
    "permission": "add yourself to the group docker (sudo usermod -aG docker $USER) and log in again",
}
CONCURRENCY = 64
LOGIN = "docker login to that registry, or write the login under [image.registries] of your own openenv.toml"

# (what the daemon says, error, hint); the first that is contained decides. Statuses alone tell too little: the daemon
# answers 500 for a missing registry, a missing GPU and a full disk alike.
TABLE: tuple[tuple[str, type[OpenEnvError], str], ...] = (
    (
        "could not select device driver",
        CapabilityError,
        "this daemon has no GPU runtime: install nvidia-container-toolkit and restart docker",
    ),
    (
        "address pool",
        QuotaExceeded,
        "the daemon has no free network range: docker network prune, or widen default-address-pools in daemon.json",
    ),
    ("no space left on device", QuotaExceeded, "docker system prune, or give the daemon more disk"),
    ("toomanyrequests", RateLimited, "the registry limits pulls: log in, or wait"),
    ("no basic auth credentials", AuthError, LOGIN),
    ("unauthorized", AuthError, LOGIN),
    ("pull access denied", ImageError, "check the name; a private repository needs docker login"),
    ("manifest unknown", ImageError, "the registry has no such tag"),
    ("manifest for", ImageError, "the registry has no such tag"),
    ("no such image", ImageError, "pull or build it first"),
    ("no matching manifest", ImageError, "the image does not exist for this machine's architecture"),
    ("invalid reference format", ImageError, "a ref looks like ghcr.io/me/env:1"),
    (
        "no such host",
        ImageError,
        "the registry cannot be reached from the daemon: is there a network, is the name right?",
    ),
    ("i/o timeout", ImageError, "the registry cannot be reached from the daemon"),
    ("connection refused", ImageError, "the registry cannot be reached from the daemon"),
    ("client.timeout exceeded", ImageError, "the registry cannot be reached from the daemon"),
    ("no such container", SandboxGone, ""),
    ("no such exec", SandboxGone, ""),
    ("is not running", SandboxGone, ""),
    ("unknown or invalid runtime", ConfigError, "the option runtime names no runtime of this daemon: docker info"),
    ("unknown runtime", ConfigError, "the option runtime names no runtime of this daemon: docker info"),
)


def translate(error: Exception, *, what: str, ref: SandboxRef | None = None, started: bool = False) -> OpenEnvError:
    """Ours for any error of the SDK.

    Args:
        error: What it raised.
        what: What was attempted, as the beginning of a sentence.
        ref: The sandbox, where there is one.
        started: The request may have had an effect although no answer came.
    """
    if isinstance(error, OpenEnvError):
        return error
    text = str(getattr(error, "explanation", None) or error).strip()
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        if "certificate" in text.lower() or "SSLError" in text:
            return ProviderUnavailable(
                f"{what}: no TLS with the docker daemon, {_reason(text)}",
                provider="docker",
                ref=ref,
                hint="DOCKER_CERT_PATH, or the docker context, holds ca.pem of who signed the daemon's certificate, "
                "and cert.pem and key.pem that the daemon trusts; its address must be a name in its certificate",
            )
        silent = "timed out" in text.lower() or "timeout" in type(error).__name__.lower()
        return ProviderUnavailable(
            f"{what}: the docker daemon {'did not answer in time' if silent else 'cannot be reached'} "
            f"({type(error).__name__})",
            provider="docker",
            ref=ref,
            retryable=True,
            outcome="unknown" if started else "failed",
            hint="is it running? openenv providers docker --check",
        )
    for part, kind, hint in TABLE:
        if part in text.lower():
            extra: dict[str, Any] = {"field": "resources.gpus"} if kind is CapabilityError else {}
            return kind(f"{what}: {text}", provider="docker", ref=ref, hint=hint or None, **extra)
    if status in (401, 403):
        return AuthError(f"{what}: {text}", provider="docker", ref=ref, hint="the daemon's proxy refuses this request")
    if status == 402:
        return QuotaExceeded(f"{what}: {text}", provider="docker", ref=ref, hint="the daemon's proxy asks for payment")
    if status == 429:
        return RateLimited(f"{what}: {text}", provider="docker", ref=ref, retry_after=retry_after(error))
    return (ProviderUnavailable if status == 503 else ProviderError)(
        f"{what}: {text} (status {status})",
        provider="docker",
        ref=ref,
        retryable=status >= 500,
        # Whatever answered may have done so after the daemon acted.
        outcome="unknown" if started and status >= 500 else "failed",
    )


def _reason(text: str) -> str:
    """OpenSSL's own words out of the layers that they came through."""
    found = re.search(r"\[SSL[^]]*\] ([^(\\]+)", text)
    return found[1].strip() if found else text[:200]


def _tls_config(**files: Any) -> Any:
    """The SDK's. REQUESTS_CA_BUNDLE, which is about the web, would outvote the daemon's own CA in it."""
    from docker.tls import TLSConfig

    class Config(TLSConfig):
        def configure_client(self, client: Any) -> None:
            super().configure_client(client)
            client.trust_env = False

    return Config(**files)


class Daemon:
    """One daemon as the SDK sees it. The client is made on first use: making it asks the daemon for its API version.

    Args:
        host: Where it is.
        timeout_s: For one request, in seconds.
    """

    def __init__(self, host: DockerHost, timeout_s: float) -> None:
        self.host = host
        self._timeout = timeout_s
        self._threads = CountedThreads(CONCURRENCY)
        self._lock = threading.Lock()
        self._api: Any = None

    async def call(
        self, what: str, fn: Callable[[Any], T], *, ref: SandboxRef | None = None, started: bool = False
    ) -> T:
        """``fn(client)`` in a counted thread.

        Raises:
            OpenEnvError: What `translate` makes of the SDK's error.
        """
        try:
            return await self._threads.run(lambda: fn(self.client()))
        except Exception as error:
            raise translate(error, what=what, ref=ref, started=started) from error

    def client(self) -> Any:
        """The SDK's low-level client; blocks."""
        with self._lock:
            if self._api is None:
                self._api = self._make()
            return self._api

    def close(self) -> None:
        """Close its connections."""
        with self._lock:
            api, self._api = self._api, None
        if api is not None:
            api.close()

    def _make(self) -> Any:
        import docker

        host, tls = _dockerssh.reached(self.host), None
        state, reason = _dockerhost.probe(host, timeout=10.0)
        if state != "ready":
            raise ProviderUnavailable(
                f"the docker daemon cannot be reached: {reason} ({host.source})",
                provider="docker",
                retryable=state != "permission",
                hint=REMEDY[state],
            )
        if host.tls is not None:
            _dockerhost.tls_context(host)  # says which file is missing or malformed
            files = {name: f"{host.tls}/{name}.pem" for name in ("cert", "key", "ca")}
            there = {name: path for name, path in files.items() if os.path.isfile(path)}
            cert = (files["cert"], files["key"]) if "cert" in there else None
            tls = _tls_config(client_cert=cert, ca_cert=there.get("ca"), verify=host.verify)
        return docker.APIClient(
            base_url=host.url, version="auto", timeout=int(self._timeout), tls=tls or False, max_pool_size=CONCURRENCY
        )
