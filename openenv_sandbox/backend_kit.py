"""What most backends need besides the contract, written once; `docs/writing-a-backend.md` shows it at work.

    translate, refusal, Row       an SDK's exception, or a refused request, as one of our errors
    poll                          look until a state is reached, with back-off and a deadline
    PerLoop                       one client for each event loop, and its end
    undo                          remove what a failed create half made, and say how certain that is
    digest                        what of a login may stand in `SandboxProvider.scope`
    unix_time                     an ISO date as Unix time
    name_with, labels_in          labels in a name and back, for ``labels="name"``
    docker_config                 ``registry_auth`` as the file that container runtimes read

`openenv_sandbox.retry` has the parts below that: `status_of`, `retry_after`, `parse_retry_after`, `throttled`.
`openenv_sandbox.staging` writes a folder for the backend's builder. `openenv_sandbox.lifecycle` runs synchronous SDKs
(`CountedThreads`, `daemon_call`) and cleanup that survives cancellation (`finish`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from openenv_sandbox.backend_errors import Row, refusal, translate
from openenv_sandbox.errors import CapabilityError, OpenEnvError, RateLimited
from openenv_sandbox.values import EXPIRES, INSTALL, KEY, RUN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from openenv_sandbox.spec import RegistryAuth

T = TypeVar("T")
_CLOSE_S = 10.0

__all__ = [
    "PerLoop",
    "Row",
    "digest",
    "docker_config",
    "labels_in",
    "name_with",
    "poll",
    "refusal",
    "translate",
    "undo",
    "unix_time",
]


async def undo(removing: Awaitable[object], error: BaseException, *, timeout: float = 30.0) -> None:
    """Remove what a failed create half made; ``error`` says afterwards whether something may be left.

    Call it in ``except BaseException as error:`` and raise ``error`` again: it survives a cancellation.

    Args:
        removing: The delete.
        error: Why create failed.
        timeout: Seconds to wait for the delete, which goes on in the background past that.
    """
    from openenv_sandbox.lifecycle import finish

    async def remove() -> None:
        await removing

    result = await finish(remove(), timeout=timeout)
    if not isinstance(error, OpenEnvError):
        return
    error.outcome = "failed" if result.done and result.error is None else "unknown"
    if error.outcome == "unknown":
        why = getattr(result.error, "message", None) or str(result.error or f"no answer within {timeout:g} s")
        error.hint = f"{error.hint or ''} (removing it failed too: {why})".strip()


# ----------------------------------------------------------------------------------------------------------- waiting


async def poll(
    look: Callable[[], Awaitable[T]],
    until: Callable[[T], bool],
    *,
    deadline: float | None = None,
    first: float = 0.05,
    factor: float = 1.5,
    longest: float = 1.0,
) -> T:
    """Look until ``until`` holds; the answer for which it does.

    A look that fails and may succeed later is no news: it is repeated, not before the time that the backend asks for.

    Args:
        look: One request, with a timer of its own.
        until: Whether that is it; raises where what is waited for will never come.
        deadline: Seconds, None for ever (`Sandbox.wait_exit`). There is one last look at its end.
        first: Seconds between the first two looks.
        factor: By what the pause grows.
        longest: Where it stops growing, in seconds.

    Raises:
        TimeoutError: It did not come in time.
        OpenEnvError: A look failed for good, or the last one of all did.
    """
    loop, pause = asyncio.get_running_loop(), first
    end = None if deadline is None else loop.time() + deadline
    while True:
        failure: OpenEnvError | None = None
        wait = pause
        try:
            found = await look()
        except OpenEnvError as error:
            if not error.retryable:
                raise
            failure = error
            wait = max(pause, (error.retry_after or 0.0) if isinstance(error, RateLimited) else 0.0)
        else:
            if until(found):
                return found
        left = None if end is None else end - loop.time()
        if left is not None and left <= 0:
            raise failure or TimeoutError(f"not reached within {deadline:g} s")
        await asyncio.sleep(wait if left is None else min(wait, left))
        pause = min(pause * factor, longest)


class PerLoop(Generic[T]):
    """One client for each event loop, made when first used.

    Args:
        make: Makes it. Reading certificates blocks: `asyncio.to_thread` is the place for most constructors.
        close: Ends it.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[object]]) -> None:
        self._make, self._close = make, close
        self._made: dict[asyncio.AbstractEventLoop, asyncio.Future[T]] = {}
        self._closed: set[asyncio.AbstractEventLoop] = set()

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[T]:
        """The client of the running loop. What is still to be done after `aclose` has one of its own, for the block."""
        loop = asyncio.get_running_loop()
        if loop in self._closed:
            client = await self._make()
            try:
                yield client
            finally:
                await self._close(client)
            return
        making = self._made.get(loop)
        if making is None:
            self._made = {one: made for one, made in self._made.items() if not one.is_closed()}
            self._closed = {one for one in self._closed if not one.is_closed()}
            making = self._made[loop] = asyncio.ensure_future(self._make())
        try:
            # Whoever waits may be cancelled; the others get the client all the same.
            client = await asyncio.shield(making)
        except BaseException:
            if making.done() and self._made.get(loop) is making and (making.cancelled() or making.exception()):
                del self._made[loop]
            raise
        yield client

    async def aclose(self) -> None:
        """End the client of the running loop: within 10 seconds, else in the background. May be called twice."""
        from openenv_sandbox.lifecycle import finish

        loop = asyncio.get_running_loop()
        self._closed.add(loop)
        making = self._made.pop(loop, None)
        if making is None:
            return

        async def end() -> None:
            await asyncio.wait({making})
            if not making.cancelled() and making.exception() is None:
                await self._close(making.result())

        result = await finish(end(), timeout=_CLOSE_S)
        if result.error is not None:
            raise result.error


# ------------------------------------------------------------------------------------------------------- small facts


def digest(*secrets: str) -> str:
    """Twelve hex digits that tell one login from another and give nothing away; ``none`` where there is no login.

    For `SandboxProvider.scope` where nothing but the key names the account. With a new key comes a new scope: what the
    old one made is reported by gc as out of reach, never taken for gone.
    """
    text = "\0".join(secrets)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text.strip("\0") else "none"


def unix_time(text: Any) -> float | None:
    """Unix time of an ISO 8601 date, UTC where it names no offset; None for all that is none.

    Python 3.10 reads neither ``Z`` nor fractions of any length.
    """
    form = r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?\s*(?:[Zz]|([+-])(\d\d):?(\d\d))?"
    found = re.match(form, str(text or ""))
    if found is None:
        return None
    whole = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=timezone.utc)
    ahead = timedelta(hours=int(found[5] or 0), minutes=int(found[6] or 0)) * (-1 if found[4] == "-" else 1)
    return (whole - ahead).timestamp() + float(found[3] or 0)


_NAME = re.compile(
    r"(?P<key>oe-(?P<run>[a-z0-9]+)-[a-z0-9]+)-(?P<install>[a-z0-9]+)-(?P<expires>\d+)(?:-(?P<more>[a-z2-7]+))?\Z"
)


def name_with(key: str, labels: Mapping[str, str], *, longest: int, provider: str) -> str:
    """A name of ``[a-z0-9-]`` that carries the key and all labels, for backends that keep no labels.

    Ours take 53 characters; what the user adds is coded in base 32.

    Args:
        key: From core.
        labels: The spec's.
        longest: How long a name may be.
        provider: Name of the backend.

    Raises:
        CapabilityError: It would be longer. Call it in ``fit`` too, so that this is known before create.
    """
    own = {KEY: key, RUN: key.split("-")[1]}
    more = {name: text for name, text in labels.items() if own.get(name) != text}
    name = f"{key}-{more.pop(INSTALL, 'none')}-{more.pop(EXPIRES, '0')}"
    if more:
        text = json.dumps(more, separators=(",", ":"), sort_keys=True)
        name += "-" + base64.b32encode(text.encode()).decode().rstrip("=").lower()
    if len(name) > longest:
        raise CapabilityError(
            f"{provider} keeps labels in the name, which has room for {longest} characters; these need {len(name)}",
            provider=provider,
            field="labels",
            hint="fewer or shorter labels",
        )
    return name


def labels_in(name: str) -> dict[str, str]:
    """The labels that `name_with` wrote into ``name``; none when it is not ours."""
    found = _NAME.match(name)
    if found is None:
        return {}
    labels = {f"oe-{part}": found[part] for part in ("key", "run", "install", "expires")}
    if found["more"]:
        try:
            labels |= json.loads(base64.b32decode(found["more"].upper() + "=" * (-len(found["more"]) % 8)))
        except ValueError:
            return {}
    return labels


def docker_config(image: str, login: RegistryAuth) -> str:
    """The text of a ``config.json`` with the login of ``image``'s registry: what kubelets and builders read. Secret."""
    from openenv_sandbox.image_registries import HUB, host_of

    host = host_of(image)
    pair = f"{login.username}:{login.password.get_secret_value()}"
    name = "https://index.docker.io/v1/" if host == HUB else host
    return json.dumps({"auths": {name: {"auth": base64.b64encode(pair.encode()).decode()}}})
