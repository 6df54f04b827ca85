"""The built site: no link is broken, nothing is loaded from elsewhere, and the search works without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.full
# What a browser fetches by itself; a link is followed by people.
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a line for each request."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Loaded(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address that a tag loads."""
        values = dict(attrs)
        address = values.get(LOADS.get(tag, ""))
        if address and values.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join(30)
    server.server_close()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert any(address.endswith(".js") for address in loaded.found), page
        assert [a for a in loaded.found if a.startswith(("http:", "https:", "//"))] == [], page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text
        assert "url(//" not in text


@pytest.mark.browser
def test_the_search_works_without_a_network(address: str) -> None:
    from tests.web.browser import chromium

    elsewhere: list[str] = []

    def local_only(route: Any) -> None:
        if route.request.url.startswith((address, "data:", "blob:")):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    with chromium() as browser:
        page = browser.new_page()
        page.route("**/*", local_only)
        page.goto(address)
        page.locator("input.md-search__input").fill("CircuitOpen")
        page.wait_for_selector(".md-search-result__item", state="attached", timeout=30_000)
        titles = page.locator(".md-search-result__item").all_inner_texts()
    assert any("Errors" in title for title in titles), titles
    assert elsewhere == []
