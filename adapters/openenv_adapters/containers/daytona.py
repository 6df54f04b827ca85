"""Sandboxes of Daytona, as older code starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from openenv_adapters.containers._cloud import CloudContainer, own_key, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.request import Which


class DaytonaProvider(CloudContainer):
    """The backend ``daytona``.

    Args:
        image: A ref, a folder, or ``snapshot:NAME``; None where `start_container` names it.
        env_vars: Environment of the server.
        api_key: That of DAYTONA_API_KEY, or None.
        public: Accept that anyone who knows the address reaches the server; it stays private all the same.
        resources: The SDK's object, or anything with ``cpu``, ``memory`` and ``disk`` (GiB).
        auto_stop_interval: Only the default: a sandbox whose owner lives is kept, and ends with it.
        target: Region.
        on_snapshot_create_logs: Told each line of the image's build.
        cmd: Replaces the image's command.
        create_timeout: Longest time from the request to the sandbox, in seconds; building the image is apart.

    Raises:
        CapabilityError: An argument cannot be honoured; the hint names what to use.
    """

    backend: ClassVar[Which] = "daytona"

    def __init__(
        self,
        *,
        image: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        api_key: str | None = None,
        public: bool = False,
        resources: Any = None,
        auto_stop_interval: int = 15,
        target: str | None = None,
        on_snapshot_create_logs: Callable[[str], object] | None = None,
        cmd: str | None = None,
        create_timeout: float = 300,
    ) -> None:
        own_key("DaytonaProvider", api_key, "DAYTONA_API_KEY")
        if auto_stop_interval != 15:
            hint = 'start_container(…, timeouts={"idle": seconds}) lets an unused sandbox go'
            raise refuse("DaytonaProvider", "auto_stop_interval", hint)
        super().__init__(
            image,
            {"target": target},
            on_snapshot_create_logs,
            env=env_vars,
            exposure="public" if public else None,
            resources=_sizes(resources),
            command=cmd,
            timeouts={"create": create_timeout},
        )


def _sizes(wanted: Any) -> dict[str, Any] | None:
    if wanted is None:
        return None
    if getattr(wanted, "gpu", None):
        hint = 'start_container(…, resources={"gpus": "H100:1"})'
        raise refuse("DaytonaProvider", "gpu without its model", hint)
    sizes = {"cpus": getattr(wanted, "cpu", None)}
    for name in ("memory", "disk"):
        gib = getattr(wanted, name, None)
        sizes[f"{name}_mb"] = gib * 1024 if gib else None
    return {name: value for name, value in sizes.items() if value}
