"""The config of a registry ref without pulling it: the local daemon's answer, else the registry's config blob."""

from __future__ import annotations

import asyncio
import base64
import importlib
import platform
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_sandbox.errors import ConfigError, ImageError
from openenv_sandbox.lifecycle import daemon_call, keep
from openenv_sandbox.provider import ImageConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from openenv_sandbox.spec import RegistryAuth

KEPT_S = 60.0
"""How long a registry's answer is taken for the present one, in seconds."""
_known: dict[str, tuple[float, Mapping[str, Any]]] = {}
_asked: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Mapping[str, Any]]] = {}
_INDEX = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFEST = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


def from_oci(raw: Mapping[str, Any]) -> ImageConfig:
    """The ``config`` object of an OCI or docker image as ours."""
    env = dict(item.partition("=")[::2] for item in raw.get("Env") or ())
    ports = (key.partition("/") for key in raw.get("ExposedPorts") or ())
    return ImageConfig(
        entrypoint=tuple(raw.get("Entrypoint") or ()),
        cmd=tuple(raw.get("Cmd") or ()),
        env=env,
        user=raw.get("User") or None,
        workdir=raw.get("WorkingDir") or None,
        ports=tuple(sorted(int(number) for number, _, kind in ports if kind in ("", "tcp") and number.isdigit())),
    )


async def resolve(ref: str, *, timeout: float, hint: str, auth: RegistryAuth | None = None) -> ImageConfig:
    """Ask the daemon, then the registry, which may want a login.

    Raises:
        ImageError: Neither answered; says what each said.
    """
    import anyio

    await asyncio.to_thread(importlib.import_module, "httpx")  # it reads much of the disk
    said: list[str] = []
    try:
        with anyio.fail_after(timeout):
            for name, ask in (("docker", _from_daemon), ("registry", partial(_remembered, auth=auth))):
                try:
                    return from_oci(await ask(ref))
                except _NoAnswer as error:
                    said.append(f"{name}: {error}")
    except TimeoutError:
        said.append(f"no answer within {timeout:g} s")
    raise ImageError(f"how {ref} wants to be started is unknown ({'; '.join(said)})", hint=hint)


class _NoAnswer(Exception):
    pass


async def local_only(ref: str) -> bool:
    """Whether the local daemon has an image of this name that it has neither pulled nor pushed.

    A daemon that keeps images in containerd knows a digest of everything; there it is never certain.
    """
    try:
        found = await _inspected(ref)
    except _NoAnswer:
        return False
    return ref.startswith("sha256:") or not found.get("RepoDigests")


async def exists(ref: str, *, auth: RegistryAuth | None) -> bool:
    """Whether the registry certainly has ``ref`` now."""
    try:
        await asyncio.wait_for(_from_registry(ref, auth), 20.0)
    except (_NoAnswer, asyncio.TimeoutError):
        return False
    return True


async def _from_daemon(ref: str) -> Mapping[str, Any]:
    config = (await _inspected(ref)).get("Config")
    return config if isinstance(config, dict) else {}


async def _inspected(ref: str) -> Mapping[str, Any]:
    import httpx

    from openenv_sandbox import _dockerhost

    try:
        host = await asyncio.to_thread(_dockerhost.resolve)
    except ConfigError as error:
        raise _NoAnswer(error.message) from None
    if host.socket_path is None:
        raise _NoAnswer(f"{host.url.split('://')[0]} daemons are not asked")
    # No TLS on a socket file; building the context for it would cost tens of milliseconds.
    transport = httpx.AsyncHTTPTransport(uds=host.socket_path, verify=False)
    try:
        async with httpx.AsyncClient(transport=transport, timeout=10.0, trust_env=False) as client:
            reply = await client.get(f"http://docker/images/{ref}/json")
    except httpx.HTTPError as error:
        raise _NoAnswer(f"{type(error).__name__} at {host.socket_path}") from None
    if reply.status_code != 200:
        raise _NoAnswer("not there" if reply.status_code == 404 else f"status {reply.status_code}")
    found = reply.json()
    return found if isinstance(found, dict) else {}


def split(ref: str) -> tuple[str, str, str]:
    """Registry address, repository, and tag or digest of a ref."""
    name, _, digest = ref.partition("@")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, path = first, rest
    else:
        host, path = "registry-1.docker.io", name if slash else f"library/{name}"
    if host in ("docker.io", "index.docker.io"):
        host, path = "registry-1.docker.io", path if "/" in path else f"library/{path}"
    path, _, tag = path.partition(":")
    return host, path, digest or tag or "latest"


async def _remembered(ref: str, *, auth: RegistryAuth | None) -> Mapping[str, Any]:
    """The registry's answer, asked for once by launches that want it at the same time, and kept for a minute."""
    found = _known.get(ref)
    if found is not None and time.monotonic() - found[0] < KEPT_S:
        return found[1]
    key = (asyncio.get_running_loop(), ref)
    task = _asked.get(key)
    if task is None:
        task = _asked[key] = keep(_from_registry(ref, auth), name="openenv-image-config")
        task.add_done_callback(lambda _: _asked.pop(key, None))
    answer = await asyncio.shield(task)
    _known[ref] = (time.monotonic(), answer)
    return answer


async def _from_registry(ref: str, auth: RegistryAuth | None) -> Mapping[str, Any]:
    import httpx

    host, path, reference = split(ref)
    loopback = host.split(":")[0] in ("localhost", "127.0.0.1")
    base = f"{'http' if loopback else 'https'}://{host}/v2/{path}"
    try:
        async with httpx.AsyncClient(timeout=10.0, follow_redirects=True) as client:
            asking = _Asking(client, ref, auth)
            found = await asking.get(f"{base}/manifests/{reference}", ", ".join((*_INDEX, *_MANIFEST)))
            if "manifests" in found:
                digest = _platform(found["manifests"])
                found = await asking.get(f"{base}/manifests/{digest}", ", ".join(_MANIFEST))
            blob = await asking.get(f"{base}/blobs/{found['config']['digest']}", "*/*")
    except httpx.HTTPError as error:
        raise _NoAnswer(f"{host} cannot be reached ({type(error).__name__})") from None
    except (KeyError, TypeError, ValueError):
        raise _NoAnswer(f"{host} answered something that is no image manifest") from None
    config = blob.get("config")
    return config if isinstance(config, dict) else {}


class _Asking:
    """Requests for one repository, with what its registry wants to see: nothing, a token, or the login itself."""

    def __init__(self, client: httpx.AsyncClient, ref: str, auth: RegistryAuth | None) -> None:
        self._client, self._ref, self._auth = client, ref, auth
        self._header: dict[str, str] = {}

    async def get(self, url: str, accept: str) -> dict[str, Any]:
        reply = await self._client.get(url, headers={"accept": accept, **self._header})
        if reply.status_code == 401 and not self._header:
            self._header = {"authorization": await self._answer(reply)}
            reply = await self._client.get(url, headers={"accept": accept, **self._header})
        if reply.status_code != 200:
            said = {401: "refuses the login", 403: "refused", 404: "not there"}
            raise _NoAnswer(said.get(reply.status_code, f"status {reply.status_code}"))
        value = reply.json()
        if not isinstance(value, dict):
            raise ValueError("not an object")
        return value

    async def _answer(self, reply: httpx.Response) -> str:
        challenge = reply.headers.get("www-authenticate", "")
        login = await self._login()
        if challenge.lower().startswith("basic"):
            if login is None:
                raise _NoAnswer("wants a login")
            return "Basic " + base64.b64encode(":".join(login).encode()).decode()
        fields = dict(_CHALLENGE.findall(challenge))
        realm = fields.get("realm", "")
        # A token server elsewhere is usual; one without TLS may only be the registry of this machine itself.
        if not challenge.lower().startswith("bearer") or not (realm.startswith("https://") or _here(realm, reply)):
            raise _NoAnswer("wants a login of a kind that is not known")
        query = {name: fields[name] for name in ("service", "scope") if name in fields}
        answer = await self._client.get(realm, params=query, auth=login)
        body = answer.json() if answer.status_code == 200 else {}
        token = body.get("token") or body.get("access_token")
        if not isinstance(token, str):
            raise _NoAnswer("wants a login" if login is None else "refuses the login")
        return f"Bearer {token}"

    async def _login(self) -> tuple[str, str] | None:
        from openenv_sandbox import image_registries

        auth = self._auth
        if auth is None:
            try:
                auth = await daemon_call(image_registries.login_for, image_registries.host_of(self._ref))
            except ConfigError as error:
                raise _NoAnswer(error.message) from None
        return None if auth is None else (auth.username, auth.password.get_secret_value())


def _here(realm: str, reply: httpx.Response) -> bool:
    return urlsplit(realm).netloc == reply.request.url.netloc.decode() and reply.request.url.scheme == "http"


def _platform(manifests: list[dict[str, Any]]) -> str:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    linux = [m for m in manifests if (m.get("platform") or {}).get("os") == "linux"]
    fitting = [m for m in linux if m["platform"].get("architecture") == machine]
    chosen = (fitting or linux or manifests)[0]
    return str(chosen["digest"])
