"""One behaviour for every name of the list: a hollow class would pass a look at signatures, not this."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from openenv.core import GenericEnvClient
from openenv.core import env_server as server
from openenv.core import harness as h
from openenv.core.env_server import interfaces, mcp_types, types
from openenv.core.rubrics import Rubric, Sequential
from pydantic import ValidationError

from tests.adapters.listing import names

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "http://127.0.0.1:9"


def raises(error: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any]) -> bool:
    with pytest.raises(error):
        call()
    return True


def core(name: str) -> Any:
    return getattr(import_module("openenv.core"), name)


def of(module: str, name: str) -> Any:
    return getattr(import_module(f"openenv.core.{module}"), name)


def cloud(name: str) -> Any:
    found = import_module(f"openenv.core.containers.runtime.{name}_provider")
    return getattr(found, found.__all__[0])


def web(name: str) -> Any:
    return of("env_server.web_interface", name)


def gradio(name: str) -> Any:
    return of("env_server.gradio_ui", name)


def auto(module: str, name: str) -> Any:
    return getattr(import_module(f"openenv.auto.{module}"), name)


def extra(model: Any, **fields: Any) -> bool:
    """A model is strict: its fields are validated and unknown ones refused."""
    model(**fields)
    return raises(ValidationError, lambda: model(**fields, no_such_field=1))


class Env(interfaces.Environment[types.Action, types.Observation, types.State]):
    def __init__(self) -> None:
        pass

    def reset(self) -> types.Observation:
        return types.Observation(reward=1.5)

    def step(self, action: types.Action) -> types.Observation:
        return types.Observation()

    @property
    def state(self) -> types.State:
        return types.State()


class One(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        return 1.0


class Sum(of("rubrics", "TrajectoryRubric")):  # type: ignore[misc]
    def score_trajectory(self, trajectory: Any) -> float:
        return float(len(trajectory))

    def compute_step_rewards(self) -> list[float]:
        return []


def without_constructor(env: Env) -> bool:
    """The helpers work although the base constructor never ran."""
    env._reset_rubric()
    observation = env.reset()
    return env._apply_rubric(types.Action(), observation) == 0.0 and env._apply_transform(observation) is observation


def app_of(make: Callable[..., Any]) -> bool:
    paths = {getattr(route, "path", "") for route in make(Env, types.Action, types.Observation).routes}
    return {"/ws", "/mcp", "/health", "/reset", "/step"} <= paths and raises(TypeError, lambda: make(Env(), None, None))


def metadata_of_a_class() -> bool:
    found = of("env_server.web_interface", "load_environment_metadata")(Env)
    return bool((found.name, found.version) == ("Env", "1.0.0"))


def assigned(model: Any, name: str, good: Any, bad: Any) -> bool:
    setattr(model, name, good)
    return getattr(model, name) == good and raises(ValidationError, lambda: setattr(model, name, bad))


def protocol(cls: Any, *methods: str) -> bool:
    return all(inspect.isfunction(getattr(cls, method)) for method in methods) and raises(TypeError, cls)


def dataclass_with_own_defaults(cls: Any, *values: Any) -> bool:
    first, second = cls(*values), cls(*values)
    containers = [f.name for f in dataclasses.fields(cls) if f.default_factory is not dataclasses.MISSING]
    return first == second and all(getattr(first, name) is not getattr(second, name) for name in containers)


STEP = of("client_types", "StepResult")
ERROR = mcp_types.ToolError(error_type=mcp_types.ToolErrorType.TIMEOUT, message="m")

PROBES: dict[str, Callable[[], Any]] = {
    "__version__": lambda: import_module("openenv").__version__.split(".")[0].isdigit(),
    "core": lambda: import_module("openenv").core is import_module("openenv.core"),
    "web_interface": lambda: server.web_interface.load_environment_metadata,
    "Action": lambda: extra(types.Action, metadata={"a": 1}),
    "Observation": lambda: assigned(types.Observation(), "done", True, "perhaps"),
    "State": lambda: types.State(own=1).own == 1 and assigned(types.State(), "step_count", 1, -1),  # type: ignore[attr-defined]
    "CodeExecResult": lambda: extra(types.CodeExecResult, stdout="a", stderr="", exit_code=0),
    "ConcurrencyConfig": lambda: raises(ValidationError, lambda: types.ConcurrencyConfig(max_concurrent_envs=0)),
    "EnvironmentMetadata": lambda: raises(ValidationError, lambda: types.EnvironmentMetadata(name="x")),  # type: ignore[call-arg]
    "HealthResponse": lambda: types.HealthResponse().status == types.HealthStatus.HEALTHY,
    "HealthStatus": lambda: types.HealthStatus("degraded") is types.HealthStatus.DEGRADED,
    "ServerMode": lambda: types.ServerMode("production") is types.ServerMode.PRODUCTION,
    "WSErrorCode": lambda: types.WSErrorCode("CAPACITY_REACHED") == "CAPACITY_REACHED",
    "WSErrorResponse": lambda: types.WSErrorResponse(data={"code": "x"}).model_dump()["type"] == "error",
    "Environment": lambda: without_constructor(Env()),
    "Message": lambda: set(get_type_hints(interfaces.Message)) == {"role", "content"},
    "ModelTokenizer": lambda: protocol(interfaces.ModelTokenizer, "apply_chat_template", "decode"),
    "TaskProvider": lambda: protocol(interfaces.TaskProvider, "list_splits", "get_task_range"),
    "Transform": lambda: raises(TypeError, interfaces.Transform),
    "CompositeTransform": lambda: server.CompositeTransform([lambda o: o + 1, lambda o: o * 2])(1) == 4,  # type: ignore[arg-type]
    "NullTransform": lambda: server.NullTransform()(ERROR) is ERROR,  # type: ignore[arg-type]
    "create_app": lambda: app_of(server.create_app),
    "create_fastapi_app": lambda: app_of(server.create_fastapi_app),
    "HTTPEnvServer": lambda: server.HTTPEnvServer(Env, types.Action, types.Observation).max_concurrent_envs == 1,
    "serialize_observation": lambda: server.serialize_observation(Env().reset())["reward"] == 1.5,
    "deserialize_action": lambda: server.deserialize_action({"type": "list_tools"}, types.Action).type == "list_tools",  # type: ignore[attr-defined]
    "deserialize_action_with_preprocessing": lambda: (
        server.deserialize_action_with_preprocessing(
            {"type": "call_tool", "tool_name": "t", "arguments": '{"a": 1}'}, mcp_types.CallToolAction
        ).arguments
        == {"a": 1}
        and raises(
            ValueError,
            lambda: server.deserialize_action_with_preprocessing(
                {"type": "call_tool", "tool_name": "t", "arguments": "{"}, mcp_types.CallToolAction
            ),
        )
    ),
    "load_environment_metadata": metadata_of_a_class,
    "OpenEnvError": lambda: issubclass(server.SessionCapacityError, server.OpenEnvError),
    "ConcurrencyConfigurationError": lambda: raises(
        server.ConcurrencyConfigurationError,
        lambda: server.create_app(Env, types.Action, types.Observation, max_concurrent_envs=2),
    ),
    "SessionCapacityError": lambda: issubclass(server.SessionCapacityError, RuntimeError),
    "EnvironmentFactoryError": lambda: issubclass(server.EnvironmentFactoryError, RuntimeError),
    "CallToolAction": lambda: raises(ValidationError, lambda: mcp_types.CallToolAction()),  # type: ignore[call-arg]
    "CallToolObservation": lambda: mcp_types.CallToolObservation(tool_name="t", error=ERROR).error == ERROR,
    "ListToolsAction": lambda: raises(ValidationError, lambda: mcp_types.ListToolsAction(type="call_tool")),
    "ListToolsObservation": lambda: raises(ValidationError, lambda: mcp_types.ListToolsObservation(tools=[1])),
    "Tool": lambda: extra(mcp_types.Tool, name="t", description="d", input_schema={}),
    "ToolError": lambda: raises(ValidationError, lambda: mcp_types.ToolError(error_type="odd", message="")),
    "ToolErrorType": lambda: mcp_types.ToolErrorType("invalid_args") is mcp_types.ToolErrorType.INVALID_ARGS,
    "RESERVED_TOOL_NAMES": lambda: set(mcp_types.RESERVED_TOOL_NAMES) == {"reset", "step", "state", "close"},
    "JsonRpcError": lambda: mcp_types.JsonRpcError(code=-1, message="m").model_dump()["data"] is None,
    "JsonRpcErrorCode": lambda: mcp_types.JsonRpcErrorCode(-32601) is mcp_types.JsonRpcErrorCode.METHOD_NOT_FOUND,
    "JsonRpcRequest": lambda: extra(mcp_types.JsonRpcRequest, jsonrpc="2.0", method="tools/list"),
    "JsonRpcResponse": lambda: (
        mcp_types.JsonRpcResponse(id=1, result=2).model_dump() == {"jsonrpc": "2.0", "id": 1, "result": 2}
        and raises(
            ValidationError,
            lambda: mcp_types.JsonRpcResponse(result=1, error=mcp_types.JsonRpcError(code=1, message="")),
        )
    ),
    "McpMethod": lambda: mcp_types.McpMethod("tools/call") is mcp_types.McpMethod.TOOLS_CALL,
    "WSMCPMessage": lambda: extra(mcp_types.WSMCPMessage, data={}),
    "WSMCPResponse": lambda: extra(mcp_types.WSMCPResponse, data={}),
    "MCPEnvironment": lambda: raises(TypeError, lambda: server.MCPEnvironment(None)),  # type: ignore[abstract]
    "get_server_tools": lambda: (
        set(of("env_server.mcp_environment", "get_server_tools")(SimpleNamespace(get_tools=lambda: {"a": 1}))) == {"a"}
    ),
    "StepResult": lambda: (STEP("o", 1.0, True, info={"a": 1}).metadata, STEP("o").done) == ({"a": 1}, False),
    "EnvClient": lambda: raises(ValueError, core("EnvClient")) and core("EnvClient")(URL).base_url == URL,
    "SyncEnvClient": lambda: core("SyncEnvClient")(GenericEnvClient(URL)).async_client.base_url == URL,
    "GenericEnvClient": lambda: raises(ConnectionError, lambda: GenericEnvClient(URL).reset()),
    "GenericAction": lambda: core("GenericAction")(a=1) == {"a": 1},
    "MCPClientBase": lambda: raises(TypeError, core("MCPClientBase")),
    "MCPToolClient": lambda: raises(ValueError, lambda: core("MCPToolClient")(URL, mode="simulation")),
    "StateT": lambda: of("env_client", "StateT").__name__ == "StateT",
    "Rubric": lambda: raises(TypeError, Rubric) and One()(0, 0) == 1.0,
    "Sequential": lambda: Sequential(One())(0, 0) == 1.0,
    "Gate": lambda: of("rubrics", "Gate")(One(), 1.5)(0, 0) == 0.0,
    "WeightedSum": lambda: raises(ValueError, lambda: of("rubrics", "WeightedSum")([One()], [0.5])),
    "RubricList": lambda: len(of("rubrics", "RubricList")([One()])) == 1,
    "RubricDict": lambda: "a" in of("rubrics", "RubricDict")({"a": One()}),
    "LLMJudge": lambda: of("rubrics", "LLMJudge")("{action}", None).default_score is None,
    "TrajectoryRubric": lambda: Sum(0.5)(0, SimpleNamespace(done=False)) == 0.5,
    "ExponentialDiscountingTrajectoryRubric": lambda: raises(
        TypeError, of("rubrics", "ExponentialDiscountingTrajectoryRubric")
    ),
    "LLMClient": lambda: raises(TypeError, lambda: core("LLMClient")("http://h", 1)),
    "LLMResponse": lambda: core("LLMResponse")("a").to_message_dict() == {"role": "assistant", "content": "a"},
    "ToolCall": lambda: core("ToolCall")("i", "n", {}).args == {},
    "OpenAIClient": lambda: core("OpenAIClient")("http://h", 80, "m").base_url == "http://h:80",
    "AnthropicClient": lambda: core("AnthropicClient")("http://h", 80, "m").max_tokens == 256,
    "create_llm_client": lambda: raises(ValueError, lambda: core("create_llm_client")("x", "m", "k")),
    "HarnessAdapter": lambda: raises(TypeError, h.HarnessAdapter),
    "CLIHarnessAdapter": lambda: h.CLIHarnessAdapter(lambda b, s, limits: limits).run_black_box(None).max_turns == 10,  # type: ignore[arg-type,return-value,attr-defined]
    "MCPHarnessAdapter": lambda: raises(NotImplementedError, lambda: h.MCPHarnessAdapter().run_black_box(None)),  # type: ignore[arg-type]
    "HarnessRolloutResult": lambda: dataclass_with_own_defaults(h.HarnessRolloutResult, [], [], []),
    "HarnessRunLimits": lambda: dataclass_with_own_defaults(h.HarnessRunLimits),
    "ModelStep": lambda: protocol(h.ModelStep, "__call__"),
    "ModelStepResult": lambda: dataclass_with_own_defaults(h.ModelStepResult, None),
    "LoopOwningSession": lambda: not isinstance(object(), h.LoopOwningSession),
    "TrainableSession": lambda: not isinstance(object(), h.TrainableSession),
    "ResourceSession": lambda: raises(TypeError, h.ResourceSession),
    "ResourceSessionFactory": lambda: raises(TypeError, h.ResourceSessionFactory),
    "RolloutEvent": lambda: dataclass_with_own_defaults(h.RolloutEvent, "x"),
    "SessionMCPBridge": lambda: h.SessionMCPBridge(None).handle_request({"method": "x"})["error"]["code"] == -32601,  # type: ignore[arg-type]
    "StepEnvSessionAdapter": lambda: raises(TypeError, lambda: h.StepEnvSessionAdapter(None)),  # type: ignore[call-arg]
    "ToolResult": lambda: dataclass_with_own_defaults(h.ToolResult),
    "ToolTraceEntry": lambda: h.ToolTraceEntry("t", {}, h.ToolResult()).result.data is None,
    "TraceEntry": lambda: "per_token_logps" in get_type_hints(h.TraceEntry),
    "TrainingTrace": lambda: h.TrainingTrace.from_entries([]).schema_version == 1,
    "ContainerProvider": lambda: raises(TypeError, of("containers.runtime", "ContainerProvider")),
    "RuntimeProvider": lambda: raises(TypeError, of("containers.runtime", "RuntimeProvider")),
    "LocalDockerProvider": lambda: of("containers.runtime", "LocalDockerProvider")().sandbox is None,
    "UVProvider": lambda: raises(TypeError, of("containers.runtime", "UVProvider")),
    "DaytonaProvider": lambda: raises(ValueError, lambda: cloud("daytona")(auto_stop_interval=1)),
    "ModalProvider": lambda: cloud("modal")(image="x:1").sandbox is None,
    "NovitaSandboxProvider": lambda: raises(ValueError, lambda: cloud("novita")(secure=False)),
    "ACASandboxProvider": lambda: raises(ValueError, lambda: cloud("aca")(memory="lots")),
    "AutoEnv": lambda: raises(TypeError, auto("auto_env", "AutoEnv")),
    "AutoAction": lambda: raises(ValueError, lambda: auto("auto_action", "AutoAction").from_env("no such thing")),
    "EnvironmentDiscovery": lambda: auto("_discovery", "EnvironmentDiscovery")().get_environment("none") is None,
    "EnvironmentInfo": lambda: raises(TypeError, auto("_discovery", "EnvironmentInfo")),
    "get_discovery": lambda: auto("_discovery", "get_discovery")() is auto("_discovery", "get_discovery")(),
    "reset_discovery": lambda: auto("_discovery", "reset_discovery")() is None,
    "_is_hub_url": lambda: [auto("_discovery", "_is_hub_url")(x) for x in ("org/x", "echo-env")] == [True, False],
    "_normalize_env_name": lambda: auto("_discovery", "_normalize_env_name")("echo-env") == "echo_env",
    "ActionLog": lambda: extra(web("ActionLog"), timestamp="t", action={}, observation={}, done=False, step_count=1),
    "EpisodeState": lambda: raises(ValidationError, lambda: web("EpisodeState")(no_such_field=1)),
    "WebInterfaceManager": lambda: web("WebInterfaceManager")(Env, types.Action, types.Observation).env.reset().reward,
    "create_web_interface_app": lambda: app_of(web("create_web_interface_app")),
    "get_quick_start_markdown": lambda: (
        "8000" in web("get_quick_start_markdown")(None, types.Action, types.Observation)
    ),
    "build_gradio_app": lambda: (
        find_spec("gradio") or raises(ModuleNotFoundError, lambda: gradio("build_gradio_app")(None, [], None, False))
    ),
    "get_gradio_display_title": lambda: gradio("get_gradio_display_title")(None, "Mine").endswith(": Mine"),
    "TrainingTurn": lambda: raises(ValueError, lambda: h.TrainingTurn("n", [], [1], [0.1, 0.2])),
    "VerifyResult": lambda: dataclass_with_own_defaults(h.VerifyResult),
    "_resolve_env_reward": lambda: raises(
        ValueError, lambda: h._resolve_env_reward(h.HarnessRolloutResult([], [], []), h.VerifyResult())
    ),
    "build_harness_rollout_func": lambda: (
        h.build_harness_rollout_func(
            session_factory=None,  # type: ignore[arg-type]
            harness_adapter=None,  # type: ignore[arg-type]
            model_step_builder=None,  # type: ignore[arg-type]
        )([], None)["env_reward"]
        == []
    ),
    "training_sampling": lambda: of("harness.capture.upstream", "training_sampling")(None) == {},
    "CollectResult": lambda: dataclass_with_own_defaults(of("harness.collect", "CollectResult")),
    "CollectRunner": lambda: raises(TypeError, of("harness.collect", "CollectRunner")),
    "EpisodeRecord": lambda: of("harness.collect", "EpisodeRecord")("e", [], 1.0, True, [], {}, {}, {}).to_dict()[
        "done"
    ],
    "RolloutSerializer": lambda: (
        of("harness.collect", "RolloutSerializer")("/nowhere").collected_episode_ids() == set()
    ),
    "build_model_step": lambda: callable(of("harness.collect", "build_model_step")(None)),
    "README_FILENAME": lambda: of("harness.collect", "README_FILENAME") == "README.md",
    "build_dataset_readme": lambda: "results.jsonl" in of("harness.collect", "build_dataset_readme")(Path("/nowhere")),
    "push_to_hf_hub": lambda: raises(ValueError, lambda: of("harness.collect", "push_to_hf_hub")("/nowhere", "bare")),
    "InspectAIHarness": lambda: raises(ValueError, lambda: of("evals", "InspectAIHarness")().run("1", {}, "d", {})),
    "EvalConfig": lambda: raises(ValidationError, of("evals", "EvalConfig")),
    "EvalHarness": lambda: raises(TypeError, of("evals", "EvalHarness")),
    "EvalResult": lambda: raises(ValidationError, lambda: of("evals", "EvalResult")(config=None, scores={})),
}

TOP = sorted({name.path.split(".")[0] for name in names() if name.absent is None})


@pytest.mark.parametrize("name", TOP)
def test_a_name_does_what_it_is_for(name: str) -> None:
    if name == "Message":
        assert h.Message is not interfaces.Message  # two things of one name, as before
    assert PROBES[name]()


def test_every_probe_belongs_to_a_name() -> None:
    assert set(PROBES) == set(TOP)
