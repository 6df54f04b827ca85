"""Sandboxes of Modal, as older code starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from openenv_adapters.containers._cloud import CloudContainer, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.request import Which


class ModalProvider(CloudContainer):
    """The backend ``modal``.

    Args:
        image: A ref, a folder, or ``template:ID``; None where `start_container` names it.
        env_vars: Environment of the server.
        app_name: App that holds the sandboxes; made when missing.
        use_sandbox_v2: Which generation of sandboxes is used is the backend's choice: the newer, except with a GPU.
        timeout: How long the sandbox is used at most, in seconds; starting and grading come on top.
        cmd: Replaces the image's command.
        cpu: Cores.
        memory: MiB.
        surface_server_logs: Only the default.

    Raises:
        CapabilityError: An argument cannot be honoured; the hint names what to use.
    """

    backend: ClassVar[Which] = "modal"

    def __init__(
        self,
        *,
        image: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        app_name: str = "openenv",
        use_sandbox_v2: bool = False,
        timeout: int = 300,
        cmd: str | None = None,
        cpu: float | None = None,
        memory: int | None = None,
        surface_server_logs: bool = False,
    ) -> None:
        if surface_server_logs:
            raise refuse("ModalProvider", "surface_server_logs", "`.sandbox.logs()` gives them")
        super().__init__(
            image,
            {"app": app_name},
            env=env_vars,
            command=cmd,
            resources={name: value for name, value in (("cpus", cpu), ("memory_mb", memory)) if value is not None},
            timeouts={"episode": float(timeout)},
        )
