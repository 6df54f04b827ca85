"""Images on a docker daemon: pulled, built from folders, kept as snapshots, removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_providers._docker_commit import SNAPSHOT
from openenv_providers._docker_daemon import translate
from openenv_sandbox import build as building
from openenv_sandbox import image_registries
from openenv_sandbox._remote_config import from_oci
from openenv_sandbox.errors import ImageError
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.provider import Prepared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openenv_providers._docker_daemon import Daemon
    from openenv_sandbox._dockerhost import DockerHost
    from openenv_sandbox.provider import Image, LogSink
    from openenv_sandbox.spec import RegistryAuth, SandboxSpec

_ALSO_RUNS = {"amd64": ("386",), "arm64": ("arm",)}


async def build(host: DockerHost, image: Image, on_log: LogSink, keep: bool, labels: Mapping[str, str]) -> Prepared:
    """Build a folder. Raises what `openenv_sandbox.build.build_folder` raises."""
    built = await building.build_folder(image, host=host, on_log=on_log, keep_openenv=keep, labels=labels)
    return Prepared(built.tag, built.config, built.id, owned=True)


async def ensure(
    daemon: Daemon, image: Image, on_log: LogSink, spec: SandboxSpec, *, emulation: bool = False
) -> Prepared:
    """The image as the daemon has it, pulled when it lacks it or ``spec.pull`` asks for it.

    Raises:
        ImageError: Neither the daemon nor the registry has it, or the registry cannot be reached; says which. Or it is
            of another architecture than the daemon's machine.
    """
    found = None if spec.pull == "always" and image.kind == "ref" else await _inspect(daemon, image.name)
    if found is None:
        if image.kind == "snapshot":
            raise ImageError(f"this daemon has no snapshot {image.name}", provider="docker")
        await _pull(daemon, image.name, on_log, spec.registry_auth)
        found = await _inspect(daemon, image.name)
    if found is None:
        raise ImageError(f"the daemon pulled {image.name} and does not have it", provider="docker")
    await _runs_here(daemon, image.name, str(found.get("Architecture") or ""), on_log, emulation)
    return Prepared(image.name, from_oci(found.get("Config") or {}), str(found["Id"]))


async def _runs_here(daemon: Daemon, name: str, architecture: str, on_log: LogSink, emulation: bool) -> None:
    """Refuse what would die at once with "exec format error", unless the daemon's machine emulates it."""
    machine, system = await daemon.call(
        "asking for the machine", lambda api: (api.version()["Arch"], api.info()["OperatingSystem"])
    )
    if architecture in ("", machine, *_ALSO_RUNS.get(machine, ())):
        return
    said = f"{name} is an image for {architecture}, and the daemon's machine is {machine}"
    if not emulation and system != "Docker Desktop":
        raise ImageError(
            said,
            provider="docker",
            hint=f"build or pull it for {machine}; or, where the daemon's machine emulates {architecture} "
            "(qemu-user-static), the option emulation=True",
        )
    on_log(f"{said}: it runs emulated, which is slow")


async def _inspect(daemon: Daemon, name: str) -> Mapping[str, Any] | None:
    def look(api: Any) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = api.inspect_image(name)
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", None) == 404:
                return None
            raise
        return found

    return await daemon.call(f"looking for {name}", look)


async def _pull(daemon: Daemon, name: str, on_log: LogSink, login: RegistryAuth | None) -> None:
    """Progress arrives in a thread of its own, for as long as it takes; ``on_log`` is called on the loop."""
    import asyncio

    loop = asyncio.get_running_loop()
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] and "@" not in name else (name, "", "")
    if "@" in name:
        repository, _, tag = name.partition("@")
    said: set[str] = set()
    login = login or await daemon_call(image_registries.login_for, image_registries.host_of(name))
    given = {}
    if login is not None:  # else the SDK may know a token, which is no password
        given["auth_config"] = {"username": login.username, "password": login.password.get_secret_value()}

    def pull() -> str | None:
        for item in daemon.client().pull(repository, tag=tag or "latest", stream=True, decode=True, **given):
            if "error" in item:
                return str(item["error"])
            line = " ".join(str(item[part]) for part in ("id", "status") if item.get(part))
            if line and line not in said:  # one line per layer and state, not one per progress bar
                said.add(line)
                loop.call_soon_threadsafe(on_log, line)
        return None

    on_log(f"pulling {name}")
    what = f"pulling {name}"
    try:
        refused = await daemon_call(pull)
    except Exception as error:
        raise translate(error, what=what) from error
    if refused is not None:
        raise translate(_Said(refused), what=what)


class _Said(Exception):
    """An error that came inside a stream whose own status was 200."""

    status = 500


async def ours(daemon: Daemon) -> Sequence[Prepared]:
    """Every image that a build or a snapshot made."""

    def look(api: Any) -> list[Mapping[str, Any]]:
        rows: dict[str, Mapping[str, Any]] = {}
        for label in (building.LABEL, SNAPSHOT):
            rows.update((row["Id"], row) for row in api.images(filters={"label": label}))
        return list(rows.values())

    rows = await daemon.call("listing images", look)
    return [
        Prepared(
            str(row["Id"]) if name == "<none>:<none>" else name,
            digest=str(row["Id"]),
            owned=True,
            labels=dict(row.get("Labels") or {}),
            created_at=float(row["Created"]) if row.get("Created") else None,
        )
        for row in rows
        for name in _own_names(row)
    ]


def _own_names(row: Mapping[str, Any]) -> list[str]:
    """Names that were given here, and copies of them for a registry; a name that the user gave is the user's."""
    names = [str(name) for name in row.get("RepoTags") or ()]
    tags = {name.rpartition(":")[2] for name in names if name.startswith("openenv/")}
    return [name for name in names if name.rpartition(":")[2] in tags or name == "<none>:<none>"] or (
        [] if names else [str(row["Id"])]
    )


async def remove(daemon: Daemon, name: str) -> None:
    """Remove one image; that it is not there is fine."""

    def gone(api: Any) -> None:
        try:
            api.remove_image(name)
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", None) != 404:
                raise

    await daemon.call(f"removing the image {name}", gone)
