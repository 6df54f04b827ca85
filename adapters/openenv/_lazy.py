"""Names that are resolved on first use, so that a type does not cost a web framework."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module.

    Args:
        module: Its name.
        homes: Where each name lives: ``package.module``, or ``package.module:other`` where it is called otherwise.
            An empty string means a submodule.
    """

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if not home:
            return import_module(f"{module}.{name}")
        where, _, attribute = home.partition(":")
        value = getattr(import_module(where), attribute or name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes})

    return get, names
