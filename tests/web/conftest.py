"""One browser for a module; what is wrong with a page fails the test that opened it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.web.browser import Someone, chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def someone(browser: Browser) -> Iterator[Callable[..., Someone]]:
    """Opens the page as a new person: ``someone(base)``."""
    people: list[Someone] = []

    def come(base: str, **options: Any) -> Someone:
        people.append(Someone(browser, base, **options))
        return people[-1]

    yield come
    for each in people:
        each.leave()
