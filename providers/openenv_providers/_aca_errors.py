"""What the Azure SDK raises, as ours: one table for every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox import backend_kit
from openenv_sandbox.backend_kit import Row
from openenv_sandbox.errors import (
    AuthError,
    ConfigError,
    ExecError,
    ImageError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    SandboxGone,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from openenv_sandbox.errors import Outcome
    from openenv_sandbox.provider import SandboxRef

T = TypeVar("T")
NAME = "aca"
LOGIN = "az login, the variables of a service principal, or the option credential"
_ROLE = "it needs the role 'Container Apps SandboxGroup Data Owner' on the group; a fresh one takes minutes to apply"

_TABLE: Mapping[int, Row] = {
    401: Row(AuthError, hint=f"log in again: {LOGIN}"),
    403: Row(AuthError, hint=_ROLE),
    409: Row(ProviderError, True, "another operation on it is going on"),
    413: Row(ProviderError, hint="it is larger than the service takes"),
    429: Row(RateLimited, True),
    500: Row(ProviderUnavailable, True),
}
_NOT_RUNNING = "SandboxNotRunning"


class Suspended(ExecError):
    """The sandbox stands still and takes no command; a class of its own, because that says nothing of its shell."""


async def ours(
    call: Awaitable[T],
    what: str,
    *,
    ref: SandboxRef | None = None,
    gone: type[OpenEnvError] | None = None,
    acts: bool = False,
) -> T:
    """Await one call of the SDK.

    Args:
        call: The call.
        what: What it does, for messages.
        ref: Its sandbox.
        gone: What 404 means; None: the sandbox is gone where ``ref`` is given, else the group is.
        acts: It may have had an effect although no answer came.

    Raises:
        OpenEnvError: By the table.
    """
    try:
        return await call
    except OpenEnvError:
        raise
    except Exception as error:
        raise translate(error, what, ref=ref, gone=gone, acts=acts) from error


def translate(
    error: Exception,
    what: str,
    *,
    ref: SandboxRef | None = None,
    gone: type[OpenEnvError] | None = None,
    acts: bool = False,
) -> OpenEnvError:
    """Our error for one of the SDK's."""
    from azure.core import exceptions as azure

    code, text = _said(error)
    where: dict[str, Any] = {"provider": NAME, "ref": ref}
    message = f"{what}: {code}: {text}" if code and code not in text else f"{what}: {text}"
    unknown: Outcome = "unknown" if acts else "failed"
    status = getattr(error, "status_code", None)
    if isinstance(error, azure.ClientAuthenticationError) and status is None:
        # Entra's own refusal has a number; without one there was nothing to show it.
        cls = AuthError if "AADSTS" in text else ProviderUnavailable
        return cls(f"{what}: no login works: {text}", hint=LOGIN, **where)
    if isinstance(error, azure.ServiceRequestError):
        tls = "CERTIFICATE_VERIFY_FAILED" in text
        hint = "ca_file names the authority of a private gateway" if tls else "check region, DNS and proxy"
        return ProviderUnavailable(f"{what}: no connection: {text}", retryable=not tls, hint=hint, **where)
    if isinstance(error, (TimeoutError, RuntimeError)):  # the SDK's own waiting for a state
        return ProviderError(message, retryable=isinstance(error, TimeoutError), outcome=unknown, **where)
    if isinstance(error, ValueError) and not isinstance(error, UnicodeError):  # the SDK refuses before it sends
        return ConfigError(message, **where)
    if status is None:
        return ProviderUnavailable(f"{what}: the answer was lost: {text}", outcome=unknown, retryable=True, **where)
    if status == 404:
        return _gone(message, ref, gone)
    if status == 409 and code == _NOT_RUNNING:
        return Suspended(message, hint="it is paused: resume it first", **where)
    said = f"{code}: {text}" if code and code not in text else text
    return backend_kit.translate(error, what=what, acted=acts, said=said, table=_TABLE, **where)


def _gone(message: str, ref: SandboxRef | None, gone: type[OpenEnvError] | None) -> OpenEnvError:
    if gone is not None or ref is not None:
        return (gone or SandboxGone)(message, provider=NAME, ref=ref)
    hint = "does the sandbox group exist in this subscription, resource group and region?"
    return ProviderUnavailable(message, provider=NAME, hint=hint)


def _said(error: Exception) -> tuple[str, str]:
    """The service's code and text; what else there is, in one line."""
    from openenv_sandbox.redact import clean, mask

    told = getattr(error, "error", None)
    code, text = getattr(told, "code", None), getattr(told, "message", None)
    plain = str(text or getattr(error, "message", None) or error or type(error).__name__)
    return str(code or ""), clean(mask(" ".join(plain.split())))[:500]


def disk_error(message: str, log: str) -> OpenEnvError:
    """Why a disk image could not be made, by the only thing that is told: a text."""
    from openenv_sandbox.errors import BuildError

    low = log.lower()
    if any(word in low for word in ("unauthorized", "denied", "authentication required", "forbidden")):
        hint = "registry_auth= holds a login, the options pull_identity and pull_registry an identity that may pull"
        return ImageError(message, provider=NAME, hint=hint)
    if any(word in low for word in ("not found", "manifest unknown", "does not exist", "name unknown", "no such")):
        return ImageError(message, provider=NAME, hint="the service pulls it itself: give a ref that a registry has")
    return BuildError(message, log=log, provider=NAME)
