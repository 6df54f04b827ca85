"""Sandboxes of Novita, as older code starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from openenv_adapters.containers._cloud import CloudContainer, own_key, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.request import Which

_BUILT_IN = ("template:", "snapshot:")


class NovitaSandboxProvider(CloudContainer):
    """The backend ``novita``.

    Args:
        image: A ref, a folder, or ``template:ID``; None where `start_container` names it.
        env_vars: Environment of the server.
        api_key: That of NOVITA_API_KEY, or None.
        domain: Of the service.
        timeout: How long the sandbox is used at most, in seconds; starting and grading come on top.
        metadata: Labels of the sandbox.
        secure: Not False: the daemon inside always wants its token.
        cmd: Replaces the image's command.
        working_directory: Instead of the image's.
        surface_server_logs: Only the default.
        cpu_count: Cores; a template has its own.
        memory_mb: MiB; a template has its own.
        template_name: Only the default: a template's name says its content.
        on_build_logs: Told each line of the image's build.

    Raises:
        CapabilityError: An argument cannot be honoured; the hint names what to use.
    """

    backend: ClassVar[Which] = "novita"

    def __init__(
        self,
        *,
        image: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        api_key: str | None = None,
        domain: str | None = None,
        timeout: int = 3600,
        metadata: Mapping[str, str] | None = None,
        secure: bool | None = None,
        cmd: str | None = None,
        working_directory: str | None = None,
        surface_server_logs: bool = False,
        cpu_count: int = 2,
        memory_mb: int = 1024,
        template_name: str | None = None,
        on_build_logs: Callable[[Any], object] | None = None,
    ) -> None:
        owner = "NovitaSandboxProvider"
        own_key(owner, api_key, "NOVITA_API_KEY")
        if secure is False:
            raise refuse(owner, "secure=False", "leave it out: the token of the daemon inside is handled for you")
        if surface_server_logs:
            raise refuse(owner, "surface_server_logs", "the last lines are in the error when the server ends")
        if template_name is not None:
            raise refuse(owner, "template_name", 'image="template:NAME" uses one that exists')
        super().__init__(
            image,
            {"domain": domain},
            on_build_logs,
            env=env_vars,
            labels=metadata,
            command=cmd,
            workdir=working_directory,
            timeouts={"episode": float(timeout)},
        )
        self._sizes = {"cpus": float(cpu_count), "memory_mb": memory_mb}
        self._sizes_are_said = (cpu_count, memory_mb) != (2, 1024)

    def start_container(
        self,
        image: str | None = None,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """As `CloudContainer.start_container`; the sizes go to what is built, and to a template only if they were said.

        Raises:
            OpenEnvError: What `CloudContainer.start_container` raises.
        """
        if self._sizes_are_said or not (image or self._image or "").startswith(_BUILT_IN):
            kwargs.setdefault("resources", self._sizes)
        return super().start_container(image, port, env_vars, **kwargs)
