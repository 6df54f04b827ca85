"""Reading configuration from files and variables into one flat shape: path of names -> value and where it stands."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from openenv_sandbox import _paths
from openenv_sandbox.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["argument", "environment", "project", "user", "default"]
Names = tuple[str, ...]

FILE = "openenv.toml"
PREFIX = "OPENENV_"

# variable -> setting; those of tables are OPENENV_<TABLE>__<KEY>.
VARIABLES: dict[str, Names] = {
    "OPENENV_BASE_IMAGE": ("build", "base_image"),
    "OPENENV_JOURNAL": ("journal",),
    "OPENENV_PROFILE": ("profile",),
    "OPENENV_PROVIDER": ("provider",),
}
TABLES = ("providers", "spec", "image", "build")

# Read elsewhere: by our server, by environments, by the command line, by tests.
OTHERS = frozenset(
    f"OPENENV_{name}"
    for name in (
        "ALLOWED_HOSTS ALLOWED_ORIGINS ALLOW_RAW_LOGPROBS AUTH_TOKEN CAPTURE_ADMIN_KEY CLIENT_MODE CONCURRENT_PROC_ENV "
        "DATASETS DATASET_CACHE DATASET_WORKERS ENV_FILE EXEC GRADIO_CSS GRADIO_THEME LLM_API_KEY LLM_AUTH_HEADER "
        "LLM_URL MODE MODEL REQUIRE_ENGINES SANDBOXES SERVED STATE_DIR TRUST_REMOTE_CODE UI_INDEX_WORKERS "
        "VALIDATE_TASKS"
    ).split()
)
FAMILIES = ("OPENENV_HARBOR_", "OPENENV_TEST_")


@dataclass(frozen=True)
class Found:
    """One value and where it stands."""

    value: Any
    kind: Kind
    place: str


Layer = dict[Names, Found]


def read_file(path: Path, kind: Kind) -> dict[str, Any] | None:
    """The tables of a configuration file; None when it does not exist or (pyproject.toml) says nothing about us.

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if path.name != FILE and "openenv" not in text:
            return None  # somebody else's broken file
        raise ConfigError(f"{path}: {error}", hint="it must be TOML") from error
    if path.name == FILE:
        return data
    section = data.get("tool", {}).get("openenv")
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{path}: tool.openenv must be a table")
    return section


def project_file(cwd: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest ``openenv.toml`` or ``pyproject.toml`` with ``[tool.openenv]``, from ``cwd`` upwards.

    Raises:
        ConfigError: One folder has both: neither can be said to hold.
    """
    for folder in (cwd, *cwd.parents):
        found = [
            (path, data)
            for path in (folder / FILE, folder / "pyproject.toml")
            if (data := read_file(path, "project")) is not None
        ]
        if len(found) > 1:
            raise ConfigError(f"{folder} has both {FILE} and [tool.openenv] in pyproject.toml", hint="keep one of them")
        if found:
            return found[0]
    return None


def user_file() -> tuple[Path, dict[str, Any]] | None:
    """The user's own file, if there is one."""
    path = _paths.user_config_file()
    data = read_file(path, "user") if path is not None else None
    return (path, data) if path is not None and data is not None else None


def flatten(data: Mapping[str, Any], kind: Kind, place: str, prefix: Names = ()) -> Layer:
    """Every leaf of nested tables. Provider names are made canonical."""
    from openenv_sandbox.registry import canonical

    layer: Layer = {}
    for key, value in data.items():
        name = canonical(str(key)) if prefix == ("providers",) else str(key)
        names = (*prefix, name)
        if isinstance(value, Mapping) and value:
            layer.update(flatten(value, kind, place, names))
        else:
            layer[names] = Found(value, kind, place)
    return layer


def from_environment(providers: list[str]) -> tuple[Layer, list[str]]:
    """What ``OPENENV_…`` variables say, and a warning for each that nobody reads.

    Args:
        providers: Every name, reserved and alias ones included, that a variable may address.
    """
    from openenv_sandbox.registry import canonical

    by_variable = {name.upper().replace("-", "_"): canonical(name) for name in providers}
    layer: Layer = {}
    warnings: list[str] = []
    for variable in sorted(name for name in os.environ if name.upper().startswith(PREFIX)):
        text = os.environ[variable]
        names = _names(variable, by_variable)
        if names is not None:
            if text:  # set and empty is how a shell says "not set"
                layer[names] = Found(_value(text), "environment", variable)
        elif variable not in OTHERS and not variable.startswith(FAMILIES):
            warnings.append(f"nothing reads {variable}{_near(variable, by_variable)}")
    return layer, warnings


def _names(variable: str, providers: Mapping[str, str]) -> Names | None:
    if variable in VARIABLES:
        return VARIABLES[variable]
    table, *rest = variable.removeprefix(PREFIX).split("__")
    if table.lower() not in TABLES or not rest or not all(rest):
        return None
    if table.lower() == "providers":
        if len(rest) < 2 or rest[0] not in providers:
            return None
        return ("providers", providers[rest[0]], *(part.lower() for part in rest[1:]))
    # Below spec.env and the like the names are the user's own, and case means something there.
    own = table.lower() == "spec" and rest[0].lower() in ("env", "secrets")
    return (table.lower(), rest[0].lower(), *(part if own else part.lower() for part in rest[1:]))


def _near(variable: str, providers: Mapping[str, str]) -> str:
    from openenv_sandbox.options import near

    known = [*VARIABLES, *sorted(OTHERS), *(f"{PREFIX}{table.upper()}__" for table in TABLES)]
    table, _, rest = variable.removeprefix(PREFIX).partition("__")
    if table == "PROVIDERS" and rest:
        return f" ({rest.split('__')[0]!r} is no backend{near(rest.split('__')[0], list(providers))})"
    text = near(variable, known)
    return text if "did you mean" in text else ""


def _value(text: str) -> Any:
    """Lists and tables are written as JSON; everything else is text that the field's type reads."""
    if text[:1] in "[{":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
