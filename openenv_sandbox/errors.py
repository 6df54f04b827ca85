"""Every error the library raises, in one tree.

    OpenEnvError
    ├── ConfigError (ValueError)              bad option, profile, file or environment variable
    ├── ImageError (ValueError)               the image string or folder cannot be understood
    ├── BuildError (RuntimeError)             preparing the image failed; carries the end of the build log
    ├── TrustError (PermissionError)          remote code or a trusted option that nobody has vouched for
    ├── ProviderError (RuntimeError)
    │   ├── UnknownProvider (LookupError)     no backend of that name
    │   ├── MissingExtraError (ImportError)   the backend's SDK is not installed
    │   ├── BrokenExtraError (ImportError)    the SDK is installed and fails to import
    │   ├── ProviderUnavailable               no daemon, executable or credential; or the service is down
    │   ├── AuthError (PermissionError)       the backend refused the credentials
    │   ├── CapabilityError (ValueError)      the spec asks for what the backend does not have
    │   ├── QuotaExceeded                     an account limit that waiting does not lift
    │   ├── RateLimited                       a limit that waiting lifts; carries ``retry_after``
    │   └── CircuitOpen                       too many sandboxes died young; creation is suspended
    ├── SandboxError (RuntimeError)
    │   ├── CreateTimeout (TimeoutError)
    │   ├── ReadyTimeout (TimeoutError)       the server never answered; carries the probe history
    │   ├── ServerExited                      the server process ended; carries exit code and last lines
    │   ├── SandboxGone                       the sandbox no longer exists
    │   ├── EndpointError (ConnectionError)   no way to the port
    │   ├── ExecError                         a command could not be run
    │   │   └── ExecTimeout (TimeoutError)    carries the output that arrived
    │   ├── FileError (OSError)               a file operation inside the sandbox failed
    │   └── CleanupError                      something may be left; carries the refs
    ├── JournalError (OSError)                the journal cannot be opened or trusted
    ├── GradingError (RuntimeError)            a rubric could not score; there is no reward, not one of 0
    ├── ClientError (RuntimeError)
    │   ├── ConnectError (ConnectionError)    no session was opened
    │   ├── SessionLost (ConnectionError)     the session ended and its state with it
    │   ├── StepTimeout (TimeoutError)        no answer in time; the session is closed
    │   ├── MessageTooLarge (ValueError)      over the limit of one end
    │   └── UsageError                        wrong loop, thread, process or face
    └── EnvironmentError_ (RuntimeError)      the server answered with an error frame; carries ``code``
        ├── CapacityError                     CAPACITY_REACHED
        ├── FactoryError                      FACTORY_ERROR
        ├── ActionInvalid (ValueError)        VALIDATION_ERROR
        ├── ExecutionError                    EXECUTION_ERROR: the environment itself raised
        ├── SerializationError (TypeError)    an observation or state that has no wire form
        └── ProtocolError                     any other code

An infrastructure failure is never turned into a reward: it is one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from openenv_sandbox.provider import SandboxRef

Outcome = Literal["failed", "unknown"]


class OpenEnvError(Exception):
    """Root of the tree.

    Args:
        message: What happened, without secrets.
        provider: Name of the backend, where one is involved.
        ref: The sandbox, where there is one.
        outcome: ``failed`` when the request certainly had no effect, ``unknown`` when it may have had one.
        retryable: Whether the same call may succeed later without any change.
        hint: What to do next, in one sentence.
    """

    default_outcome: ClassVar[Outcome] = "failed"
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        ref: SandboxRef | None = None,
        outcome: Outcome | None = None,
        retryable: bool | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.provider = provider if provider is not None else (ref.provider if ref is not None else None)
        self.ref = ref
        self.outcome: Outcome = outcome if outcome is not None else self.default_outcome
        self.retryable: bool = retryable if retryable is not None else self.default_retryable
        self.hint = hint

    def __str__(self) -> str:
        where = "".join(
            f" [{label} {value}]"
            for label, value in (("provider", self.provider), ("sandbox", self.ref.id if self.ref else None))
            if value and value not in self.message
        )
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.message}{where}{hint}"

    def __reduce__(self) -> tuple[Callable[..., OpenEnvError], tuple[type[OpenEnvError], str, dict[str, Any]]]:
        state = dict(self.__dict__)
        if self.ref is not None:
            state["ref"] = self.ref.without_state()
        return _rebuild, (type(self), self.message, state)


def _rebuild(cls: type[OpenEnvError], message: str, state: Mapping[str, Any]) -> OpenEnvError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class ConfigError(OpenEnvError, ValueError):
    """A setting is unknown, malformed or contradictory."""


class ImageError(OpenEnvError, ValueError):
    """The image cannot be understood, found or started as given."""


class BuildError(OpenEnvError, RuntimeError):
    """Preparing the image failed; ``log`` holds the last lines of the build output."""

    def __init__(self, message: str, *, log: str = "", **kw: Any) -> None:
        super().__init__(message, **kw)
        self.log = log

    def __str__(self) -> str:
        return super().__str__() + _tail(self.log, "end of the build log")


class TrustError(OpenEnvError, PermissionError):
    """Running this needs the user's word (``trust=True``, or the option in a place the user owns)."""


class ProviderError(OpenEnvError, RuntimeError):
    """The backend failed or refused."""


class UnknownProvider(ProviderError, LookupError):
    """No backend of that name is installed."""


class MissingExtraError(ProviderError, ImportError):
    """The backend's SDK is not installed; the hint is the exact install line."""


class BrokenExtraError(ProviderError, ImportError):
    """The backend's SDK is installed but does not import."""


class ProviderUnavailable(ProviderError):
    """The daemon, executable or credential is missing, or the service is unreachable."""


class AuthError(ProviderError, PermissionError):
    """The backend refused the credentials."""


class CapabilityError(ProviderError, ValueError):
    """The spec asks for what the backend cannot honour; raised before anything is created.

    Args:
        field: The spec field that cannot be honoured.
        alternatives: Names of backends that could.
    """

    def __init__(self, message: str, *, field: str = "", alternatives: Iterable[str] = (), **kw: Any) -> None:
        super().__init__(message, **kw)
        self.field = field
        self.alternatives = tuple(alternatives)


class QuotaExceeded(ProviderError):
    """An account limit that waiting does not lift."""


class RateLimited(ProviderError):
    """A limit that waiting lifts; ``retry_after`` is in seconds, None when the backend does not say."""

    default_retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.retry_after = retry_after


class CircuitOpen(ProviderError):
    """Creation is suspended because too many sandboxes of this provider died young; ``reasons`` says how."""

    def __init__(self, message: str, *, reasons: Iterable[str] = (), **kw: Any) -> None:
        super().__init__(message, **kw)
        self.reasons = tuple(reasons)


class SandboxError(OpenEnvError, RuntimeError):
    """Something about one sandbox failed."""


class CreateTimeout(SandboxError, TimeoutError):
    """The backend did not finish creating in time."""

    default_outcome = "unknown"


class ReadyTimeout(SandboxError, TimeoutError):
    """The server inside never answered ``/health``; ``attempts`` is the number of probes, ``last`` the last result."""

    def __init__(self, message: str, *, attempts: int = 0, last: str = "", log: str = "", **kw: Any) -> None:
        super().__init__(message, **kw)
        self.attempts, self.last, self.log = attempts, last, log

    def __str__(self) -> str:
        return super().__str__() + _tail(self.log, "last output of the server")


class ServerExited(SandboxError):
    """The server process ended.

    Args:
        exit_code: Its exit code; None when the backend does not say.
        log: Its last lines, control characters removed.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, log: str = "", **kw: Any) -> None:
        super().__init__(message, **kw)
        self.exit_code, self.log = exit_code, log

    def __str__(self) -> str:
        return super().__str__() + _tail(self.log, "last output of the server")


class SandboxGone(SandboxError):
    """The sandbox no longer exists."""


class EndpointError(SandboxError, ConnectionError):
    """The port inside the sandbox cannot be reached."""

    default_retryable = True


class ExecError(SandboxError):
    """A command could not be run, or its result could not be read."""


class ExecTimeout(ExecError, TimeoutError):
    """The command was ended at its deadline.

    Args:
        stdout: What arrived before.
        stderr: Likewise.
        tree_killed: Whether every process of the command is known to be gone.
    """

    def __init__(
        self, message: str, *, stdout: bytes = b"", stderr: bytes = b"", tree_killed: bool = True, **kw: Any
    ) -> None:
        super().__init__(message, **kw)
        self.stdout, self.stderr, self.tree_killed = stdout, stderr, tree_killed


class FileError(SandboxError, OSError):
    """A file operation inside the sandbox failed."""


class CleanupError(SandboxError):
    """Sandboxes may be left; ``left`` holds their refs."""

    default_outcome = "unknown"

    def __init__(self, message: str, *, left: Iterable[SandboxRef] = (), **kw: Any) -> None:
        super().__init__(message, **kw)
        self.left = tuple(ref.without_state() for ref in left)


class JournalError(OpenEnvError, OSError):
    """The journal cannot be opened, locked or trusted."""


class GradingError(OpenEnvError, RuntimeError):
    """A rubric could not score: there is no reward, which is not a reward of 0."""


class ClientError(OpenEnvError, RuntimeError):
    """The client could not do what was asked."""


class ConnectError(ClientError, ConnectionError):
    """No session was opened; ``status`` is the HTTP status that answered, None when nothing did."""

    default_retryable = True

    def __init__(self, message: str, *, status: int | None = None, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.status = status


class SessionLost(ClientError, ConnectionError):
    """The session ended and the environment's state with it; reset starts a new one.

    Args:
        close_code: The WebSocket close code, None when the connection was cut.
    """

    default_outcome = "unknown"

    def __init__(self, message: str, *, close_code: int | None = None, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.close_code = close_code


class StepTimeout(ClientError, TimeoutError):
    """The server did not answer in time; the session was closed so that no late reply can be misread."""

    default_outcome = "unknown"


class MessageTooLarge(ClientError, ValueError):
    """A message is over the limit of one end; says the size, the limit and the setting."""


class UsageError(ClientError):
    """The client was used from the wrong loop, thread, process or face."""


class EnvironmentError_(OpenEnvError, RuntimeError):
    """The server answered with an error frame.

    The text contains ``Server error: <message> (code: <code>)``, which existing scripts look for.
    """

    def __init__(self, message: str, *, code: str = "", data: Mapping[str, Any] | None = None, **kw: Any) -> None:
        super().__init__(message, **kw)
        self.code = code
        self.data = dict(data or {})


class CapacityError(EnvironmentError_):
    """Every session of the server is taken."""

    default_retryable = True


class FactoryError(EnvironmentError_):
    """The server could not construct its environment."""


class ActionInvalid(EnvironmentError_, ValueError):
    """The server rejected the message; ``data["errors"]`` lists the fields."""


class ExecutionError(EnvironmentError_):
    """The environment raised."""


class SerializationError(EnvironmentError_, TypeError):
    """A value has no wire form; the message names the field."""


class ProtocolError(EnvironmentError_):
    """The server answered with a code of another kind."""


def _tail(text: str, title: str) -> str:
    return f"\n--- {title} ---\n{text.rstrip()}" if text.strip() else ""
