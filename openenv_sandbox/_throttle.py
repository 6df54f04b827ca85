"""Recognising, in any SDK's exception, that the backend asks for patience or that an account limit is reached.

SDKs are looked at by shape, never imported: a status number, headers, a gRPC code, and last the text.
"""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import ProviderError, QuotaExceeded, RateLimited

if TYPE_CHECKING:
    from collections.abc import Mapping

_SLOW_DOWN = re.compile(
    r"too many requests|rate.?limit|throttl|slow ?down|request limit exceeded|RESOURCE_EXHAUSTED|\b429\b", re.IGNORECASE
)
_ACCOUNT = re.compile(
    r"quota|billing|payment required|insufficient (?:credit|fund|balance)|out of credits|spending limit|plan limit"
    r"|(?:total|maximum|disk|memory|cpu|gpu|storage|sandbox|account|organi[sz]ation)[\w ]{0,24} limit "
    r"(?:exceeded|reached)",
    re.IGNORECASE,
)
_PER_TIME = re.compile(r"per (?:second|minute|hour|day)|/(?:s|sec|min|hour)\b", re.IGNORECASE)


def throttled(error: BaseException, *, provider: str) -> ProviderError | None:
    """`RateLimited` or `QuotaExceeded` if that is what ``error`` says, else None.

    Rate limited: status 429; 503 with Retry-After; gRPC RESOURCE_EXHAUSTED; a text such as "too many requests".
    Quota: status 402, or a text that names an account's limit. A limit per unit of time lifts by waiting, whatever it
    is called. Both certainly had no effect.
    """
    from openenv_sandbox.redact import clean, mask

    if isinstance(error, (RateLimited, QuotaExceeded)):
        return error
    status, code, wait = status_of(error), grpc_code(error), retry_after(error)
    text = clean(mask(str(error)))[:500]
    quota = status == 402 or (bool(_ACCOUNT.search(text)) and not _PER_TIME.search(text))
    if quota and wait is None and (status in (None, 400, 402, 403, 409, 422, 429) or code):
        return QuotaExceeded(
            f"an account limit is reached: {text or status}",
            provider=provider,
            hint="free or raise it at the provider; waiting does not lift it",
        )
    explicit = status == 429 or code == "RESOURCE_EXHAUSTED" or (status == 503 and wait is not None)
    if explicit or (status in (None, 400, 403, 500, 503) and _SLOW_DOWN.search(text)):
        return RateLimited(f"the backend asks to slow down: {text or status}", provider=provider, retry_after=wait)
    return None


def status_of(error: BaseException) -> int | None:
    """The HTTP status an SDK's exception carries, by whichever attribute it has; None when there is none."""
    response = getattr(error, "response", None)
    for holder, names in (
        (error, ("status_code", "status", "http_status", "code")),
        (response, ("status_code", "status")),
    ):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, str) and value.isdecimal():
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
                return int(value)
    return None


def grpc_code(error: BaseException) -> str | None:
    """``RESOURCE_EXHAUSTED`` and the like from grpc, grpclib or connect shaped exceptions; None for any other."""
    for name in ("code", "status", "grpc_status"):
        value: Any = getattr(error, name, None)
        if callable(value):
            try:
                value = value()
            except Exception:
                continue
        label = getattr(value, "name", value)
        if isinstance(label, str) and re.fullmatch(r"[A-Za-z]+(_[A-Za-z]+)*", label):
            return label.upper()
    return None


def retry_after(error: BaseException, *, now: float | None = None) -> float | None:
    """Seconds the backend asks to wait; None when it does not say. Seconds, milliseconds and HTTP dates are read."""
    direct = getattr(error, "retry_after", None)
    if isinstance(direct, (int, float)) and not isinstance(direct, bool):
        return max(0.0, float(direct))
    for holder in (error, getattr(error, "response", None)):
        headers = _lower(getattr(holder, "headers", None)) or _lower(_trailing(holder))
        found = parse_retry_after(headers, now=now)
        if found is not None:
            return found
    return None


def parse_retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """The seconds that lower-case ``headers`` ask to wait; None when they do not say."""
    milliseconds = headers.get("retry-after-ms", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", milliseconds):
        return float(milliseconds) / 1000
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if text:
        try:
            when = parsedate_to_datetime(text).timestamp()
        except (TypeError, ValueError):
            return None
        return max(0.0, when - (time.time() if now is None else now))
    return None


def _lower(headers: Any) -> dict[str, str]:
    try:
        pairs = headers.items() if hasattr(headers, "items") else headers or ()
        return {str(name).lower(): str(value) for name, value in pairs}
    except (TypeError, ValueError):
        return {}


def _trailing(holder: Any) -> Any:
    call = getattr(holder, "trailing_metadata", None)
    if not callable(call):
        return None
    try:
        return call()
    except Exception:
        return None
