"""What the classes of one cloud each have in common: an image that may be given early, and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_adapters.containers.providers import LaunchedContainer
from openenv_sandbox.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.events import Event
    from openenv_sandbox.request import Which


class CloudContainer(LaunchedContainer):
    """A container provider on the backend of one cloud.

    Args:
        image: Used where `start_container` is given none; a client that owns this object gives none.
        options: Options of the backend; those that are None are left to its configuration.
        on_log: Told each line of the image's build.
        fields: Fields of the spec for every start; those that are None are left out.
    """

    backend: ClassVar[Which]

    def __init__(
        self,
        image: str | None,
        options: Mapping[str, Any],
        on_log: Callable[[str], object] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(self.backend, options, **{name: value for name, value in fields.items() if value is not None})
        self._image = image
        if on_log is not None:
            self._on_event = _lines_to(on_log)

    def start_container(
        self,
        image: str | None = None,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a sandbox and wait until its server answers.

        Args:
            image: What `openenv_sandbox.launch` takes; None for that of the constructor.
            port: Where the server listens in the sandbox; None for the image's own.
            env_vars: Environment of the server, over that of the constructor.
            kwargs: Further fields of the spec, such as ``network`` or ``timeouts``.

        Returns:
            The server's address.

        Raises:
            ConfigError: No image is named.
            UsageError: One was started before and not stopped.
            OpenEnvError: What `openenv_sandbox.launch` raises.
        """
        named = image or self._image
        if named is None:
            raise ConfigError(f"{type(self).__name__} was given no image", hint="start_container('ghcr.io/me/env:1')")
        return super().start_container(named, port, env_vars, **kwargs)

    @staticmethod
    def image_from_dockerfile(dockerfile_path: str, context_dir: str | None = None) -> str:
        """The name of the image that a Dockerfile describes: the environment's folder, which the backend builds.

        Args:
            dockerfile_path: ``Dockerfile`` or ``server/Dockerfile`` of an environment's folder.
            context_dir: The folder, where it is not the one that this Dockerfile belongs to.

        Raises:
            ConfigError: The folder would be built from another Dockerfile, or there is none.
        """
        from openenv_sandbox import image as images

        path = Path(dockerfile_path).resolve()
        above = path.parent.parent if path.parent.name == "server" else path.parent
        folder = Path(context_dir).resolve() if context_dir is not None else above
        if images.find_dockerfile(folder) != path:
            raise ConfigError(
                f"{dockerfile_path} is not what the folder {folder} is built from",
                hint="a folder is built from its Dockerfile, else from its server/Dockerfile",
            )
        return str(folder)


def refuse(owner: str, field: str, hint: str) -> CapabilityError:
    """What is raised for an argument that cannot be honoured."""
    return CapabilityError(f"{owner} takes no {field}", field=field, hint=hint)


def own_key(owner: str, given: str | None, variable: str) -> None:
    """A key may be repeated as an argument; another than that of the environment is refused.

    Raises:
        CapabilityError: It is another.
    """
    if given is not None and given != os.environ.get(variable):
        raise refuse(owner, "api_key of its own", f"export {variable}=…, which the backend reads")


def _lines_to(on_log: Callable[[str], object]) -> Callable[[Event], object]:
    def on_event(event: Event) -> None:
        if event.stage == "building":
            on_log(event.message)

    return on_event
