"""What a type costs, counted in modules, and what the older name says."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {"fastapi", "starlette", "uvicorn", "gradio", "fastmcp", "mcp", "openai", "huggingface_hub", "httpx"}


def run(code: str, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "from openenv.core.env_server.types import Action, Observation, State, EnvironmentMetadata",
        "from openenv.core.env_server.interfaces import Environment, Message, ModelTokenizer, Transform",
        "from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction, JsonRpcResponse, Tool",
        "from openenv.core.env_server import Action, Environment, CompositeTransform",
        "from openenv.core.env_server.serialization import serialize_observation",
        "from openenv.core.client_types import StepResult",
        "from openenv.core.env_client import EnvClient",
        "from openenv.core import EnvClient, MCPToolClient",
        "from openenv.core.rubrics import LLMJudge, Sequential",
        "from openenv_core.env_server.types import Action",
        "import openenv, openenv.core; openenv.GenericEnvClient; openenv.__version__",
        "from openenv import AutoEnv, AutoAction; AutoEnv.get_env_info",
        "from openenv.auto._discovery import get_discovery; get_discovery().discover()",
        "from openenv.core.evals import InspectAIHarness",
        "from openenv.core.harness.collect import CollectRunner, push_to_hf_hub",
    ],
)
def test_a_type_loads_no_framework(statement: str) -> None:
    loaded = set(run(f"{statement}; import sys; print(*sys.modules)").split())
    assert not {module.split(".")[0] for module in loaded} & FRAMEWORKS


def test_importing_the_package_alone_loads_nothing_of_ours() -> None:
    loaded = run("import openenv.core.env_server; import sys; print(*sys.modules)").split()
    assert not [module for module in loaded if module.startswith("openenv_sandbox")]


def test_the_older_name_warns_once_and_gives_the_same_objects() -> None:
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from openenv_core.env_server.types import Action
    from openenv_core.client_types import StepResult
    import openenv_core.env_server, openenv_core.env_client
assert [w.category for w in caught] == [DeprecationWarning], caught
import openenv.core
from openenv.core.client_types import StepResult as same
assert Action is openenv.core.Action is openenv_core.env_server.Action and StepResult is same
"""
    run(code)


def test_observations_pickle_by_our_module_and_come_back_as_the_same_class() -> None:
    code = """
import pickle
from openenv.core.env_server.types import Observation
again = pickle.loads(pickle.dumps(Observation(reward=1.0)))
assert type(again) is Observation and again.reward == 1.0
"""
    run(code)
