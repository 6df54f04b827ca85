"""Settings, and where each came from.

From strong to weak: arguments and flags; a profile named by an argument; ``OPENENV_…`` variables; a profile named
elsewhere; ``openenv.toml`` or ``[tool.openenv]`` of the nearest project; the user's own file; defaults.

    provider = "docker"                 # OPENENV_PROVIDER
    journal = "on"                      # OPENENV_JOURNAL: on, off, network
    profile = "train"                   # OPENENV_PROFILE
    [image]
    registry = "ghcr.io/me"             # OPENENV_IMAGE__REGISTRY
    [image.registries."ghcr.io"]        # only in your own file
    username = "me"
    password = "…"
    [build]
    base_image = "python:3.12-slim"     # OPENENV_BASE_IMAGE
    [spec.timeouts]
    create = 300                        # OPENENV_SPEC__TIMEOUTS__CREATE
    [providers.use-computer]
    region = "eu"                       # OPENENV_PROVIDERS__USE_COMPUTER__REGION
    [profiles.train]
    provider = "modal"                  # and spec, image, build, providers as above

What redirects requests or vouches for code is refused in a project's file: a cloned repository must not do that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox import _config_files as files
from openenv_sandbox._config_files import Found, Kind, Layer, Names
from openenv_sandbox.errors import ConfigError, OpenEnvError, TrustError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.spec import RegistryAuth

_log = logging.getLogger("openenv.config")

DEFAULT_PROVIDER = "local"
JOURNAL_MODES = ("on", "off", "network")


@dataclass(frozen=True)
class Setting:
    """One line of `Settings.explain`.

    Attributes:
        name: Dotted.
        value: Secrets masked.
        source: Argument, variable, or file.
    """

    name: str
    value: Any
    source: str


@dataclass(frozen=True)
class Settings:
    """Everything that was configured, merged.

    Attributes:
        provider: Name of the backend; ``local`` when nothing says otherwise.
        profile: The profile in effect.
        spec_defaults: Fields of `SandboxSpec`, nested as there.
        image_registry: Where images that core builds for other machines are pushed.
        base_image: Replaces the base of every Dockerfile.
        journal: ``on``, ``off`` or ``network``.
        warnings: One sentence for each variable that nobody reads.
    """

    provider: str = DEFAULT_PROVIDER
    profile: str | None = None
    spec_defaults: dict[str, Any] = field(default_factory=dict)
    image_registry: str | None = None
    base_image: str | None = None
    journal: Any = "on"
    warnings: tuple[str, ...] = ()
    _merged: Layer = field(default_factory=dict, repr=False)

    @property
    def registry_logins(self) -> dict[str, RegistryAuth]:
        """``[image.registries]``: host to login."""
        from openenv_sandbox._config_model import ImageSection

        leaves = {names[1:]: found for names, found in self._merged.items() if names[:2] == ("image", "registries")}
        return ImageSection.model_validate(_nest(leaves)).registries

    def options_for(self, name: str) -> dict[str, Any]:
        """What is configured for a backend, checked against its ``Options``.

        Raises:
            ConfigError: An option is unknown or malformed; says where it stands.
            TrustError: A trusted option stands in a project's file.
            UnknownProvider: No such backend.
        """
        from openenv_sandbox import registry
        from openenv_sandbox.options import trusted_fields

        cls = registry.get(name)
        leaves = {names[2:]: found for names, found in self._merged.items() if names[:2] == ("providers", cls.name)}
        guarded = trusted_fields(cls.Options)
        for path, found in leaves.items():
            if path and path[0] in guarded and found.kind == "project":
                raise TrustError(
                    f"{found.place} sets {path[0]!r} of {cls.name}, which decides where requests and keys go",
                    provider=cls.name,
                    hint=f"if you want that, set it in your own file, by {_variable(cls.name, path[0])} or an argument",
                )
        options: dict[str, Any] = _nest(leaves) if () not in leaves else {}
        if options:
            try:
                cls.parse_options(options)
            except ConfigError as error:
                places = ", ".join(sorted({found.place for found in leaves.values()}))
                raise ConfigError(f"{error.message} (set in {places})", provider=cls.name) from None
        return options

    def provider_names(self) -> set[str]:
        """Backends that are in use or have options."""
        return {self.provider, *(names[1] for names in self._merged if names[0] == "providers" and len(names) > 1)}

    def explain(self) -> list[Setting]:
        """Every setting with its source, by name; secrets masked."""
        from openenv_sandbox.redact import REDACTOR

        merged = dict(self._merged)
        merged.setdefault(("provider",), Found(self.provider, "default", "default"))
        merged.setdefault(("journal",), Found(self.journal, "default", "default"))
        return [
            Setting(".".join(names), _shown(names, found.value, REDACTOR.mask_value), found.place)
            for names, found in sorted(merged.items(), key=lambda item: item[0])
        ]


def load(
    *, profile: str | None = None, cwd: Path | str | None = None, arguments: Mapping[str, Any] | None = None
) -> Settings:
    """Read and merge every source.

    Args:
        profile: A profile named by an argument or flag; its values are stronger than variables.
        cwd: Where the search for the project's file begins; None for the current folder.
        arguments: What was given by arguments, in the shape of a file; None values do not count.

    Raises:
        ConfigError: A file is malformed, a key or profile unknown, or a name is both profile and provider.
        TrustError: A project's file vouches for remote code or turns the journal off.
    """
    from openenv_sandbox import registry

    known = registry.known_names()
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    environment, warnings = files.from_environment(known)
    sources: list[tuple[Kind, Path, dict[str, Any]]] = []
    own, project = files.user_file(), files.project_file(Path(cwd or Path.cwd()).absolute())
    if own is not None:
        sources.append(("user", *own))
    if project is not None and (own is None or project[0] != own[0]):
        sources.append(("project", *project))
    for kind, path, data in sources:
        _check_file(kind, path, data, known)

    profiles = {name: [] for _, _, data in sources for name in data.get("profiles", {})}  # type: dict[str, list[Layer]]
    for name in profiles:
        for kind, path, data in sources:
            if name in data.get("profiles", {}):
                place = f"{path} [profiles.{name}]"
                profiles[name].append(files.flatten(data["profiles"][name], kind, place))
    # A profile may stand where a provider is asked for: the two share their names, which is why none may be both.
    if given.get("provider") in profiles:
        profile = profile or given.pop("provider")
    named = environment.get(("provider",))
    if named is not None and named.value in profiles:
        environment.setdefault(("profile",), Found(named.value, "environment", named.place))
        del environment["provider",]

    base: list[Layer] = []
    for kind, path, data in sources:
        tables = {key: value for key, value in data.items() if key != "profiles"}
        base.append(files.flatten(tables, kind, str(path)))
    chosen = profile or _last([*base, environment], ("profile",))
    if chosen is not None and chosen not in profiles:
        from openenv_sandbox.options import near

        raise ConfigError(f"no profile is called {chosen!r}{near(str(chosen), list(profiles))}")
    selected = profiles.get(str(chosen), [])
    order = [*base, environment, *selected] if profile else [*base, *selected, environment]
    merged = _merge([*order, files.flatten(given, "argument", "argument")])
    for text in warnings:
        _log.warning("%s", text)
    return _settings(merged, str(chosen) if chosen else None, warnings)


def _settings(merged: Layer, profile: str | None, warnings: list[str]) -> Settings:
    from openenv_sandbox import registry

    spec = {names[1:]: found for names, found in merged.items() if names[0] == "spec" and len(names) > 1}
    _check_spec(spec)
    provider = merged.get(("provider",))
    journal = merged.get(("journal",))
    if journal is not None and journal.value not in JOURNAL_MODES:
        raise ConfigError(f"journal is one of {', '.join(JOURNAL_MODES)}, not {journal.value!r} ({journal.place})")
    for names, found in merged.items():
        if names in (("provider",), ("image", "registry"), ("build", "base_image")) and not isinstance(
            found.value, str
        ):
            raise ConfigError(f"{'.'.join(names)} must be text ({found.place})")
    return Settings(
        provider=registry.canonical(provider.value) if provider else DEFAULT_PROVIDER,
        profile=profile,
        spec_defaults=_nest(spec),
        image_registry=_last([merged], ("image", "registry")),
        base_image=_last([merged], ("build", "base_image")),
        journal=journal.value if journal else "on",
        warnings=tuple(warnings),
        _merged=merged,
    )


def _check_file(kind: Kind, path: Path, data: Mapping[str, Any], known: list[str]) -> None:
    from openenv_sandbox._config_model import check_tables

    check_tables(data, str(path), known)
    for name, tables in (("", data), *data.get("profiles", {}).items()):
        where = f"{path} [profiles.{name}]" if name else str(path)
        if name in known:
            raise ConfigError(
                f"{where}: {name!r} is the name of a backend, so it cannot name a profile", hint="rename the profile"
            )
        spec = tables.get("spec", {})
        if "provider_options" in spec:
            raise ConfigError(
                f"{where}: spec.provider_options is for one call", hint="write options under [providers.NAME]"
            )
        if kind == "project":
            refused = [f"spec.{key}" for key in ("trust",) if spec.get(key)]
            refused += ["spec.registry_auth"] if spec.get("registry_auth") else []
            refused += ["image.registries"] if tables.get("image", {}).get("registries") else []
            refused += ["journal"] if tables.get("journal", "on") != "on" else []
            if refused:
                raise TrustError(
                    f"{where} sets {refused[0]}, which only you can decide",
                    hint="set it in your own file, by a variable or an argument",
                )


def _check_spec(leaves: Mapping[Names, Found]) -> None:
    if leaves:  # pydantic is loaded only where there is something to check
        from openenv_sandbox._config_model import check_spec

        check_spec(_nest(leaves), {names: found.place for names, found in leaves.items()})


def _merge(layers: list[Layer]) -> Layer:
    merged: Layer = {}
    for layer in layers:
        for names, found in layer.items():
            # A table replaces a plain value of the same name, and the other way round.
            for other in [n for n in merged if n != names and (n[: len(names)] == names or names[: len(n)] == n)]:
                del merged[other]
            merged[names] = found
    return merged


def _nest(leaves: Mapping[Names, Found]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for names, found in leaves.items():
        table = result
        for name in names[:-1]:
            table = table.setdefault(name, {})
        table[names[-1]] = found.value
    return result


def _last(layers: list[Layer], names: Names) -> Any:
    for layer in reversed(layers):
        if names in layer:
            return layer[names].value
    return None


def _shown(names: Names, value: Any, mask: Any) -> Any:
    own = names[:2] in (("spec", "secrets"), ("spec", "registry_auth")) or names[-1] == "password"
    if own or (names[0] == "providers" and _declared_secret(names)):
        return "***"
    return mask(names[-1], value)


def _declared_secret(names: Names) -> bool:
    """Whether the backend's ``Options`` say that the value is a secret, whatever its name is."""
    from openenv_sandbox import registry

    try:
        fields = registry.get(names[1]).Options.model_fields
    except OpenEnvError:
        return False
    return len(names) > 2 and names[2] in fields and "Secret" in repr(fields[names[2]].annotation)


def _variable(provider: str, option: str) -> str:
    return f"OPENENV_PROVIDERS__{provider.upper().replace('-', '_')}__{option.upper()}"
