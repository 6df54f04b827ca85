"""The config of a registry ref without pulling it: the local daemon's answer, else the registry's config blob."""

from __future__ import annotations

import asyncio
import platform
import re
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import ConfigError, ImageError
from openenv_sandbox.provider import ImageConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

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


async def resolve(ref: str, *, timeout: float, hint: str) -> ImageConfig:
    """Ask the daemon, then the registry.

    Raises:
        ImageError: Neither answered; says what each said.
    """
    import anyio

    said: list[str] = []
    try:
        with anyio.fail_after(timeout):
            for name, ask in (("docker", _from_daemon), ("registry", _from_registry)):
                try:
                    return from_oci(await ask(ref))
                except _NoAnswer as error:
                    said.append(f"{name}: {error}")
    except TimeoutError:
        said.append(f"no answer within {timeout:g} s")
    raise ImageError(f"how {ref} wants to be started is unknown ({'; '.join(said)})", hint=hint)


class _NoAnswer(Exception):
    pass


async def _from_daemon(ref: str) -> Mapping[str, Any]:
    import httpx

    from openenv_sandbox import _dockerhost

    try:
        host = await asyncio.to_thread(_dockerhost.resolve)
    except ConfigError as error:
        raise _NoAnswer(error.message) from None
    if host.socket_path is None:
        raise _NoAnswer(f"{host.url.split('://')[0]} daemons are not asked")
    transport = httpx.AsyncHTTPTransport(uds=host.socket_path)
    try:
        async with httpx.AsyncClient(transport=transport, timeout=10.0, trust_env=False) as client:
            reply = await client.get(f"http://docker/images/{ref}/json")
    except httpx.HTTPError as error:
        raise _NoAnswer(f"{type(error).__name__} at {host.socket_path}") from None
    if reply.status_code != 200:
        raise _NoAnswer("not there" if reply.status_code == 404 else f"status {reply.status_code}")
    config = reply.json().get("Config")
    return config if isinstance(config, dict) else {}


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


async def _from_registry(ref: str) -> Mapping[str, Any]:
    import httpx

    host, path, reference = split(ref)
    loopback = host.split(":")[0] in ("localhost", "127.0.0.1")
    base = f"{'http' if loopback else 'https'}://{host}/v2/{path}"
    try:
        async with httpx.AsyncClient(timeout=10.0, follow_redirects=True) as client:
            found = await _get(client, f"{base}/manifests/{reference}", {"accept": ", ".join((*_INDEX, *_MANIFEST))})
            if "manifests" in found:
                digest = _platform(found["manifests"])
                found = await _get(client, f"{base}/manifests/{digest}", {"accept": ", ".join(_MANIFEST)})
            blob = await _get(client, f"{base}/blobs/{found['config']['digest']}", {})
    except httpx.HTTPError as error:
        raise _NoAnswer(f"{host} cannot be reached ({type(error).__name__})") from None
    except (KeyError, TypeError, ValueError):
        raise _NoAnswer(f"{host} answered something that is no image manifest") from None
    config = blob.get("config")
    return config if isinstance(config, dict) else {}


async def _get(client: httpx.AsyncClient, url: str, headers: dict[str, str]) -> dict[str, Any]:
    reply = await client.get(url, headers=headers)
    if reply.status_code == 401:
        token = await _token(client, reply.headers.get("www-authenticate", ""))
        reply = await client.get(url, headers={**headers, "authorization": f"Bearer {token}"})
    if reply.status_code != 200:
        raise _NoAnswer({401: "wants a login", 403: "refused", 404: "not there"}.get(reply.status_code, str(reply)))
    value = reply.json()
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


async def _token(client: httpx.AsyncClient, challenge: str) -> str:
    fields = dict(_CHALLENGE.findall(challenge))
    if not challenge.lower().startswith("bearer") or not fields.get("realm", "").startswith("https://"):
        raise _NoAnswer("wants a login")
    query = {name: fields[name] for name in ("service", "scope") if name in fields}
    reply = await client.get(fields["realm"], params=query)
    body = reply.json() if reply.status_code == 200 else {}
    token = body.get("token") or body.get("access_token")
    if not isinstance(token, str):
        raise _NoAnswer("wants a login")
    return token


def _platform(manifests: list[dict[str, Any]]) -> str:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    linux = [m for m in manifests if (m.get("platform") or {}).get("os") == "linux"]
    fitting = [m for m in linux if m["platform"].get("architecture") == machine]
    chosen = (fitting or linux or manifests)[0]
    return str(chosen["digest"])
