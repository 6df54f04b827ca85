"""Images that only this machine has, for backends that take refs: built by the local daemon and pushed to a registry.

Where they go is ``[image] registry``. The tag is made from the content, so what is there already is not pushed again.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openenv_sandbox import _dockerhost, _remote_config, image_registries
from openenv_sandbox.errors import BuildError, CapabilityError
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.provider import Image

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox._engine import Engine
    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.config import Settings
    from openenv_sandbox.provider import ImageConfig, LogSink
    from openenv_sandbox.spec import RegistryAuth

SET_IT = "set [image] registry (OPENENV_IMAGE__REGISTRY=ghcr.io/you), and it is built and pushed there"
TAIL_LINES = 50


@dataclass(frozen=True)
class Push:
    """An image that must be pushed before the backend can boot it.

    Attributes:
        local: What the user named.
        registry: Host and path that it goes under.
        image: What the backend will be asked for; its tag is known when it is built.
        settings: For the registry's login.
    """

    local: Image
    registry: str
    image: Image
    settings: Settings

    async def run(self, labels: Mapping[str, str], *, on_log: LogSink) -> Image:
        """Build and push, unless the registry has it; the ref that the backend boots.

        Raises:
            BuildError: Building or pushing failed; with the end of the log.
            ConfigError: The registry's login cannot be read.
            ProviderUnavailable: The local daemon cannot be reached.
        """
        from openenv_sandbox._engine import Engine, EngineError

        host = await asyncio.to_thread(_dockerhost.resolve)
        tail: deque[str] = deque(maxlen=TAIL_LINES)

        def log(line: str) -> None:
            tail.append(line)
            on_log(line)

        async with Engine(host) as engine:
            name, tag, config = await self._here(engine, labels, log)
            remote = f"{self.image.name}:{tag}"
            login = await daemon_call(image_registries.login_for, image_registries.host_of(remote), self.settings)
            if await _remote_config.exists(remote, auth=login):
                log(f"{remote} is there already")
            else:
                log(f"pushing {remote}")
                try:
                    await _push(engine, name, self.image.name, tag, login, log)
                except EngineError as error:
                    raise BuildError(
                        f"{remote} could not be pushed: {error}",
                        log="\n".join(tail),
                        hint=f"docker login {image_registries.host_of(remote)}, or [image.registries] in your own file",
                    ) from None
        return Image("ref", remote, config=config, digest=tag, source=self.local.source or self.local.name)

    async def _here(self, engine: Engine, labels: Mapping[str, str], log: LogSink) -> tuple[str, str, ImageConfig]:
        """Name on the daemon, tag from the content, and start configuration."""
        if self.local.kind == "folder":
            from openenv_sandbox.build import build_folder

            built = await build_folder(self.local, host=engine.host, on_log=log, labels=labels)
            return built.tag, built.tag.rpartition(":")[2], built.config
        found = await engine.inspect(self.local.name)
        if found is None:
            raise BuildError(f"the docker daemon has no {self.local.name} any more")
        digest = str(found["Id"]).removeprefix("sha256:")[:16]
        return self.local.name, digest, _remote_config.from_oci(found.get("Config") or {})


async def needed(image: Image, caps: Capabilities, settings: Settings) -> Push | None:
    """How ``image`` comes to a backend that can only pull it; None where it needs no help, or none would do.

    Raises:
        CapabilityError: Only the local daemon has it, and no registry is configured.
    """
    if "ref" not in caps.images or image.kind not in ("folder", "ref"):
        return None
    if image.kind == "folder":
        if "folder" in caps.images or settings.image_registry is None:
            return None
    elif caps.local_images or not await _remote_config.local_only(image.name):
        return None
    elif settings.image_registry is None:
        raise CapabilityError(
            f"only the local docker daemon has {image.name}, and this backend pulls from registries",
            field="image",
            hint=SET_IT,
        )
    registry = settings.image_registry.rstrip("/")
    name = image.name if not image.name.startswith("sha256:") else "image"
    slug = re.sub(r"[^a-z0-9]+", "-", name.partition("@")[0].rpartition("/")[2].partition(":")[0].lower()).strip("-")
    shown = image.source or image.name
    seen = Image("ref", f"{registry}/{slug or 'env'}", digest=image.digest, source=shown)
    return Push(image, registry, seen, settings)


async def _push(engine: Engine, name: str, repository: str, tag: str, login: RegistryAuth | None, log: LogSink) -> None:
    await engine.tag(name, f"{repository}:{tag}")
    said: set[str] = set()
    auth = {} if login is None else {"username": login.username, "password": login.password.get_secret_value()}
    async for line in engine.push(repository, tag, auth):
        if line not in said:  # one line per layer and state, not one per progress bar
            said.add(line)
            log(line)
