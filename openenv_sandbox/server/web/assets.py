"""The files of the page, and the headers they are served with."""

from __future__ import annotations

import functools
import hashlib
import os
from base64 import b64encode
from pathlib import Path

FOLDER = Path(__file__).with_name("static")

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

FRAME_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data: 'self'; font-src data:; "
    "frame-ancestors 'self'"
)
"""For HTML of the environment: its own styles and embedded pictures, no scripts, no forms, no other origin."""


@functools.cache
def assets() -> dict[str, tuple[bytes, str]]:
    """Content and type of each file by name; read once, while the application is built."""
    return {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in sorted(FOLDER.iterdir())}


def asset(name: str) -> bytes:
    """Content of a file."""
    return assets()[name][0]


def login_page() -> tuple[bytes, dict[str, str]]:
    """The form that asks for the token, and its headers; it holds its style, as no other file is to be had there."""
    style = asset("base.css") + asset("login.css")
    page = asset("login.html").replace(b"<!--style-->", b"<style>%s</style>" % style)
    digest = b64encode(hashlib.sha256(style).digest()).decode()
    headers = {**page_headers(), "content-security-policy": f"{policy()}; style-src 'sha256-{digest}'"}
    return page, {**headers, "www-authenticate": "Bearer", "cache-control": "no-store"}


def policy() -> str:
    """The Content-Security-Policy of our page; a Space is shown in a frame of huggingface.co."""
    ancestors = "'self' https://huggingface.co" if os.environ.get("SPACE_ID") else "'self'"
    return (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        f"frame-ancestors {ancestors}"
    )


def page_headers() -> dict[str, str]:
    """Headers of our own pages and of what they load."""
    return {
        "content-security-policy": policy(),
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",  # with no-referrer a form would be sent with the Origin null
        "cache-control": "no-cache",
    }
