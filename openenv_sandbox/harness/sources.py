"""Where ``openenv collect`` gets its episodes from: a session factory by name, and who plays.

    FAMILY:VARIANT      the one ``*SessionFactory`` of FAMILY_env.harness
    module:factory      any session factory: an object, a class, or a function that makes one

A class or function is called with those of ``client_factory``, ``base_url``, ``variant`` and ``dataset_config`` that it
takes. VARIANT may also go to the one parameter whose name ends in ``_name``.
"""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_sandbox.errors import AuthError, ConfigError
from openenv_sandbox.harness.collect import build_model_step
from openenv_sandbox.harness.scripted import scripted_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from openenv_sandbox.harness.types import ModelStep, ResourceSessionFactory

_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
POLICY = "scripted_policy"
"""A function of a factory's module that plays where no model is asked; it is called as a `ModelStep` is."""


@dataclass(frozen=True)
class Teacher:
    """Who plays.

    Attributes:
        provider: ``scripted``, ``openai`` or ``anthropic``.
        model: Name of the model.
        endpoint: Address of a service of one's own, which speaks the provider's language.
        port: Its port, where the address does not say.
        temperature: Of the sampling.
        max_tokens: Longest answer.
        system_prompt: Put before conversations that have none.
    """

    provider: str = "scripted"
    model: str | None = None
    endpoint: str | None = None
    port: int | None = None
    temperature: float = 0.2
    max_tokens: int = 200
    system_prompt: str | None = None


def find_factory(
    text: str, *, base_url: str, headers: Mapping[str, str] | None = None, dataset_config: Any = None
) -> tuple[ResourceSessionFactory, ModelStep | None]:
    """The session factory of a name, and the policy that its module brings.

    Args:
        text: ``FAMILY:VARIANT`` or ``module:factory``.
        base_url: Of the environment's server.
        headers: Sent to it by clients made here.
        dataset_config: Given to factories that take one.

    Raises:
        ConfigError: There is no such thing, or it takes something else.
    """
    left, colon, right = text.partition(":")
    if not colon or not left or not right:
        raise ConfigError(f"{text!r} names no environment", hint="FAMILY:VARIANT or module:factory")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` would have it: the module may be the user's own file
    from openenv_sandbox.auto.discovery import normalize

    package = normalize(left)
    if package.isidentifier() and find_spec(package) is not None and find_spec(f"{package}.harness") is not None:
        module = _import(f"{package}.harness", text)
        target: Any = _only_factory(module)
        given: dict[str, Any] = {"variant": right}
    else:
        module = _import(left, text)
        target, given = _attribute(module, right), {}
        package = left.partition(".")[0]
    if not isinstance(target, type) and hasattr(target, "create"):
        made = target
    else:
        client = _client_of(package)
        options = {"headers": dict(headers)} if headers else {}
        given |= {"client_factory": lambda: client(base_url=base_url, **options), "base_url": base_url}
        if dataset_config is not None:
            given["dataset_config"] = dataset_config
        made = target(**_arguments(text, target, given))
    if not callable(getattr(made, "create", None)):
        raise ConfigError(f"{text} gives a {type(made).__name__}, which makes no sessions: it has no create()")
    return made, getattr(module, POLICY, None)


def model_step(teacher: Teacher, policy: ModelStep | None = None) -> ModelStep:
    """What asks the policy.

    Args:
        teacher: Who plays.
        policy: Plays where the provider is ``scripted``; None for one that goes by the tools' schemas.

    Raises:
        ConfigError: The provider is unknown, or no model is named.
        AuthError: The hosted service wants a key, and there is none.
    """
    if teacher.provider == "scripted":
        return policy or scripted_step
    variable = _KEYS.get(teacher.provider)
    if variable is None:
        raise ConfigError(f"no provider {teacher.provider!r}", hint=f"one of scripted, {', '.join(_KEYS)}")
    if not teacher.model:
        raise ConfigError(f"which model of {teacher.provider}?", hint="--model NAME")
    from openenv_sandbox.llm import AnthropicClient, OpenAIClient, create_llm_client

    key = os.environ.get(variable)
    sampling = {"temperature": teacher.temperature, "max_tokens": teacher.max_tokens}
    if teacher.endpoint is None:
        if not key:
            raise AuthError(f"{variable} is not set", hint=f"export {variable}=…, or --llm-endpoint of your own")
        client = create_llm_client(teacher.provider, teacher.model, key, **sampling)  # type: ignore[arg-type]
    else:
        kind = {"openai": OpenAIClient, "anthropic": AnthropicClient}[teacher.provider]
        where, port = _service(teacher.endpoint, teacher.port)
        client = kind(where, port, teacher.model, key, **sampling)
    return build_model_step(client, system_prompt=teacher.system_prompt)


def _service(endpoint: str, port: int | None) -> tuple[str, int]:
    """Address without port, and port; the ``/v1`` that clients add is not wanted twice."""
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{endpoint!r} is no address of a service", hint="http://localhost:8000")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{host}{path}", parts.port or port or (443 if parts.scheme == "https" else 80)


def _import(name: str, text: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{text}: there is no module {name}, nor a package {text.partition(':')[0]}_env with a module harness",
            hint="install the environment's package, or name your own factory: module:factory",
        ) from None


def _only_factory(module: ModuleType) -> Any:
    found = [
        value
        for name, value in vars(module).items()
        if name.endswith("SessionFactory") and isinstance(value, type) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        hint = f"name it: {module.__name__}:FACTORY"
        raise ConfigError(f"{module.__name__} has not one class …SessionFactory but {names}", hint=hint)
    return found[0]


def _attribute(module: ModuleType, path: str) -> Any:
    from openenv_sandbox.options import near

    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"{module.__name__} has no {path}{near(part, dir(value))}")
        value = getattr(value, part)
    if not callable(value) and not hasattr(value, "create"):
        raise ConfigError(f"{module.__name__}:{path} is a {type(value).__name__}, which makes no sessions")
    return value


def _client_of(package: str) -> Callable[..., Any]:
    """The client class of an environment's package; the one that knows no types where it has none."""
    from openenv_sandbox.auto.discovery import classes_of, normalize
    from openenv_sandbox.client import GenericEnvClient

    spec = find_spec(package) if package.isidentifier() else None
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if Path(place, "client.py").is_file():
            name = classes_of(Path(place), normalize(package).removesuffix("_env"))[0]
            found: Any = getattr(import_module(f"{package}.client"), name, None)
            if found is not None:
                return found  # type: ignore[no-any-return]
    return GenericEnvClient


def _arguments(text: str, target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(target).parameters
    found = {name: value for name, value in given.items() if name in parameters}
    left = {name for name in ("variant", "dataset_config") if name in given and name not in found}
    if "variant" in left:
        named = [name for name in parameters if name.endswith("_name")]
        if len(named) == 1:
            found[named[0]] = given["variant"]
            left.discard("variant")
    if left:
        raise ConfigError(f"{text}: {getattr(target, '__name__', target)} takes no {' and no '.join(sorted(left))}")
    missing = [
        name
        for name, one in parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and name not in found
    ]
    if missing:
        hint = "write a function without them, and name that: module:function"
        raise ConfigError(f"{text}: {getattr(target, '__name__', target)} also wants {', '.join(missing)}", hint=hint)
    return found
