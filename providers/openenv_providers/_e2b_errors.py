"""What the service of e2b, or of its fork novita, answered, as one of our errors.

Requests go through the SDK's own REST client, and refusals are taken from the reply before the SDK makes its exceptions
of them: those drop ``Retry-After``, some (``AuthenticationException``, ``ServiceBusyException``, ``BuildException``) do
not belong to its own base class, and a refusal that is no JSON, as proxies write it, is a bare ``ValueError``.

    no request sent    ProviderUnavailable   failed, retryable
    reply lost         ProviderUnavailable   unknown, retryable
    5xx                ProviderError         unknown, retryable; 502 and 504 ProviderUnavailable
                                             (both failed where something was only looked at)
    503                ProviderUnavailable   failed, retryable: the service says that nothing was changed
    401, 403           AuthError             failed
    402                QuotaExceeded         failed
    429                RateLimited           failed, retryable, with Retry-After; "maximum number of concurrent …" too:
                                             the end of another sandbox makes room, so it is waited for in turn
    404                SandboxGone, or ImageError where a template was named
    400 about timeouts CapabilityError       failed
    other 4xx          ProviderError         failed
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from openenv_sandbox.backend_kit import Row, refusal, translate
from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    ImageError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.redact import clean, mask
from openenv_sandbox.retry import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.errors import Outcome
    from openenv_sandbox.provider import SandboxRef

_CONCURRENT = re.compile(r"maximum number of concurrent|concurrent (sandbox|instance)", re.IGNORECASE)
_LIFETIME = re.compile(r"timeout", re.IGNORECASE)
_IN_FLIGHT = re.compile(r"tag .*does not exist|build .*(not|isn't) (ready|finished)|is being built", re.IGNORECASE)

_KEY = "the API key is wrong, or may not do this"
_TABLE = {
    401: Row(AuthError, hint=_KEY),
    402: Row(QuotaExceeded, hint="the account's plan or balance does not allow it"),
    403: Row(AuthError, hint=_KEY),
    409: Row(ProviderError),
    429: Row(RateLimited, True),
    503: Row(ProviderUnavailable, True, outcome="failed"),
}
_FULL = Row(
    RateLimited,
    True,
    "stop sandboxes or raise the account's limit; timeouts.create says how long a place is waited for",
)


class Refused(Exception):
    """A reply with a status of 300 or more."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.content = status, headers, content


async def refuse(response: Any) -> None:
    """Hook of the HTTP client.

    Raises:
        Refused: The service refuses.
    """
    if response.status_code >= 300:
        raise Refused(response.status_code, response.headers, await response.aread())


def said(content: bytes) -> str:
    """The service's own words."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    text = body.get("message") if isinstance(body, dict) else None
    return clean(mask(str(text or content.decode("utf-8", "replace"))))[:500]


def from_reply(
    status: int,
    headers: Any,
    content: bytes,
    *,
    provider: str,
    what: str,
    ref: SandboxRef | None,
    template: bool,
    acted: bool = True,
) -> OpenEnvError:
    """The error that a status of 300 or more means.

    Args:
        status: HTTP status.
        headers: Of the reply.
        content: Its body.
        provider: Name of the backend.
        what: The request, in words.
        ref: The sandbox it was about.
        template: Whether 404 speaks of a template.
        acted: Whether it may have had an effect.
    """
    text = said(content)
    message = f"{what}: {status} {text}".rstrip()
    wait = parse_retry_after({str(name).lower(): str(value) for name, value in headers.items()})
    kw: dict[str, Any] = {"provider": provider, "ref": ref}
    if status == 404 and template:
        if _IN_FLIGHT.search(text):
            return ProviderError(message, retryable=True, hint="its build is still running", **kw)
        return ImageError(message, hint="no such template in this account", **kw)
    if status == 404 and ref is not None:
        return SandboxGone(f"{what}: the sandbox does not exist (any more)", **kw)
    if status == 400 and _LIFETIME.search(text):
        hint = "shorten timeouts.lifetime or timeouts.episode, or raise the plan; option max_lifetime_s"
        return CapabilityError(message, field="timeouts.lifetime", hint=hint, **kw)
    table = {**_TABLE, 429: _FULL} if _CONCURRENT.search(text) else _TABLE
    return refusal(status, text, what=what, acted=acted, retry_after=wait, table=table, **kw)


def from_transport(
    error: Exception, *, provider: str, what: str, ref: SandboxRef | None, key: str, acted: bool
) -> OpenEnvError:
    """The error that a failed exchange means.

    Args:
        error: Of httpx, or of the SDK's reading of the reply.
        provider: Name of the backend.
        what: The request, in words.
        ref: The sandbox it was about.
        key: Environment variable that holds the API key.
        acted: Whether it may have had an effect.
    """
    import httpx

    kw: dict[str, Any] = {"provider": provider, "ref": ref}
    name = type(error).__name__
    if name == "AuthenticationException":  # raised before any request: there is no key
        return ProviderUnavailable(f"{what}: no API key", hint=f"export {key}=…", **kw)
    if isinstance(error, httpx.HTTPError):
        return translate(error, what=what, acted=acted, **kw)
    detail = clean(mask(f"{name}: {error}"))[:300]
    outcome: Outcome = "unknown" if acted else "failed"
    return ProviderError(f"{what}: the reply cannot be read ({detail})", outcome=outcome, retryable=True, **kw)
