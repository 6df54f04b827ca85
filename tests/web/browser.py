"""A server in a thread and people in Chromium, who complain about everything that is wrong with a page."""

from __future__ import annotations

import asyncio
import shutil
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.server.peers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an application in a thread of its own; yields its address."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        stop = asyncio.Event()
        async with serving(app, port=port) as running:
            found.update(port=running.port, loop=asyncio.get_running_loop(), stop=stop)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="served")
    thread.start()
    try:
        assert ready.wait(20)
        yield f"http://localhost:{found['port']}"
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(30)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that is installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield browser
        browser.close()


class Someone:
    """A person at a browser of his own. Requests elsewhere are stopped.

    Attributes:
        wrong: What he would complain about: other hosts, violations of the policy, errors of scripts.
    """

    def __init__(self, browser: Browser, base: str, **options: Any) -> None:
        self.base = base
        self.wrong: list[str] = []
        self.context: BrowserContext = browser.new_context(
            viewport={"width": 1360, "height": 950}, accept_downloads=True, **options
        )
        self.context.set_default_timeout(8000)
        self.context.route("**/*", self._route)
        self.page = self.open("/web")

    def open(self, path: str) -> Page:
        """A tab."""
        page = self.context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.goto(self.base + path)
        return page

    def _route(self, route: Route) -> None:
        if route.request.url.startswith((self.base + "/", "data:", "blob:")):
            route.continue_()
        else:
            self.wrong.append(f"request: {route.request.url}")
            route.abort()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            self.wrong.append(f"policy: {message.text}")

    def leave(self) -> None:
        """Close everything; fails if anything was wrong."""
        self.context.close()
        assert self.wrong == []


def reset(page: Page) -> None:
    """Start an episode and wait until it runs."""
    page.get_by_role("button", name="Reset", exact=True).click()
    page.locator("#status[data-kind=live]").wait_for()


def step(page: Page, number: int) -> None:
    """Take a step and wait until it is the last one."""
    from playwright.sync_api import expect

    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.locator("#steps")).to_have_text(str(number))


def fill(page: Page, **fields: Any) -> None:
    """Fill the fields of the action's form that have these labels."""
    for label, value in fields.items():
        page.locator("#fields").get_by_label(label, exact=False).first.fill(str(value))
