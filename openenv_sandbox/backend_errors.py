"""An SDK's exception, or a refused request, as one of our errors: the table that every backend begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from openenv_sandbox.errors import (
    AuthError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.errors import Outcome
    from openenv_sandbox.values import SandboxRef


class Row(NamedTuple):
    """What one HTTP status means.

    Attributes:
        cls: Our error.
        retryable: Whether the same request may succeed later.
        hint: What to do next.
        outcome: None: ``unknown`` for 5xx of a request that may have acted, else ``failed``.
    """

    cls: type[OpenEnvError]
    retryable: bool = False
    hint: str = ""
    outcome: Outcome | None = None


_ROWS: dict[int, Row] = {
    401: Row(AuthError, hint="is the key right, and of this endpoint?"),
    402: Row(QuotaExceeded, hint="free or raise it at the provider; waiting does not lift it"),
    403: Row(AuthError, hint="the key may not do this"),
    408: Row(ProviderUnavailable, True),
    409: Row(ProviderError, True, "it is changing its state; the same call succeeds once that has ended"),
    429: Row(RateLimited, True),
    502: Row(ProviderUnavailable, True),
    503: Row(ProviderUnavailable, True),
    504: Row(ProviderUnavailable, True),
}
# Of httpx, aiohttp, requests, urllib3, azure and the standard library: nothing was sent.
_NEVER_SENT = frozenset(
    "ConnectError ConnectTimeout PoolTimeout ClientConnectorError NewConnectionError NameResolutionError "
    "ServiceRequestError InvalidURL ConnectionRefusedError gaierror SSLCertVerificationError".split()
)


class _Said(Exception):
    """A refusal without what an SDK writes around it: its headers would be searched for words too."""

    def __init__(self, status: int, text: str, wait: float | None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, wait


def refusal(
    status: int,
    said: str,
    *,
    provider: str,
    what: str,
    ref: SandboxRef | None = None,
    acted: bool = False,
    retry_after: float | None = None,
    table: Mapping[int, Row] | None = None,
) -> OpenEnvError:
    """The error that a refused request means.

    ===================  ====================  =========  ==================================================
    status               error                 retryable  outcome
    ===================  ====================  =========  ==================================================
    401, 403             AuthError             no         failed
    402                  QuotaExceeded         no         failed; so is a text that names a limit of the account
    404, 410             SandboxGone           no         failed; without ``ref`` ProviderError
    408                  ProviderUnavailable   yes        failed
    409                  ProviderError         yes        failed
    429                  RateLimited           yes        failed; so is 503 with Retry-After, or "too many requests"
    502, 503, 504        ProviderUnavailable   yes        unknown if ``acted``
    other 5xx            ProviderError         yes        unknown if ``acted``
    everything else      ProviderError         no         failed
    ===================  ====================  =========  ==================================================

    Args:
        status: The HTTP status, 300 or more.
        said: The backend's own sentence; masked and shortened here.
        provider: Name of the backend.
        what: What was attempted, as the beginning of a sentence.
        ref: The sandbox it was about; None for all that is about none.
        acted: The request may have had an effect although no good answer came: a create, a delete.
        retry_after: Seconds to wait, from `openenv_sandbox.retry.retry_after`.
        table: Rows of this backend, which come before those above. One for 402 or 429 also decides what a text about
            limits means.
    """
    from openenv_sandbox.redact import clean, mask
    from openenv_sandbox.retry import throttled

    said = clean(mask(" ".join(said.split())))[:1000]
    text = f"{what}: {said}" if str(status) in said else f"{what}: {said or 'refused'} (status {status})"
    where: dict[str, Any] = {"provider": provider, "ref": ref}
    own = dict(table or {})
    limit = None if status in (402, 429) and status in own else throttled(_Said(status, said, retry_after), provider="")
    if isinstance(limit, RateLimited):
        return RateLimited(text, retry_after=retry_after, **where)
    if isinstance(limit, QuotaExceeded):
        return QuotaExceeded(text, hint=own[402].hint if 402 in own else limit.hint, **where)
    if status not in own and status in (404, 410) and ref is not None:
        return SandboxGone(text, **where)
    row = own.get(status) or _ROWS.get(status) or Row(ProviderError, status >= 500)
    if row.cls is RateLimited:
        where["retry_after"] = retry_after
    outcome = row.outcome or ("unknown" if acted and status >= 500 else "failed")
    return row.cls(text, retryable=row.retryable, hint=row.hint or None, outcome=outcome, **where)


def translate(
    error: Exception,
    *,
    provider: str,
    what: str,
    ref: SandboxRef | None = None,
    acted: bool = False,
    said: str | None = None,
    table: Mapping[int, Row] | None = None,
) -> OpenEnvError:
    """Our error for any exception of an SDK: by its status as `refusal` says, else by what became of the request.

    Without a status: a connection that was never made is `ProviderUnavailable`, failed; a reply that was lost is the
    same, unknown if ``acted``; both are retryable. An answer that cannot be read is `ProviderError`, not retryable.

    Args:
        error: What it raised; one of ours is returned as it is.
        provider: Name of the backend.
        what: What was attempted, as the beginning of a sentence.
        ref: The sandbox it was about.
        acted: The request may have had an effect although no good answer came.
        said: The sentence in the answer; None for the exception's text, which may hold more than is good.
        table: As for `refusal`.
    """
    from openenv_sandbox.retry import retry_after, status_of

    if isinstance(error, OpenEnvError):
        return error
    status = status_of(error)
    if status is not None and status >= 300:
        text = str(error) if said is None else said
        return refusal(
            status,
            text,
            provider=provider,
            what=what,
            ref=ref,
            acted=acted,
            retry_after=retry_after(error),
            table=table,
        )
    lost: Outcome = "unknown" if acted else "failed"
    kinds = {name for one in _causes(error) for name in (kind.__name__ for kind in type(one).__mro__)}
    kind = type(error.__cause__ or error).__name__
    where: dict[str, Any] = {"provider": provider, "ref": ref}
    if kinds & _NEVER_SENT:
        return ProviderUnavailable(f"{what}: {provider} cannot be reached ({kind})", retryable=True, **where)
    if isinstance(error, (ValueError, TypeError, LookupError, AttributeError)):
        text = f"{what}: the answer does not fit this version of the SDK ({kind})"
        return ProviderError(text, outcome=lost, hint="the backend's page names the tested version", **where)
    return ProviderUnavailable(f"{what}: {provider} did not answer ({kind})", retryable=True, outcome=lost, **where)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found
