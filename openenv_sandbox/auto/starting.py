"""A server that is started by the first call of the client it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Start:
    """What an `EnvClient` takes as ``provider``: started with no further argument, stopped when the client is closed.

    Args:
        image: What is started.
        provider: The caller's own object with ``start_container`` or ``start``; None for the docker backend.
        timeout: How long it may take until it answers, in seconds.
        env: Environment of the server.
        trust: The image's source was vouched for.
        more: Further arguments: of the provider's method, or fields of the spec.
    """

    def __init__(
        self,
        image: str,
        provider: Any,
        timeout: float,
        env: Mapping[str, str] | None,
        trust: bool,
        more: Mapping[str, Any],
    ) -> None:
        self.image, self.provider, self.timeout = image, provider, timeout
        self._env, self._trust, self._more = dict(env or {}), trust, dict(more)
        self._launched: Any = None

    def start_container(self) -> str:
        """Start it; returns its address.

        Raises:
            ConfigError: The provider has no method that starts.
            OpenEnvError: What `openenv_sandbox.launch` raises.
        """
        if self.provider is None:
            from openenv_sandbox.client.launched import Launched

            self._launched = Launched("docker")
            fields = {"timeouts": {"ready": self.timeout}, "trust": self._trust or None, **self._more}
            return str(self._launched.start(self.image, env=self._env, **fields))
        if hasattr(self.provider, "start_container"):
            return str(self.provider.start_container(self.image, env_vars=self._env, **self._more))
        if hasattr(self.provider, "start"):
            return str(self.provider.start(env_vars=self._env, **self._more))
        raise ConfigError(f"{type(self.provider).__name__} has neither start_container() nor start()")

    def wait_for_ready(self, base_url: str) -> None:
        """Wait as the provider does; our own start returns when the server answers."""
        ready = getattr(self.provider, "wait_for_ready", None)
        if ready is not None:
            if hasattr(self.provider, "start_container"):
                ready(base_url, self.timeout)
            else:
                ready(self.timeout)

    def stop_container(self) -> None:
        """End it."""
        ours = self._launched if self.provider is None else self.provider
        stop = getattr(ours, "stop_container", None) or getattr(ours, "stop", None)
        if stop is not None:
            stop()
