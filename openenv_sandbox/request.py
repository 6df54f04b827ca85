"""From arguments and configuration to one complete request: which backend, which image, which spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox import fetching
from openenv_sandbox.errors import ConfigError
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.provider import SandboxProvider

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from openenv_sandbox.config import Settings
    from openenv_sandbox.events import Event
    from openenv_sandbox.provider import Image
    from openenv_sandbox.spec import SandboxSpec

Which = str | type[SandboxProvider] | SandboxProvider


@dataclass
class Request:
    """What `openenv_sandbox.launch` and its kin were called with."""

    image: str | os.PathLike[str] | Image | None
    client: type[Any] | None = None
    provider: Which | None = None
    options: Any = None
    profile: str | None = None
    on_event: Callable[[Event], object] | None = None
    journal: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Resolved:
    """The same, complete: what configuration says included."""

    which: Which
    options: Any
    image: Image
    spec: SandboxSpec
    settings: Settings
    journal: Any


async def resolve(request: Request) -> Resolved:
    """Complete a request. Files are read in a thread.

    Raises:
        ConfigError: A setting or argument is unknown, malformed or contradictory.
        ImageError: The image cannot be understood, or none is named and the client knows none.
        UnknownProvider: No such backend.
        TrustError: A project file sets what only the user may, or the image is remote code without ``trust``.
    """
    return await daemon_call(_resolve, request)


def _resolve(request: Request) -> Resolved:
    which, options, settings = choose(request.provider, request.options, request.profile)
    image = _image(request, settings)
    spec = _spec(request, settings, image)
    if image.source.startswith(fetching.SCHEMES) and not spec.trust:  # one that a caller took apart by itself
        raise fetching.untrusted(image.source)
    options = _with_provider_options(options, spec.provider_options, request.options)
    return Resolved(which, options, image, spec, settings, request.journal or settings.journal)


def _with_provider_options(options: Any, more: Mapping[str, Any], given: Any) -> Any:
    """``spec.provider_options`` over what is configured; the argument ``options`` over both."""
    if not more:
        return options
    if given is None or isinstance(given, Mapping):
        return {**(options or {}), **more, **(given or {})}
    return {**more, **given.model_dump(exclude_unset=True)}


def choose(provider: Which | None, options: Any, profile: str | None) -> tuple[Which, Any, Settings]:
    """The backend, its options, and the settings they come from."""
    from openenv_sandbox import config, registry

    if isinstance(provider, str) or provider is None:
        settings = config.load(profile=profile, arguments={"provider": provider})
        cls = registry.get(settings.provider)
        configured = settings.options_for(cls.name)
        which: Which = cls.name
    else:
        settings = config.load(profile=profile)
        which, cls = provider, provider if isinstance(provider, type) else type(provider)
        known = isinstance(provider, type) and any(entry.cls is cls for entry in registry.entries())
        configured = settings.options_for(cls.name) if known else {}
    if options is not None and not isinstance(options, Mapping):
        return which, options, settings
    merged = {**configured, **(options or {})}
    return which, merged or None, settings


def _image(request: Request, settings: Settings) -> Image:
    from openenv_sandbox import image as images
    from openenv_sandbox.provider import Image

    named = request.image
    if named is None:
        if request.client is None:
            raise ConfigError("no image is named", hint='say which one: launch("./envs/echo_env")')
        return images.for_client(request.client)
    trust = request.fields.get("trust")
    trust = settings.spec_defaults.get("trust", False) if trust is None else trust
    return named if isinstance(named, Image) else images.parse(named, trust=trust is True)


def _spec(request: Request, settings: Settings, image: Image) -> SandboxSpec:
    from pydantic import ValidationError

    from openenv_sandbox.options import explain, near
    from openenv_sandbox.spec import RESERVED_LABEL_PREFIX, SandboxSpec

    for name in request.fields:
        if name not in SandboxSpec.model_fields or name == "image":
            raise ConfigError(f"launch has no argument {name!r}{near(name, list(SandboxSpec.model_fields))}")
    # None is an answer where the field takes it, and inside a table; as an argument it else means not given.
    nullable = {name for name, info in SandboxSpec.model_fields.items() if info.default is None}
    said = {name: value for name, value in request.fields.items() if value is not None or name in nullable}
    merged = _merge(_plain(settings.spec_defaults), _plain(said))
    if "port" not in merged and image.config is not None and image.config.ports:
        merged["port"] = 8000 if 8000 in image.config.ports else image.config.ports[0]
    try:
        spec = SandboxSpec.model_validate({**merged, "image": image.source or image.name})
    except ValidationError as error:
        raise ConfigError(explain("launch", error)) from None
    reserved = [name for name in spec.labels if name.startswith(RESERVED_LABEL_PREFIX)]
    if reserved:
        raise ConfigError(f"labels beginning with {RESERVED_LABEL_PREFIX!r} are ours: {', '.join(reserved)}")
    return spec


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_unset=True)
    return value


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
