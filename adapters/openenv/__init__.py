"""The import name of the existing ecosystem."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("openenv")
except PackageNotFoundError:
    __version__ = "0.0.0"
