"""Who starts the server, with what of the image: the backend at create, or core by a command afterwards."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from openenv_sandbox._shell_script import AS_USER
from openenv_sandbox.capabilities import IMAGE_PARTS
from openenv_sandbox.errors import ImageError
from openenv_sandbox.provider import ImageConfig

if TYPE_CHECKING:
    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import Exit, Image, Prepared, Sandbox, SandboxRef
    from openenv_sandbox.spec import SandboxSpec

TOKEN = "OPENENV_AUTH_TOKEN"
"""The variable by which the server learns what it wants to see."""

_log = logging.getLogger("openenv.launch")


async def config_for(
    spec: SandboxSpec, image: Image, prepared: Prepared, caps: Capabilities, *, serve: bool
) -> ImageConfig | None:
    """How the image wants to be started, asked of others only where this backend leaves something of it to us.

    Args:
        spec: What was asked for.
        image: What the user named.
        prepared: What the backend boots.
        caps: What the backend does by itself.
        serve: A server is wanted for certain; else a sandbox without one is said aloud and made.

    Raises:
        ImageError: It is needed and cannot be found out; the hint names ``command=``.
    """
    from openenv_sandbox import image as images

    found = prepared.image or image.config
    ours = caps.start == "exec" or (caps.start == "command" and not caps.runs_image)
    if not ours and caps.image_parts == IMAGE_PARTS:
        return found
    wanted = ours and spec.command is None
    if prepared.image is None or prepared.image == image.config:
        try:
            found = await images.resolve_config(image, base=True, auth=spec.registry_auth) or found
        except ImageError as error:
            if wanted and serve:
                raise
            _log.warning("%s; its ENV, USER and WORKDIR are not known here", error.message)
    if wanted and (found is None or not found.argv):
        text = f"nothing says what {image.source or image.name} runs, and this backend does not run it by itself"
        hint = "say what to run: command=['python', '-m', '…']"
        if serve:
            raise ImageError(text, hint=hint)
        _log.warning("%s: no server is started; %s", text, hint)
    return found


def command_for(spec: SandboxSpec, config: ImageConfig | None, caps: Capabilities) -> tuple[str, ...] | None:
    """The argv that is started; None where the image's own runs by itself."""
    if spec.command is not None:
        return spec.command
    if caps.start == "image" or (caps.start == "command" and caps.runs_image):
        return None
    return config.argv if config is not None and config.argv else None


def supplied(spec: SandboxSpec, config: ImageConfig | None, caps: Capabilities) -> ImageConfig:
    """What the backend drops of the image's ENV, USER and WORKDIR (the spec's instead, where given), and core adds."""
    config, lost = config or ImageConfig(), IMAGE_PARTS - caps.image_parts
    return ImageConfig(
        env={name: value for name, value in config.env.items() if name not in spec.env} if "env" in lost else {},
        user=(spec.user or config.user) if "user" in lost else None,
        workdir=(spec.workdir or config.workdir) if "workdir" in lost else None,
    )


def at_create(
    full: SandboxSpec,
    added: ImageConfig,
    command: tuple[str, ...] | None,
    config: ImageConfig | None,
    caps: Capabilities,
) -> SandboxSpec:
    """The spec that create gets: with the command, and with what the backend would drop of the image."""
    if caps.start == "exec":
        return full.model_copy(update={"command": None})
    user = added.user or full.user
    if added.user is not None and not caps.user:
        argv = command or (config.argv if config is not None else ())
        command, user = (("/bin/sh", "-c", AS_USER, "oe", added.user, *argv) if argv else None), None
    update = {
        "command": command,
        "env": {**added.env, **full.env},
        "user": user,
        "workdir": added.workdir or full.workdir,
    }
    return full.model_copy(update=update)


class CreatedServer:
    """The server that the backend started with the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def ref(self) -> SandboxRef:
        """Its sandbox."""
        return self._sandbox.ref

    async def wait_exit(self) -> Exit:
        """Return when it has ended."""
        return await self._sandbox.wait_exit()

    async def first_output(self) -> None:
        """Return when it has written something."""
        await self._sandbox.first_output()

    async def logs(self, *, tail: int | None = None) -> bytes:
        """What it wrote so far; with ``tail`` its last lines.

        Raises:
            CapabilityError: Not offered.
        """
        return await self._sandbox.logs(tail=tail)

    def stop(self) -> None:
        """Nothing is held."""
