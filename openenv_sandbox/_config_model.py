"""Shape of configuration files, and of the spec's defaults in them. Loads pydantic, so it is imported when needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from openenv_sandbox.errors import ConfigError
from openenv_sandbox.options import explain, near
from openenv_sandbox.spec import RegistryAuth, SandboxSpec


class ImageSection(BaseModel):
    """``[image]``."""

    model_config = ConfigDict(extra="forbid")
    registry: str | None = None
    registries: dict[str, RegistryAuth] = {}


class BuildSection(BaseModel):
    """``[build]``."""

    model_config = ConfigDict(extra="forbid")
    base_image: str | None = None


class Profile(BaseModel):
    """``[profiles.NAME]``."""

    model_config = ConfigDict(extra="forbid")
    provider: str | None = None
    journal: str | None = None
    image: ImageSection = ImageSection()
    build: BuildSection = BuildSection()
    spec: dict[str, Any] = {}
    providers: dict[str, dict[str, Any]] = {}


class File(Profile):
    """A whole file."""

    profile: str | None = None
    profiles: dict[str, Profile] = {}


def check_tables(data: Mapping[str, Any], place: str, providers: list[str]) -> None:
    """Refuse keys that mean nothing, with the nearest that does.

    Raises:
        ConfigError: Says the file, the key and the nearest match.
    """
    _keys(data, File, place, "")
    profiles = data.get("profiles")
    for name, tables in profiles.items() if isinstance(profiles, Mapping) else ():
        if isinstance(tables, Mapping):
            _keys(tables, Profile, place, f"profiles.{name}.")
    try:
        checked = File.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError(explain(place, error)) from None
    for prefix, profile in (("", checked), *((f"profiles.{n}.", p) for n, p in checked.profiles.items())):
        for name in profile.providers:
            if name not in providers:
                raise ConfigError(f"{place}: [{prefix}providers.{name}] is no backend{near(name, providers)}")


def check_spec(fields: Mapping[str, Any], places: Mapping[tuple[str, ...], str]) -> None:
    """Check the merged defaults of a spec, field by field: the spec itself still lacks its image.

    Raises:
        ConfigError: Says where the field stands.
    """
    for name, value in fields.items():
        place = ", ".join(sorted({text for names, text in places.items() if names[0] == name}))
        if name not in SandboxSpec.model_fields or name == "image":
            known = [field for field in SandboxSpec.model_fields if field not in ("image", "provider_options")]
            raise ConfigError(f"a spec has no default {name!r}{near(name, known)} ({place})")
        info = SandboxSpec.model_fields[name]
        model = info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel) and isinstance(value, Mapping):
            for key in value:
                if key not in model.model_fields:
                    raise ConfigError(f"spec.{name} has no {key!r}{near(key, list(model.model_fields))} ({place})")
        try:
            TypeAdapter(info.rebuild_annotation()).validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"{explain(f'spec.{name}', error)} ({place})") from None


def _keys(data: Mapping[str, Any], model: type[BaseModel], place: str, prefix: str) -> None:
    for key, value in data.items():
        if key not in model.model_fields:
            raise ConfigError(f"{place}: {prefix}{key} is no setting{near(str(key), list(model.model_fields))}")
        section = model.model_fields[key].annotation
        if isinstance(section, type) and issubclass(section, BaseModel) and isinstance(value, Mapping):
            _keys(value, section, place, f"{prefix}{key}.")
