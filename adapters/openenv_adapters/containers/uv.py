"""A server from an environment's folder, in a process of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_adapters.containers.providers import RuntimeProvider
from openenv_sandbox.client.launched import Launched
from openenv_sandbox.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Mapping


class UVProvider(RuntimeProvider):
    """A server of an environment's folder on the local backend, which makes the folder a virtual environment.

    Args:
        project_path: The folder; ``git+https://…`` and ``hf://…`` need ``trust=True`` at `start`.
        app: The application, ``module:attribute``; the folder's own way of starting where it is the default.
        host: Where it listens; only this machine reaches a local sandbox.
        reload: Not offered: a reload would end the episode that runs.
        env_vars: Environment of the server.
        context_timeout_s: Longest time to the first answer, in seconds.

    Raises:
        CapabilityError: ``reload`` is asked for.
    """

    def __init__(
        self,
        *,
        project_path: str,
        app: str = "server.app:app",
        host: str = "0.0.0.0",
        reload: bool = False,
        env_vars: Mapping[str, str] | None = None,
        context_timeout_s: float = 60.0,
    ) -> None:
        if reload:
            raise CapabilityError("UVProvider does not reload", field="reload", hint="openenv serve --reload")
        self._launched = Launched("local")
        self._project = project_path
        self._app, self._host = app, host
        self._env = dict(env_vars or {})
        self._timeout = context_timeout_s

    def start(
        self, port: int | None = None, env_vars: Mapping[str, str] | None = None, workers: int = 1, **kwargs: Any
    ) -> str:
        """Start the server and wait until it answers.

        Args:
            port: Where it listens in its sandbox; None for its own. The address that is returned may have another.
            env_vars: Further environment.
            workers: Processes; with more than one, sessions spread over them.
            kwargs: Further fields of the spec.

        Returns:
            Its address.

        Raises:
            OpenEnvError: What `openenv_sandbox.launch` raises.
        """
        fields: dict[str, Any] = {"port": port, "timeouts": {"ready": self._timeout}, **kwargs}
        if self._app != "server.app:app" or workers > 1:
            listen = ["--host", self._host, "--port", str(port or 8000), "--workers", str(workers)]
            fields["command"] = ["python", "-m", "uvicorn", self._app, *listen]
        return self._launched.start(self._project, env={**self._env, **(env_vars or {})}, **fields)

    def stop(self) -> None:
        """End it."""
        self._launched.stop()

    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        """Return at once: `start` returns when the server answers."""

    @property
    def sandbox(self) -> Any:
        """The `openenv_sandbox.RunningSandbox` behind it; None where there is none."""
        return self._launched.sandbox
