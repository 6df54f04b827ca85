"""Which environment packages are installed, and what their classes are called: read from files, nothing is imported.

A package is one whose distribution carries ``openenv.yaml``, or whose name begins with ``openenv-`` and that has a
module ``client`` in a package ending in ``_env``.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from openenv_sandbox import _manifest
from openenv_sandbox.errors import ConfigError
from openenv_sandbox.options import near

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger("openenv.auto")
_HUB = re.compile(r"(?:https?://)?(?:www\.)?huggingface\.co/(?:spaces/)?")
_TOOL_CLIENTS = {"MCPToolClient", "MCPClientBase"}
_CLIENTS = {"EnvClient", "GenericEnvClient", *_TOOL_CLIENTS}


def normalize(name: str) -> str:
    """The package that a name means: ``echo``, ``echo-env`` and ``echo_env`` are all ``echo_env``."""
    found = name.strip().lower().replace("-", "_")
    return found if found.endswith("_env") else f"{found}_env"


def is_hub_name(name: str) -> bool:
    """Whether a name is one of the hub or of a repository rather than of an installed package."""
    return "/" in name or "huggingface.co" in name


def hub_source(name: str) -> str:
    """``org/space`` and addresses of the hub as ``hf://org/space``; what has another scheme stays."""
    if name.startswith(("hf://", "git+")):
        return name
    return f"hf://{_HUB.sub('', name).strip('/')}"


@dataclass
class EnvironmentInfo:
    """One installed environment.

    Attributes:
        env_key: Its short name, ``echo``.
        name: As openenv.yaml says it.
        package_name: Name of the distribution.
        version: Of the distribution.
        description: One line.
        client_module_path: Module of the client.
        client_class_name: Class of the client.
        action_class_name: Class of actions.
        observation_class_name: Class of observations.
        default_image: Image that is started where none is named.
        spec_version: Of openenv.yaml.
        manifest: openenv.yaml as written; None where the package carries none.
    """

    env_key: str
    name: str
    package_name: str
    version: str
    description: str
    client_module_path: str
    client_class_name: str
    action_class_name: str
    observation_class_name: str
    default_image: str
    spec_version: int | None = None
    manifest: dict[str, Any] | None = None

    def get_client_class(self) -> type[Any]:
        """The client's class; this imports the package.

        Raises:
            ConfigError: The package does not import, or has no such class.
        """
        return self._class(self.client_class_name)

    def get_action_class(self) -> type[Any]:
        """The class of actions; this imports the package.

        Raises:
            ConfigError: The package does not import, or has no such class.
        """
        return self._class(self.action_class_name)

    def _class(self, name: str) -> type[Any]:
        package = self.client_module_path.rpartition(".")[0]
        for module in (self.client_module_path, package, f"{package}.models"):
            try:
                found = getattr(import_module(module), name, None)
            except ImportError as error:
                if error.name in (module, f"{package}.models"):
                    continue
                raise ConfigError(f"the environment {self.env_key} does not import: {error}") from error
            if isinstance(found, type):
                return found
        raise ConfigError(
            f"the package {package} has no class {name}", hint=f"import what it offers: from {package} import …"
        )


class EnvironmentDiscovery:
    """The installed environments; looked for once, until the cache is cleared."""

    def __init__(self) -> None:
        self._found: dict[str, EnvironmentInfo] | None = None

    def discover(self, use_cache: bool = True) -> dict[str, EnvironmentInfo]:
        """Every environment by its short name."""
        if self._found is None or not use_cache:
            found: dict[str, EnvironmentInfo] = {}
            for info in _installed():
                found.setdefault(info.env_key, info)
            self._found = dict(sorted(found.items()))
        return self._found

    def get_environment(self, env_key: str) -> EnvironmentInfo | None:
        """The environment of a short name; None where there is none."""
        return self.discover().get(env_key)

    def get_environment_by_name(self, name: str) -> EnvironmentInfo | None:
        """The environment of a name in any of its forms; None where there is none."""
        wanted = normalize(name)
        return next((info for info in self.discover().values() if wanted in _names(info)), None)

    def known(self, name: str) -> EnvironmentInfo:
        """The same, or an error.

        Raises:
            ConfigError: There is none; the hint lists what there is.
        """
        info = self.get_environment_by_name(name)
        if info is None:
            keys = list(self.discover())
            raise ConfigError(
                f"Unknown environment {name!r}{near(name, keys)}",
                hint=f"installed: {', '.join(keys) or 'none'}; one of the hub is named org/space",
            )
        return info

    def clear_cache(self) -> None:
        """Look again at the next question."""
        self._found = None

    def list_environments(self) -> None:
        """Print what is installed."""
        rows = [f"{info.env_key:<16} {info.description} (v{info.version}, {info.package_name})" for info in self._all()]
        tell("Available OpenEnv Environments", rows)

    def _all(self) -> list[EnvironmentInfo]:
        return list(self.discover().values())


_discovery = EnvironmentDiscovery()


def get_discovery() -> EnvironmentDiscovery:
    """The one of this process."""
    return _discovery


def reset_discovery() -> None:
    """Look again at the next question."""
    _discovery.clear_cache()


def tell(title: str, rows: list[str]) -> None:
    """Write a listing for the person at a notebook, for whom the methods that list exist."""
    sys.stdout.write("\n".join([f"{title}:", *(f"  {row}" for row in rows), f"Total: {len(rows)}"]) + "\n")


def _names(info: EnvironmentInfo) -> set[str]:
    package = info.client_module_path.partition(".")[0]
    return {normalize(name) for name in (info.env_key, info.name, package)}


# -------------------------------------------------------------------------------------------------- distributions


def _installed() -> Iterator[EnvironmentInfo]:
    for distribution in metadata.distributions():
        try:
            place = _place(distribution)
            if place is not None:
                yield read(distribution, *place)
        except Exception as error:  # one broken package hides no other, whatever is wrong with it
            _log.warning("%s is passed over: %s", getattr(distribution, "_path", "a distribution"), error)


def _place(distribution: metadata.Distribution) -> tuple[str, Path] | None:
    """Package and folder of an environment; None for any other distribution."""
    files = distribution.files or []
    name = str(distribution.metadata["Name"])
    wanted = {_manifest.FILE}
    if re.match(r"openenv[-_](?!core$)", name):
        wanted.add("client.py")
    for file in files:
        if len(file.parts) == 2 and file.name in wanted and file.parts[0].isidentifier():
            if file.name == _manifest.FILE or file.parts[0].endswith("_env"):
                return file.parts[0], Path(str(distribution.locate_file(file))).parent
    return _editable(distribution)


def _editable(distribution: metadata.Distribution) -> tuple[str, Path] | None:
    text = distribution.read_text("direct_url.json")
    if text is None or '"editable"' not in text:
        return None
    url = json.loads(text)
    folder = Path(unquote(urlsplit(str(url.get("url", ""))).path))
    if not (url.get("dir_info") or {}).get("editable") or not (folder / _manifest.FILE).is_file():
        return None
    from openenv_sandbox import folder as folders

    found = folders.read(folder)
    for package, place in found.packages.items():
        return package, Path(place)
    package = (found.module or folder.name).partition(".")[0]
    return package, folder / package if (folder / package).is_dir() else folder


def read(distribution: metadata.Distribution, package: str, folder: Path) -> EnvironmentInfo:
    """What the files of a package say.

    Raises:
        ImageError: Its openenv.yaml is malformed.
    """
    raw: Mapping[str, Any] | None = None
    name, image = package, None
    manifest = next((one for one in (folder, folder.parent) if (one / _manifest.FILE).is_file()), None)
    if manifest is not None:
        found = _manifest.load(manifest)
        raw, name, image = found.raw, found.name, found.image
    key = normalize(package).removesuffix("_env")
    client, action, observation = classes_of(folder, key)
    said = raw or {}
    version = said.get("spec_version")
    return EnvironmentInfo(
        env_key=key,
        name=name,
        package_name=str(distribution.metadata["Name"]),
        version=distribution.version,
        description=str(said.get("description") or f"{name} environment"),
        client_module_path=f"{package}.client",
        client_class_name=client,
        action_class_name=_named(said.get("action")) or action,
        observation_class_name=_named(said.get("observation")) or observation,
        default_image=image or f"{key.replace('_', '-')}-env:latest",
        spec_version=version if isinstance(version, int) else None,
        manifest=dict(raw) if raw is not None else None,
    )


def _named(value: Any) -> str:
    return value if isinstance(value, str) and value.isidentifier() else ""


def classes_of(folder: Path, key: str) -> tuple[str, str, str]:
    """Names of client, action and observation in a package's ``client.py``; by convention where it does not say."""
    stem = "".join(part.capitalize() for part in key.split("_"))
    action, observation = f"{stem}Action", f"{stem}Observation"
    try:
        tree = ast.parse((folder / "client.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return f"{stem}Env", action, observation
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in node.bases:
            head = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]
            if head not in _CLIENTS:
                continue
            if isinstance(base, ast.Subscript) and isinstance(base.slice, ast.Tuple):
                action, observation = (ast.unparse(kind).rpartition(".")[2] for kind in base.slice.elts[:2])
                # A client of any action is one of tools.
                return node.name, "CallToolAction" if action == "Action" else action, observation
            if head in _TOOL_CLIENTS:
                return node.name, "CallToolAction", "CallToolObservation"
            return node.name, action, observation
    return f"{stem}Env", action, observation
