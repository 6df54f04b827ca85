"""Logins of image registries: the user's configuration, else what the docker command line knows. Blocking."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from openenv_sandbox.errors import ConfigError
from openenv_sandbox.spec import RegistryAuth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.config import Settings
    from openenv_sandbox.provider import Image
    from openenv_sandbox.spec import SandboxSpec

HELPER_S = 15.0
"""How long a credential helper may take, in seconds."""
HUB = "docker.io"
_HUB_NAMES = ("registry-1.docker.io", "index.docker.io", "docker.io")
_HELPER = re.compile(r"[A-Za-z0-9._-]+\Z")


def host_of(ref: str) -> str:
    """The registry of a ref, as logins name it."""
    from openenv_sandbox._remote_config import split

    host = split(ref)[0]
    return HUB if host in _HUB_NAMES else host


def login_for(host: str, settings: Settings | None = None) -> RegistryAuth | None:
    """The login for a registry; None where nothing has one.

    Args:
        host: As `host_of` says it.
        settings: The configuration; None reads it.

    Raises:
        ConfigError: A configuration is malformed, or the credential helper that it names fails.
    """
    if settings is None:
        from openenv_sandbox import config

        settings = config.load()
    configured = settings.registry_logins.get(host)
    return configured if configured is not None else _of_docker(host)


def logins_for(refs: Iterable[str]) -> dict[str, dict[str, str]]:
    """What the daemon wants to see for base images: the registry, as it names it, to username and password.

    Raises:
        ConfigError: As `login_for`.
    """
    found = {}
    for host in {host_of(ref) for ref in refs if ref != "scratch" and "$" not in ref}:
        if (login := login_for(host)) is not None:
            name = "https://index.docker.io/v1/" if host == HUB else host
            found[name] = {"username": login.username, "password": login.password.get_secret_value()}
    return found


def with_login(spec: SandboxSpec, image: Image, caps: Capabilities, settings: Settings) -> SandboxSpec:
    """The spec with the login of its image's registry, where the backend takes one and it can be found.

    Raises:
        ConfigError: As `login_for`.
    """
    host = _host(image) if caps.private_images and spec.registry_auth is None else None
    if host is None:
        return spec
    # What drives the local daemon leaves the docker command line's logins to the daemon's own client.
    login = settings.registry_logins.get(host) if caps.local_images else login_for(host, settings)
    return spec.model_copy(update={"registry_auth": login})


def _host(image: Image) -> str | None:
    if image.kind == "ref":
        return host_of(image.name) if not image.name.startswith("sha256:") else None
    if image.kind != "folder" or image.dockerfile is None:
        return None
    from openenv_sandbox import dockerfile
    from openenv_sandbox.build import configured_base
    from openenv_sandbox.image import read_dockerfile

    base = configured_base() or dockerfile.outside_base(read_dockerfile(Path(image.dockerfile)))
    return host_of(base) if base else None


def _of_docker(host: str) -> RegistryAuth | None:
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    names = [host, f"https://{host}", f"https://{host}/v1/", f"https://{host}/v2/"]
    if host == HUB:
        names = ["https://index.docker.io/v1/", *_HUB_NAMES, *names]
    helpers = data.get("credHelpers") or {}
    for name in names:
        if helpers.get(name):
            return _of_helper(str(helpers[name]), name)
    auths = data.get("auths") or {}
    entry = next((auths[name] for name in names if name in auths), None)
    if entry is not None and (found := _of_entry(entry)) is not None:
        return found
    if data.get("credsStore") and entry is not None:
        return _of_helper(str(data["credsStore"]), next(name for name in names if name in auths))
    return None


def _of_entry(entry: Mapping[str, Any]) -> RegistryAuth | None:
    user, password = entry.get("username"), entry.get("password")
    if entry.get("auth"):
        try:
            user, _, password = base64.b64decode(entry["auth"]).decode().rstrip("\0").partition(":")
        except (binascii.Error, ValueError):
            return None
    return RegistryAuth(username=user, password=SecretStr(password)) if user and password else None


def _of_helper(name: str, server: str) -> RegistryAuth | None:
    program = shutil.which(f"docker-credential-{name}") if _HELPER.match(name) else None
    if program is None:
        raise ConfigError(
            f"the docker configuration keeps the login of {server} in docker-credential-{name}, which is not on PATH",
            hint="install it, or write the login under [image.registries] of your own openenv.toml",
        )
    try:
        done = subprocess.run([program, "get"], input=server, capture_output=True, text=True, timeout=HELPER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{program} did not answer: {type(error).__name__}") from None
    if done.returncode != 0:
        if "not found" in done.stdout:
            return None
        raise ConfigError(f"{program} has no login for {server}: exit code {done.returncode}")
    try:
        said = json.loads(done.stdout)
        user, secret = said["Username"], said["Secret"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{program} answered something that is no login") from None
    # Other tokens than passwords have this name; only the registry's own command line can use them.
    return RegistryAuth(username=user, password=SecretStr(secret)) if user and secret and user != "<token>" else None
