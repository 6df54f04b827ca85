"""Backends by name: found through entry points, listed without their SDKs, constructed once per loop and options."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
import threading
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from openenv_sandbox._leases import Lease as Lease
from openenv_sandbox._leases import lease, lent
from openenv_sandbox.errors import ConfigError, MissingExtraError, OpenEnvError, ProviderError, UnknownProvider
from openenv_sandbox.provider import Check, SandboxProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import Verified

GROUP = "openenv.sandbox_providers"
DISTRIBUTION = "openenv"

RESERVED = frozenset(
    "aca ack apple-container beam blaxel cua-cloud cwsandbox daytona docker e2b ec2 gke hf hyperbrowser islo "
    "kubernetes langsmith local modal novita opensandbox openshift podman prime runloop singularity skypilot ssh "
    "tensorlake use-computer vercel wandb".split()
)
ALIASES = {"apptainer": "singularity", "azure": "aca", "hf-sandbox": "hf", "k8s": "kubernetes"}

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")


@dataclass(frozen=True)
class ProviderEntry:
    """One registered backend.

    Attributes:
        name: As written in configuration.
        distribution: The distribution that brings it.
        target: ``module:Class``.
        cls: The class; None when it is broken.
        broken: Why it cannot be used; empty when it can.
    """

    name: str
    distribution: str
    target: str
    cls: type[SandboxProvider] | None = field(default=None, repr=False)
    broken: str = ""


@dataclass(frozen=True)
class ProviderInfo:
    """What `providers` tells about one backend. Everything is known without its SDK and without the network.

    Attributes:
        name: As written in configuration.
        title: As people write it.
        aliases: Other names it answers to.
        distribution: The distribution that brings it.
        extra: The extra of ``openenv`` that brings its SDK; None when nothing is to be installed.
        installed: Whether its SDK is there (found, not imported), on a Python that it supports.
        credentials: Whether the variables with its credentials are set; None when it needs none.
        env_vars: Names of those variables.
        python: Lowest Python it runs on.
        capabilities: What it can do; None when it is broken.
        verified: How it is proven; None when it is broken.
        check: Whether it could be used now, with reason and hint.
        broken: Why the plugin cannot be used; empty when it can.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    distribution: str
    extra: str | None
    installed: bool
    credentials: bool | None
    env_vars: tuple[str, ...]
    python: tuple[int, int]
    capabilities: Capabilities | None
    verified: Verified | None
    check: Check
    broken: str = ""


_lock = threading.RLock()
_found: tuple[tuple[str, ...], tuple[ProviderEntry, ...]] | None = None
_temporary: dict[str, type[SandboxProvider]] = {}


def canonical(name: str) -> str:
    """The name behind an alias; any other name unchanged."""
    return ALIASES.get(name, name)


def entries() -> list[ProviderEntry]:
    """Every registered backend, usable or broken, by name.

    Of several distributions that claim one name, the first by distribution name has it, and the others are listed
    after it as broken; a name of ours is ours.
    """
    global _found
    with _lock:
        path = tuple(sys.path)
        if _found is None or _found[0] != path:
            _found = (path, tuple(_discover()))
        added = [ProviderEntry(name, "(this process)", _target(cls), cls) for name, cls in _temporary.items()]
        kept = [entry for entry in _found[1] if entry.name not in _temporary]
    return sorted([*kept, *added], key=lambda entry: (entry.name, bool(entry.broken), entry.distribution))


def names() -> list[str]:
    """Names of the backends that can be used."""
    return [entry.name for entry in entries() if not entry.broken]


def known_names() -> list[str]:
    """Every name that may stand in configuration, aliases included. Imports no backend."""
    return sorted({*RESERVED, *ALIASES, *_temporary, *(point.name for point in entry_points(group=GROUP))})


def get(name: str) -> type[SandboxProvider]:
    """The class of a backend.

    Raises:
        UnknownProvider: No such backend; the message has the nearest match.
        ProviderError: The plugin of that name is broken.
    """
    wanted = canonical(name)
    broken = ""
    for entry in entries():
        if entry.name == wanted:
            if entry.cls is not None:
                return entry.cls
            broken = broken or f"{entry.target} of {entry.distribution}: {entry.broken}"
    if wanted in RESERVED and not broken:
        raise UnknownProvider(
            f"the backend {wanted!r} is not in this version of openenv",
            provider=wanted,
            hint=f"backends of this version: {', '.join(names())}",
        )
    if broken:
        raise ProviderError(
            f"the backend {wanted!r} is broken: {broken}", provider=wanted, hint="reinstall or update that plugin"
        )
    from openenv_sandbox.options import near

    raise UnknownProvider(
        f"no backend is called {name!r}{near(name, [*names(), *_usable_aliases()])}",
        provider=name,
        hint="`openenv providers` lists every backend",
    )


class ProviderTable(list[ProviderInfo]):
    """A list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from openenv_sandbox import notebook

        return notebook.providers(self)


def providers(options_for: Callable[[str], Any] | None = None) -> list[ProviderInfo]:
    """Every backend with what it needs and can do. Imports no SDK and uses no network.

    Args:
        options_for: Options by name that the checks shall assume, e.g. `Settings.options_for`; None for the defaults.
    """
    return ProviderTable(_describe(entry, options_for) for entry in entries())


@contextlib.contextmanager
def registered(cls: type[SandboxProvider]) -> Iterator[None]:
    """Make ``cls`` known under its name for the time of a block, in this process only, instead of any other."""
    with _lock:
        before = _temporary.get(cls.name)
        _temporary[cls.name] = cls
    try:
        yield
    finally:
        with _lock:
            if before is None:
                _temporary.pop(cls.name, None)
            else:
                _temporary[cls.name] = before


def refresh() -> None:
    """Forget what was found; the next question looks again (a plugin was installed meanwhile)."""
    global _found
    with _lock:
        _found = None


async def acquire(which: str | type[SandboxProvider] | SandboxProvider, options: Any = None) -> Lease:
    """A provider to work with, shared by everyone on the running loop who asks with equal options.

    It is constructed in a worker thread, because that imports the SDK. Another loop gets its own, since clients
    belong to a loop. A failed construction is not remembered. An instance is passed through and never closed by us.

    Args:
        which: A name, a class or an instance.
        options: An instance of the class's ``Options``, a mapping, or None.

    Returns:
        A lease; release it when done. The last release closes the provider.

    Raises:
        UnknownProvider: No such backend.
        ConfigError: An option is unknown or malformed, or options were given for an instance.
        MissingExtraError: Its SDK is not installed.
        BrokenExtraError: Its SDK does not import.
        ProviderError: Its constructor failed otherwise.
    """
    if isinstance(which, SandboxProvider):
        if options:
            raise ConfigError(
                "options cannot be given for a provider that exists already",
                provider=which.name,
                hint="give them to its constructor, or name the backend instead",
            )
        return lent(which)
    cls = get(which) if isinstance(which, str) else which
    if not (isinstance(cls, type) and issubclass(cls, SandboxProvider)):
        raise ConfigError(f"provider must be a name, a SandboxProvider class or an instance, not {which!r}")
    return await lease(cls, cls.parse_options(options))


# ----------------------------------------------------------------------------------------------------- finding


def _discover() -> list[ProviderEntry]:
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, not _is_ours(point), _dist(point)))
    taken: dict[str, str] = {}
    seen: set[tuple[str, str, str]] = set()
    result: list[ProviderEntry] = []
    for point in points:
        identity = (point.name, _dist(point), point.value)
        if identity in seen:  # an editable install and its leftover metadata may both be on the path
            continue
        seen.add(identity)
        cls, broken = None, _claim(point, taken)
        if not broken:
            cls, broken = _load(point)
        if not broken:
            taken[point.name] = _dist(point)
        result.append(ProviderEntry(point.name, _dist(point), point.value, None if broken else cls, broken))
    return result


def _claim(point: EntryPoint, taken: dict[str, str]) -> str:
    if not _NAME.match(point.name):
        return f"{point.name!r} is no name for a backend (lower-case letters, digits, single hyphens)"
    if not _is_ours(point):
        if point.name in RESERVED:
            return f"the name {point.name!r} is reserved for the backend of openenv itself"
        if point.name in ALIASES:
            return f"the name {point.name!r} is reserved: it means {ALIASES[point.name]!r}"
    if point.name in taken:
        return f"the name {point.name!r} is already taken by {taken[point.name]}"
    return ""


def _load(point: EntryPoint) -> tuple[type[SandboxProvider] | None, str]:
    try:
        cls = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin that calls sys.exit() at import must not end the listing
        from openenv_sandbox.redact import clean, mask

        return None, clean(mask(f"import failed: {type(error).__name__}: {error}"))
    if not (isinstance(cls, type) and issubclass(cls, SandboxProvider)):
        return None, f"{point.value} is not a SandboxProvider class"
    if inspect.isabstract(cls):
        return None, f"{point.value} leaves out {', '.join(sorted(cls.__abstractmethods__))}"
    missing = [name for name in ("name", "title", "Options") if not hasattr(cls, name)]
    if missing:
        return None, f"{point.value} does not say its {', '.join(missing)}"
    if cls.name != point.name:
        return None, f"{point.value} calls itself {cls.name!r}, its entry point {point.name!r}"
    return cls, ""


def _is_ours(point: EntryPoint) -> bool:
    return _dist(point) == DISTRIBUTION and point.value.startswith("openenv_providers.")


def _dist(point: EntryPoint) -> str:
    name = point.dist.name if point.dist is not None else ""
    return re.sub(r"[-_.]+", "-", name).lower() or "(unknown distribution)"


def _target(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _usable_aliases() -> list[str]:
    usable = set(names())
    return [alias for alias, name in ALIASES.items() if name in usable]


# -------------------------------------------------------------------------------------------------- describing


def _describe(entry: ProviderEntry, options_for: Callable[[str], Any] | None = None) -> ProviderInfo:
    cls = entry.cls
    aliases = tuple(alias for alias, name in ALIASES.items() if name == entry.name)
    if cls is None:
        check = Check(False, f"broken: {entry.broken}", f"reinstall or remove {entry.distribution}")
        return ProviderInfo(
            entry.name,
            entry.name,
            (),
            entry.distribution,
            None,
            False,
            None,
            (),
            (3, 10),
            None,
            None,
            check,
            entry.broken,
        )
    try:
        check = cls.check(options_for(entry.name) if options_for is not None else None)
    except OpenEnvError as error:
        check = Check(False, error.message, error.hint or "")
    except Exception as error:  # "never raises" is a promise of the contract that a third party may break
        check = Check(False, f"check() itself failed: {type(error).__name__}", f"report it to {entry.distribution}")
    credentials = all(os.environ.get(name) for name in cls.env_vars) if cls.env_vars else None
    return ProviderInfo(
        name=entry.name,
        title=cls.title,
        aliases=aliases,
        distribution=entry.distribution,
        extra=cls.extra,
        installed=sys.version_info >= cls.python and all(_present(module) for module in cls.sdk),
        credentials=credentials,
        env_vars=tuple(cls.env_vars),
        python=cls.python,
        capabilities=cls.capabilities,
        verified=cls.verified,
        check=check,
    )


def _present(module: str) -> bool:
    from importlib.util import find_spec

    # Only the top name: looking for a dotted one would import its parents, which are the SDK.
    try:
        return find_spec(module.split(".")[0]) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def extra_missing(name: str) -> MissingExtraError | None:
    """The error that using ``name`` would raise because its SDK is absent, without constructing it; else None."""
    from openenv_sandbox.provider import install_hint

    cls = get(name)
    absent = [module for module in cls.sdk if not _present(module)]
    if not absent:
        return None
    return MissingExtraError(
        f"{cls.title} needs a package that is not installed ({absent[0]})", provider=cls.name, hint=install_hint(cls)
    )
