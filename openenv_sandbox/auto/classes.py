"""`AutoEnv` and `AutoAction`: the client and the classes of an environment by its name."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

from openenv_sandbox.auto import discovery
from openenv_sandbox.auto.starting import Start
from openenv_sandbox.errors import ConfigError, TrustError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.auto.discovery import EnvironmentInfo
    from openenv_sandbox.client import EnvClient

TRUST = "OPENENV_TRUST_REMOTE_CODE"
"""Set to 1, it vouches for code of the hub in every call of this process."""


class AutoEnv:
    """Clients of environments by name.

    env = AutoEnv.from_env("echo", base_url="http://localhost:8000")
    env = AutoEnv.from_env("org/space", trust_remote_code=True)
    """

    def __init__(self) -> None:
        raise TypeError("AutoEnv has no instances: AutoEnv.from_env('echo')")

    @classmethod
    def from_env(
        cls,
        name: str,
        base_url: str | None = None,
        docker_image: str | None = None,
        container_provider: Any = None,
        wait_timeout: float = 30.0,
        env_vars: Mapping[str, str] | None = None,
        trust_remote_code: bool = False,
        skip_install: bool = False,
        **kwargs: Any,
    ) -> EnvClient[Any, Any, Any]:
        """A client of an environment. What is to be started is started by its first call, and ends with it.

        With a name of the hub this blocks until its package is fetched and installed: on a loop, call it in a thread.

        Args:
            name: Of an installed package, ``echo``, ``echo-env`` or ``echo_env``; or of the hub, ``org/space``, whose
                client package is installed first, at one commit.
            base_url: A server that runs already.
            docker_image: Image to start; by default that of the package, or for the hub the sources at that commit.
            container_provider: Starts it, by ``start_container(image, env_vars=…)``; by default the docker backend.
            wait_timeout: How long it may take until it answers, in seconds.
            env_vars: Environment of the server.
            trust_remote_code: The caller vouches for the code of the hub; OPENENV_TRUST_REMOTE_CODE=1 does as well.
            skip_install: For the hub: install nothing, give a client that knows no types, and start the image that the
                hub published.
            kwargs: Arguments of the client, and of the start.

        Raises:
            ConfigError: No such environment is installed.
            TrustError: Nobody vouches for the code of the hub.
            OpenEnvError: What `openenv_sandbox.auto.installing.install` raises.
        """
        source = ""
        if skip_install and discovery.is_hub_name(name):
            from openenv_sandbox.client import GenericEnvClient

            client: type[Any] = GenericEnvClient
            image = docker_image or _published(name)
        else:
            info, source = _found(name, trust_remote_code)
            client = info.get_client_class()
            image = docker_image or info.default_image
            if source and docker_image is None:
                image = source if container_provider is None else _published(name)
        if base_url is not None:
            found: EnvClient[Any, Any, Any] = client(base_url=base_url, **kwargs)
            return found
        own = {key: kwargs.pop(key) for key in _client_arguments() if key in kwargs}
        start = Start(image, container_provider, wait_timeout, env_vars, image == source, kwargs)
        found = client(base_url=None, provider=start, **own)
        return found

    @classmethod
    def from_hub(
        cls,
        name: str,
        base_url: str | None = None,
        docker_image: str | None = None,
        container_provider: Any = None,
        wait_timeout: float = 30.0,
        env_vars: Mapping[str, str] | None = None,
        trust_remote_code: bool = False,
        skip_install: bool = False,
        **kwargs: Any,
    ) -> EnvClient[Any, Any, Any]:
        """The same as `from_env`, which see.

        Raises:
            OpenEnvError: What `from_env` raises.
        """
        rest = (docker_image, container_provider, wait_timeout, env_vars, trust_remote_code, skip_install)
        return cls.from_env(name, base_url, *rest, **kwargs)

    @classmethod
    def get_env_class(cls, name: str) -> type[Any]:
        """The client's class of an installed environment.

        Raises:
            ConfigError: There is no such environment, or it does not import.
        """
        return discovery.get_discovery().known(name).get_client_class()

    @classmethod
    def get_env_info(cls, name: str) -> dict[str, Any]:
        """What is known of an installed environment, without importing it.

        Raises:
            ConfigError: There is no such environment.
        """
        info = discovery.get_discovery().known(name)
        return {
            "env_key": info.env_key,
            "name": info.name,
            "package": info.package_name,
            "version": info.version,
            "description": info.description,
            "env_class": info.client_class_name,
            "action_class": info.action_class_name,
            "observation_class": info.observation_class_name,
            "module": info.client_module_path,
            "default_image": info.default_image,
            "spec_version": info.spec_version,
        }

    @classmethod
    def list_environments(cls) -> None:
        """Print what is installed; `get_discovery().discover()` gives it as data."""
        discovery.get_discovery().list_environments()


class AutoAction:
    """Action classes of environments by name: ``EchoAction = AutoAction.from_env("echo")``."""

    def __init__(self) -> None:
        raise TypeError("AutoAction has no instances: AutoAction.from_env('echo')")

    @classmethod
    def from_env(cls, name: str, skip_install: bool = False, trust_remote_code: bool = False) -> type[Any]:
        """The class of actions.

        Args:
            name: As for `AutoEnv.from_env`.
            skip_install: For the hub: install nothing and give a class that takes any field.
            trust_remote_code: As for `AutoEnv.from_env`.

        Raises:
            ConfigError: There is no such environment, or it does not import.
            TrustError: Nobody vouches for the code of the hub.
        """
        if skip_install and discovery.is_hub_name(name):
            from openenv_sandbox.client import GenericAction

            return GenericAction
        return _found(name, trust_remote_code)[0].get_action_class()

    @classmethod
    def from_hub(cls, env_name: str, skip_install: bool = False, trust_remote_code: bool = False) -> type[Any]:
        """The same as `from_env`, which see.

        Raises:
            OpenEnvError: What `from_env` raises.
        """
        return cls.from_env(env_name, skip_install, trust_remote_code)

    @classmethod
    def get_action_info(cls, name: str) -> dict[str, Any]:
        """What is known of the actions of an installed environment, without importing it.

        Raises:
            ConfigError: There is no such environment.
        """
        info = discovery.get_discovery().known(name)
        return {
            "env_key": info.env_key,
            "env_name": info.name,
            "package": info.package_name,
            "action_class": info.action_class_name,
            "observation_class": info.observation_class_name,
            "module": info.client_module_path,
        }

    @classmethod
    def list_actions(cls) -> None:
        """Print the action classes of what is installed."""
        found = discovery.get_discovery().discover().values()
        discovery.tell("Available Action Classes", [f"{one.env_key:<16} {one.action_class_name}" for one in found])


def _found(name: str, trust: bool) -> tuple[EnvironmentInfo, str]:
    """An environment, installed now where its name is one of the hub; and its source at its commit, else nothing."""
    if not discovery.is_hub_name(name):
        return discovery.get_discovery().known(name), ""
    if not trust and os.environ.get(TRUST, "").lower() not in ("1", "true", "yes"):
        raise TrustError(
            f"{name} is code from elsewhere, which would run in this process and which nobody has vouched for",
            hint=f"read it and pass trust_remote_code=True, or export {TRUST}=1",
        )
    from openenv_sandbox.auto.installing import install

    done = install(discovery.hub_source(name), trust=True)
    return done.info, done.source


def _published(name: str) -> str:
    """The image that the hub published of a Space."""
    from openenv_sandbox.client.older import SPACE_REGISTRY
    from openenv_sandbox.fetching import parse_source

    source = parse_source(discovery.hub_source(name))
    if source.kind != "hf":
        raise ConfigError(f"nobody publishes an image of {name}", hint="name one: docker_image=…, or a base_url")
    return f"{SPACE_REGISTRY}/{source.where.replace('/', '-').lower()}:latest"


def _client_arguments() -> list[str]:
    from openenv_sandbox.client import EnvClient

    return [name for name in inspect.signature(EnvClient).parameters if name not in ("base_url", "provider")]
