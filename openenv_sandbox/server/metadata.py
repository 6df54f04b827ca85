"""What an environment says about itself, its README included."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from openenv_sandbox.server.calls import environment_class
from openenv_sandbox.server.environment import Environment, EnvironmentMetadata


def load_environment_metadata(env: Any, env_name: str | None = None) -> EnvironmentMetadata:
    """Metadata of an environment or of what makes one, with the README where there is one.

    Reads files: call it while the application is built, or from a worker thread.

    Args:
        env: An environment, which is asked itself; or a class, partial or function, which is not called.
        env_name: Name the environment is served under; by default the one of ``env``.
    """
    if isinstance(env, Environment) or (not isinstance(env, type) and hasattr(env, "get_metadata")):
        metadata: EnvironmentMetadata = env.get_metadata()
    else:
        made_by = factory_name(env)
        name = env_name or made_by
        described = made_by if environment_class(env) is not None else name
        metadata = EnvironmentMetadata(name=name, description=f"{described} environment", version="1.0.0")
    readme = find_readme(env_name)
    if readme is not None:
        metadata.readme_content = readme
    return metadata


def factory_name(factory: Any) -> str:
    """Name of what makes environments: a class, a function, or what a partial wraps."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return str(getattr(factory, "__name__", "environment"))


def find_readme(env_name: str | None = None) -> str | None:
    """Text of the environment's README: the file ENV_README_PATH names, else where images and checkouts keep it."""
    named = os.environ.get("ENV_README_PATH")
    places = [Path(named)] if named else []
    if env_name and not env_name.startswith(".") and Path(env_name).name == env_name:
        places.append(Path("envs") / env_name / "README.md")
    places += [Path("/app/env/README.md"), Path("/app/README.md")]
    for place in places:
        try:
            return place.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return None
