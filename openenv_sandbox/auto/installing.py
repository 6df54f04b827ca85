"""Client packages from elsewhere, into the running interpreter's environment: one commit, and this openenv stays.

What such packages declare may bring in ``openenv-core``, an older distribution that overwrites files of the same import
names. It is removed again, and what it overwrote is put back from our own wheel, which was made before.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox import _paths, fetching
from openenv_sandbox.auto import discovery
from openenv_sandbox.errors import BuildError, ImageError, ProviderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from openenv_sandbox.auto.discovery import EnvironmentInfo

INSTALL_S = 1800.0
"""How long one run of the installer may take, in seconds."""
OLDER = "openenv-core"
_OURS = "openenv_sandbox.client.generic"
_ASK = (
    "import json, openenv, openenv_sandbox as o;"
    "print(json.dumps([o.__version__, openenv.__file__, o.__file__, openenv.GenericEnvClient.__module__]))"
)


@dataclass(frozen=True)
class Installed:
    """A package that is there.

    Attributes:
        package: Name of the distribution.
        version: Of it.
        source: Where it came from, with the commit.
        fresh: Whether this call installed it.
    """

    package: str
    version: str
    source: str
    fresh: bool

    @property
    def info(self) -> EnvironmentInfo:
        """What the package says.

        Raises:
            ImageError: It is no environment.
        """
        wanted = _flat(self.package)
        for info in discovery.get_discovery().discover().values():
            if _flat(info.package_name) == wanted:
                return info
        raise ImageError(f"{self.package} of {self.source} is no environment: its package carries no openenv.yaml")


def install(text: str, *, trust: bool, on_log: Callable[[str], object] = lambda line: None) -> Installed:
    """Install the package behind ``hf://…`` or ``git+https://…``; the same commit is not installed again. Blocks.

    Args:
        text: Its name.
        trust: The user vouches for the code, which runs here when it is built and when it is imported.
        on_log: Told each stage.

    Raises:
        TrustError: Without ``trust``; nothing was asked of anybody.
        ImageError: There is no such thing, or it is no package.
        MissingExtraError: The extra ``hub`` is not installed.
        ProviderUnavailable: It cannot be reached, or there is neither pip nor uv.
        BuildError: It could not be installed.
    """
    folder, source = fetching.fetch(text, trust=trust)
    if not (folder / "pyproject.toml").is_file():
        raise ImageError(f"{source} has no pyproject.toml, so there is nothing to install")
    # Build backends write into the folder, which is to stay what the commit says.
    copy = _paths.state_dir() / "installs" / f"{folder.parent.name}-{folder.name}"
    known, fresh = _from(copy), False
    if known is None:
        with _alone(copy.parent):
            importlib.invalidate_caches()
            if _from(copy) is None:  # another process may have been faster
                on_log(f"installing {source}")
                _install(folder, copy, on_log)
                fresh = True
        importlib.invalidate_caches()
        discovery.reset_discovery()
        known = _from(copy)
    if known is None:
        raise BuildError(f"{source} was installed and is not there", hint="is this interpreter's environment writable?")
    return Installed(known.metadata["Name"], known.version, source, fresh)


def _install(folder: Path, copy: Path, on_log: Callable[[str], object]) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, symlinks=True)
    before = _ask()
    if before[-1] != _OURS:
        raise BuildError(
            f"openenv of this environment is not this one any more, but that of {before[1]}",
            hint=f"pip uninstall {OLDER}, then install this openenv again with --force-reinstall",
        )
    wheel = _wheel()
    with tempfile.TemporaryDirectory(prefix="openenv-install-") as scratch:
        pins = Path(scratch, "constraints.txt")
        pins.write_text(f"openenv=={before[0]}\n", encoding="utf-8")
        try:
            _installer("install", "-c", str(pins), str(copy))
        finally:
            _put_back(before, wheel, on_log)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One installation at a time: installers do not look out for each other."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    deadline = time.monotonic() + INSTALL_S
    with (folder / ".lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError("another installation has not ended", retryable=True) from None
                time.sleep(0.1)
        yield


def _put_back(before: Sequence[str], wheel: Path, on_log: Callable[[str], object]) -> None:
    importlib.invalidate_caches()
    if _is_there(OLDER):
        on_log(f"removing {OLDER}")
        _installer("uninstall", OLDER)
        if _ask(strict=False) != before:
            _installer("install", "--no-deps", "--force-reinstall", str(wheel))
    after = _ask(strict=False)
    if after != before:
        raise BuildError(
            f"the openenv of this environment was {before[0]} at {before[1]} and is now {after}",
            hint=f"pip install --force-reinstall {wheel}",
        )


def _ask(*, strict: bool = True) -> list[str]:
    """Version and files of the openenv that a fresh interpreter imports."""
    done = _run([sys.executable, "-c", _ASK], cwd=tempfile.gettempdir())
    if done.returncode != 0:
        if strict:
            raise BuildError("the running openenv does not import in a fresh interpreter", log=done.stderr)
        return []
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _wheel() -> Path:
    from openenv_sandbox.wheel import own_wheel

    return own_wheel(_paths.state_dir() / "wheels")


def _installer(verb: str, *args: str) -> None:
    if find_spec("pip") is not None:
        told = {"install": ["--no-input"], "uninstall": ["-y"]}[verb]
        command = [sys.executable, "-m", "pip", verb, "--disable-pip-version-check", *told, *args]
    elif (uv := shutil.which("uv")) is not None:
        args = tuple("--reinstall" if one == "--force-reinstall" else one for one in args)
        command = [uv, "pip", verb, "--python", sys.executable, *args]
    else:
        raise ProviderUnavailable("there is neither pip nor uv to install with", hint="python -m ensurepip")
    done = _run(command)
    if done.returncode != 0:
        from openenv_sandbox.redact import mask

        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise BuildError(mask(f"{verb} {args[-1]}: {said[-1] if said else 'failed'}"), log=mask("\n".join(said[-20:])))


def _run(command: Sequence[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        return subprocess.run(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[-1]} did not end within {INSTALL_S:g} s") from None


def _from(folder: Path) -> metadata.Distribution | None:
    """The distribution that was installed from a folder."""
    for found in metadata.distributions():
        text = found.read_text("direct_url.json")
        url: Any = json.loads(text) if text else {}
        if url.get("url") == folder.as_uri():
            return found
    return None


def _is_there(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _flat(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
