"""The interfaces that older code starts servers by, and the docker backend behind one of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import httpx

from openenv_sandbox.client.launched import Launched
from openenv_sandbox.errors import ReadyTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from openenv_sandbox.events import Event
    from openenv_sandbox.request import Which


class ContainerProvider(ABC):
    """Starts a server from an image; a client that is given one calls its methods by itself."""

    @abstractmethod
    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start a server of ``image``; returns its address."""

    @abstractmethod
    def stop_container(self) -> None:
        """End it."""

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until the server answers ``/health``.

        Raises:
            ReadyTimeout: It did not within ``timeout_s`` seconds.
        """
        wait_for_health(base_url, timeout_s)

    def close(self) -> None:
        """End whatever was started."""
        self.stop_container()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RuntimeProvider(ABC):
    """Starts a server that needs no image."""

    @abstractmethod
    def start(self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any) -> str:
        """Start the server; returns its address."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""

    @abstractmethod
    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server answers.

        Raises:
            ReadyTimeout: It did not within ``timeout_s`` seconds.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class LaunchedContainer(ContainerProvider):
    """A container provider on one of our backends: private, journalled, and gone with the process.

    A client made with the address in the same process knows the headers and the token it takes; other programs do not.

    Args:
        backend: Name of the backend, or its class.
        options: Its options.
        fields: Fields of the spec for every start.
    """

    def __init__(self, backend: Which, options: Mapping[str, Any] | None = None, **fields: Any) -> None:
        self._launched = Launched(backend)
        self._options = dict(options or {})
        self._fields = fields
        self._on_event: Callable[[Event], object] | None = None

    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start a server of ``image`` and wait until it answers.

        Args:
            image: What `openenv_sandbox.launch` takes.
            port: Where the server listens in the sandbox; None for the image's own.
            env_vars: Environment of the server.
            kwargs: Further fields of the spec.

        Returns:
            The server's address.

        Raises:
            UsageError: One was started before and not stopped.
            OpenEnvError: What `openenv_sandbox.launch` raises.
        """
        fields = {**self._fields, **kwargs, "port": port}
        fields["env"] = {**(self._fields.get("env") or {}), **(env_vars or {})}
        return self._launched.start(image, options=self._options, on_event=self._on_event, **fields)

    def stop_container(self) -> None:
        """Delete the sandbox."""
        self._launched.stop()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Return at once: `start_container` returns when the server answers."""

    @property
    def sandbox(self) -> Any:
        """The `openenv_sandbox.RunningSandbox` behind it; None where there is none."""
        return self._launched.sandbox


class LocalDockerProvider(LaunchedContainer):
    """Containers of the local docker daemon."""

    def __init__(self) -> None:
        super().__init__("docker")

    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start a container of ``image``.

        Args:
            image: A reference the daemon has or can pull, or an environment's folder.
            port: Port of this machine at which it is published; None for a free one.
            env_vars: Environment of the server.
            kwargs: Further fields of the spec.

        Returns:
            The server's address.

        Raises:
            UsageError: One was started before and not stopped.
            OpenEnvError: What `openenv_sandbox.launch` raises.
        """
        return self._launched.start(image, options={"host_port": port}, env=dict(env_vars or {}), **kwargs)


def wait_for_health(base_url: str, timeout_s: float) -> None:
    """Ask ``/health`` until it answers with success.

    Raises:
        ReadyTimeout: It did not within ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    last = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            answer = httpx.get(f"{base_url.rstrip('/')}/health", timeout=min(left, 5.0), trust_env=False)
            if answer.is_success:
                return
            last = f"HTTP {answer.status_code}"
        except httpx.HTTPError as error:
            last = str(error) or type(error).__name__
        time.sleep(min(0.1, max(left, 0.0)))
    raise ReadyTimeout(f"{base_url} did not answer /health within {timeout_s:g} s: {last}", hint="look at its log")
