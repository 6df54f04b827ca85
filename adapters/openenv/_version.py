"""The version, read from the metadata of whichever distribution provides this package."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    for name in ("openenv", "openenv-core"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "0.0.0"


__version__ = _installed()
