"""Pytest plugin: a fake cloud as a fixture, and what each backend's contract suite ran and skipped, and why.

Loaded by every pytest run of an environment that has openenv, so it imports nothing before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openenv_sandbox.client.sync import SyncEnvClient
    from openenv_sandbox.testing.fake_cloud import FakeCloud

PROPERTY = "openenv_contract"
NOT_DECLARED = "not declared: "
NO_HOOK = "no hook in the case: "
DECLINED = "declined: "
_KINDS = (NOT_DECLARED, NO_HOOK, DECLINED)
_RESULTS = pytest.StashKey[dict[str, dict[str, list[str]]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start counting."""
    config.stash[_RESULTS] = {}
    config.pluginmanager.register(_Counter(config), "openenv-contract-counter")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of contract suites, so that their reports say whose they are."""
    for item in items:
        cls = getattr(item, "cls", None)
        if cls is not None and getattr(cls, "openenv_contract", False):
            item.user_properties.append((PROPERTY, cls.__name__))


class _Counter:
    def __init__(self, config: pytest.Config) -> None:
        self._results = config.stash[_RESULTS]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        name = dict(report.user_properties).get(PROPERTY)
        if name is None:
            return
        result = self._results.setdefault(str(name), {"passed": [], "failed": [], **{kind: [] for kind in _KINDS}})
        test = report.nodeid.rpartition("::")[2]
        if report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
            for kind in _KINDS:
                if kind in reason:
                    what = reason.partition(kind)[2]
                    result[kind].append(f"{test} ({what})" if kind == DECLINED else what)
        elif report.failed:
            result["failed"].append(test)
        elif report.when == "call":
            result["passed"].append(test)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One paragraph for each backend."""
    results = config.stash.get(_RESULTS, {})
    if not results:
        return
    terminalreporter.section("contract suite")
    for name, result in sorted(results.items()):
        terminalreporter.write_line(f"{name}: {len(result['passed'])} passed, {len(result['failed'])} failed")
        for kind in _KINDS:
            if result[kind]:
                terminalreporter.write_line(f"  {kind}{', '.join(sorted(set(result[kind])))}")


@pytest.fixture
def openenv_fake() -> Iterator[FakeCloud]:
    """A cloud of this test's own; ``openenv_fake.provider()`` is a provider class for it."""
    from openenv_sandbox.testing.fake_cloud import FakeCloud

    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def openenv_env() -> Iterator[Callable[..., SyncEnvClient[Any, Any, Any]]]:
    """Launches environments for one test; each call gives a connected blocking client.

    Takes what `openenv_sandbox.launch` takes, ``"./envs/echo_env"`` for one, with the local backend by default;
    ``client=`` gives its class. Everything is removed when the test ends.
    """
    from openenv_sandbox import launch

    clients: list[SyncEnvClient[Any, Any, Any]] = []

    def start(image: Any = None, **arguments: Any) -> SyncEnvClient[Any, Any, Any]:
        client: SyncEnvClient[Any, Any, Any] = launch(image, **{"provider": "local", **arguments}).sync()
        clients.append(client)
        return client

    try:
        yield start
    finally:
        _close(clients)


def _close(clients: list[SyncEnvClient[Any, Any, Any]]) -> None:
    """Close all of them, whatever one of them raises; the first error is raised at the end."""
    errors = []
    for client in reversed(clients):
        try:
            client.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
