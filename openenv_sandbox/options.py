"""Options of a backend: how a field is marked as trusted, and how unknown keys become helpful errors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openenv_sandbox.errors import ConfigError

if TYPE_CHECKING:
    from openenv_sandbox.provider import SandboxProvider


class ProviderOptions(BaseModel):
    """Base of every ``Options``: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def trusted(default: Any = None, **kw: Any) -> Any:
    """A field that redirects requests, files or processes: URL, host, proxy, command.

    It is accepted from arguments, the environment and the user's own file, never from a project's file, because a
    cloned repository must not be able to send somebody's keys elsewhere.
    """
    return Field(default=default, json_schema_extra={"trusted": True}, **kw)


def trusted_fields(model: type[BaseModel]) -> frozenset[str]:
    """Names of the fields marked by `trusted`."""
    return frozenset(
        name
        for name, info in model.model_fields.items()
        if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("trusted")
    )


def near(name: str, known: list[str]) -> str:
    """``; did you mean 'x'?`` when something is close, else what there is."""
    match = difflib.get_close_matches(name, known, n=1)
    if match:
        return f"; did you mean {match[0]!r}?"
    return f"; known: {', '.join(sorted(known)) or 'none'}"


def validate_options(cls: type[SandboxProvider], options: Any) -> Any:
    """An instance of ``cls.Options``.

    Raises:
        ConfigError: A key is unknown or a value malformed; the value itself is never repeated, it may be a secret.
    """
    model = cls.Options
    if isinstance(options, model):
        return options
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"options of {cls.name} must be a mapping or {model.__name__}, not {type(options).__name__}")
    for key in options:
        if key not in model.model_fields:
            raise ConfigError(f"{cls.name} has no option {key!r}{near(str(key), list(model.model_fields))}")
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        raise ConfigError(explain(f"options of {cls.name}", error)) from None


def explain(what: str, error: ValidationError) -> str:
    """One line per problem of a pydantic error, without the values."""
    lines = [f"{'.'.join(map(str, item['loc'])) or what}: {item['msg']}" for item in error.errors()]
    return f"{what}: " + "; ".join(lines)
