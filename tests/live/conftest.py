"""Live tests run only for backends that OPENENV_LIVE names; recorded ones replay wherever there is a cassette."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import cases


def pytest_configure(config: pytest.Config) -> None:
    """Know the markers also where pytest-recording is not installed."""
    unknown = cases.NAMED - set(cases.BACKENDS)
    if unknown:
        raise pytest.UsageError(
            f"OPENENV_LIVE names {', '.join(sorted(unknown))}; there are {', '.join(cases.BACKENDS)}"
        )
    config.addinivalue_line("markers", "vcr: recorded by pytest-recording")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what nobody asked for; skip, with one line, what lacks something."""
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    said: set[str] = set()
    for item in items:
        live, recorded = item.get_closest_marker("live"), item.get_closest_marker("vcr")
        if "tests/live" not in item.path.as_posix() or (live is None and recorded is None):
            kept.append(item)
            continue
        name = item.callspec.params["name"] if recorded else item.cls.backend  # type: ignore[attr-defined]
        real = recording(config, name) if recorded else name in cases.NAMED
        wanted = real or (recorded is not None and (cases.CASSETTES / f"{name}.yaml").exists())
        reason = cases.missing(name) if real else None
        if not wanted or reason in said:
            dropped.append(item)
            continue
        kept.append(item)
        if reason is not None:  # one line for a backend, not one for each of its tests
            said.add(reason)
            item.add_marker(pytest.mark.skip(reason=reason))
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def recording(config: pytest.Config, name: str) -> bool:
    """Whether cassettes of this backend are being made."""
    mode: Any = config.getoption("--record-mode", default=None)
    return name in cases.NAMED and mode not in (None, "none")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say why nothing ran, to whoever asked for live tests."""
    if not cases.NAMED and "live" in (config.getoption("markexpr") or ""):
        terminalreporter.write_line("live tests: OPENENV_LIVE names no backend (docs/live.md)")
