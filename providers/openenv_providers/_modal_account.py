"""One login to modal: its client, its app, how long a request may take, and modal's errors as ours.

What importing modal does, and what is done about it: it reads ``~/.modal.toml``, gives its logger ``modal-client`` a
handler on stderr (warnings only), registers one exit hook that ends its thread, and puts a filter for its own
deprecation warnings in front. It installs no signal handler and starts no thread. Only its blocking face installs a
SIGINT handler and prints; neither is used here: every call is the ``.aio`` form, which runs on modal's own loop in
a daemon thread that starts with the first call. After a fork that thread is not there: the child makes a client of
its own.

Left alone, modal waits without end when it is told to slow down. ``MODAL_MAX_THROTTLE_WAIT`` is therefore set to 0
for this process unless the user set it: the refusal reaches core, which waits within the caller's timer. Its three
repetitions of a failed request and its 63 s of trying to connect stay, inside ``timeout_s``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox import errors as ours
from openenv_sandbox.backend_kit import digest
from openenv_sandbox.lifecycle import keep
from openenv_sandbox.redact import clean, mask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from openenv_sandbox.provider import SandboxRef

T = TypeVar("T")
NAME = "modal"
TOKEN_HINT = "modal token new, or export MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
_OAUTH = ("oauth_refresh_token", "oauth_client_id", "oauth_client_secret", "oauth_jwt_key")
_MONEY = ("spend", "budget", "billing", "payment", "credit", "plan ")


def missing_login(profile: str | None) -> str:
    """Why there is no login, "" when there is one; reads variables and the file, without the SDK."""
    named = profile or os.environ.get("MODAL_PROFILE")
    if profile is None:
        token = [name for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET") if os.environ.get(name)]
        if len(token) == 2 or os.environ.get("MODAL_OAUTH_REFRESH_TOKEN"):
            return ""
    path = Path(os.environ.get("MODAL_CONFIG_PATH") or os.path.expanduser("~/.modal.toml"))
    profiles = _read(path)
    if named is None:
        active = [name for name, values in profiles.items() if isinstance(values, dict) and values.get("active")]
        named = active[0] if active else "default"
    found = profiles.get(named)
    if isinstance(found, dict) and (
        found.get("oauth_refresh_token") or (found.get("token_id") and found.get("token_secret"))
    ):
        return ""
    if profile is not None:
        return f"the profile {profile!r} in {path} has no token"
    return "MODAL_TOKEN_ID, MODAL_TOKEN_SECRET not set" + (
        f", and no token for {named!r} in {path}" if profiles else ""
    )


def _read(path: Path) -> Mapping[str, Any]:
    import importlib
    import sys

    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        found: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {}


class Account:
    """A client of this process's own, never modal's global one.

    Args:
        profile: Section of ``~/.modal.toml``; None for the variables and the active one.
        environment: Environment of the workspace; None for the login's.
        app: Name of the app that holds the sandboxes.
        timeout_s: For one request, repetitions and connecting included, in seconds.
    """

    def __init__(self, profile: str | None, environment: str | None, app: str, timeout_s: float) -> None:
        os.environ.setdefault("MODAL_MAX_THROTTLE_WAIT", "0")
        self.profile, self.app_name, self.timeout_s = profile, app, timeout_s
        self.environment = environment or self._setting("environment") or None
        self._pid = os.getpid()
        self._client: Any = None
        self._made: list[Any] = []
        self._app: Any = None
        self._connecting: weakref.WeakKeyDictionary[Any, asyncio.Task[Any]] = weakref.WeakKeyDictionary()

    def _setting(self, key: str) -> Any:
        from modal.config import config

        return config.get(
            key, profile=self.profile, use_env=self.profile is None or not key.startswith(("token", "oauth"))
        )

    def scope(self) -> str:
        """Service, login, environment and app. The login is a digest of its public half."""
        who = str(self._setting("token_id") or self._setting("oauth_client_id") or "")
        return f"{self._setting('server_url')} login-{digest(who)} {self.environment or 'default'} {self.app_name}"

    async def client(self) -> Any:
        """The client, made when first asked for.

        Raises:
            AuthError: There is no login.
            ProviderUnavailable: The service does not answer.
        """
        if self._pid != os.getpid():  # a forked child: the parent's connections are not its own
            self._pid, self._client, self._app = os.getpid(), None, None
            self._made.clear()
        if self._client is None:
            loop = asyncio.get_running_loop()
            task = self._connecting.get(loop)
            if task is None or task.done():
                # A connection that is given up half way stays open inside the SDK: it is always brought to its end.
                task = self._connecting[loop] = keep(self._connect(), name="openenv-modal-connect")
            made = await asyncio.shield(task)
            if all(made is not one for one in self._made):
                self._made.append(made)
            self._client = self._client or made
        return self._client

    async def _connect(self) -> Any:
        import modal

        token = (self._setting("token_id"), self._setting("token_secret"))
        refresh, client_id, secret, jwt = (self._setting(key) for key in _OAUTH)
        if all(token):
            return await self.call("connecting", modal.Client.from_credentials.aio(*token))
        if refresh and client_id:
            login = {"oauth_client_id": client_id, "oauth_client_secret": secret, "oauth_jwt_key": jwt}
            return await self.call("connecting", modal.Client.from_oauth_credentials.aio(refresh, **login))
        raise ours.AuthError(
            f"no login: {missing_login(self.profile) or 'the token is incomplete'}", provider=NAME, hint=TOKEN_HINT
        )

    async def app(self, *, create: bool) -> Any:
        """The app that holds our sandboxes; None where there is none and ``create`` is not said."""
        import modal

        client = await self.client()
        if self._app is None:
            found = modal.App.lookup.aio(
                self.app_name, client=client, environment_name=self.environment, create_if_missing=create
            )
            try:
                self._app = await self.call(f"looking up the app {self.app_name}", found)
            except NotThere:
                if create:
                    raise
        return self._app

    async def call(
        self,
        what: str,
        request: Awaitable[T],
        *,
        ref: SandboxRef | None = None,
        started: bool = False,
        timeout: float | None = None,
    ) -> T:
        """Await one request within a time, and turn what it raises into our errors.

        Args:
            what: For messages.
            request: A call of the SDK.
            ref: The sandbox it is about.
            started: It may have had an effect although it failed.
            timeout: Seconds; None for the option's.
        """
        limit = self.timeout_s if timeout is None else timeout
        try:
            return await asyncio.wait_for(request, limit)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise ours.ProviderUnavailable(
                f"{what}: modal did not answer within {limit:g} s",
                provider=NAME,
                ref=ref,
                outcome="unknown" if started else "failed",
                retryable=True,
                hint="the option timeout_s, or the state of the network and of status.modal.com",
            ) from error
        except ours.OpenEnvError:
            raise
        except Exception as error:
            raise translate(error, what=what, ref=ref, started=started) from error

    async def aclose(self) -> None:
        """Close the client. In a forked child there is none to close."""
        made, self._made, self._client, self._app = self._made, [], None, None
        task = self._connecting.pop(asyncio.get_running_loop(), None)
        if task is not None:
            await asyncio.wait({task}, timeout=5)
            if task.done() and not task.cancelled() and task.exception() is None:
                made.append(task.result())
        for client in made if self._pid == os.getpid() else ():
            with contextlib.suppress(Exception):  # closing twice is fine
                await asyncio.wait_for(client.close.aio(), 5)


class NotThere(ours.ProviderError):
    """What was named does not exist."""


def translate(
    error: BaseException, *, what: str, ref: SandboxRef | None = None, started: bool = False
) -> ours.OpenEnvError:
    """Modal's error as ours: the one table.

    ============================================  ===========================================================
    modal                                         ours
    ============================================  ===========================================================
    AuthError, PermissionDeniedError              AuthError
    NotFoundError                                 SandboxGone about a sandbox, else NotThere
    ConflictError                                 SandboxGone about a sandbox, else ProviderError
    ResourceExhaustedError                        RateLimited; QuotaExceeded when it is about money
    InvalidError, UnimplementedError              ProviderError, certainly without effect
    ServiceError UNAVAILABLE, ConnectionError     ProviderUnavailable, retryable
    every other ServiceError, InternalError       ProviderError, retryable
    ============================================  ===========================================================
    """
    import modal.exception as theirs

    text = clean(mask(f"{what}: {str(error) or type(error).__name__}"))
    unknown: Any = "unknown" if started else "failed"
    say: dict[str, Any] = {"provider": NAME, "ref": ref}
    if isinstance(error, (theirs.AuthError, theirs.PermissionDeniedError)):
        return ours.AuthError(text, hint=TOKEN_HINT, **say)
    if isinstance(error, theirs.NotFoundError):
        return ours.SandboxGone(text, **say) if ref is not None else NotThere(text, **say)
    if isinstance(error, theirs.ResourceExhaustedError):
        wait = _retry_after(error)
        if wait is None and any(word in text.lower() for word in _MONEY):
            return ours.QuotaExceeded(text, hint="raise the limit of the workspace", **say)
        return ours.RateLimited(text, retry_after=wait, **say)
    if isinstance(error, theirs.ConflictError):
        return ours.SandboxGone(text, **say) if ref is not None else ours.ProviderError(text, **say)
    if isinstance(error, (theirs.InvalidError, theirs.UnimplementedError, theirs.VersionError)):
        return ours.ProviderError(text, **say)
    status = getattr(getattr(error, "_grpc_status", None), "name", "")
    down = status == "UNAVAILABLE" or isinstance(error, (theirs.ConnectionError, theirs.ClientClosed, OSError))
    kind = ours.ProviderUnavailable if down else ours.ProviderError
    ended = type(error).__name__ == "StreamTerminatedError"
    known = isinstance(error, theirs.Error) or down or ended
    return kind(text, outcome=unknown, retryable=known, **say)


def _retry_after(error: BaseException) -> float | None:
    """What the service asked for, in seconds; it comes as a detail of the gRPC status."""
    for detail in getattr(error, "_grpc_details", None) or ():
        seconds = getattr(detail, "retry_after_secs", None)
        if seconds is not None:
            return float(seconds)
    return None
