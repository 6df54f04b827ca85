"""Rollouts: limits, tool messages, rewards that are never invented, sessions on clients, and training traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from openenv.core.harness import (
    CLIHarnessAdapter,
    HarnessRolloutResult,
    HarnessRunLimits,
    LoopOwningSession,
    MCPHarnessAdapter,
    ModelStepResult,
    ResourceSession,
    ResourceSessionFactory,
    SessionMCPBridge,
    StepEnvSessionAdapter,
    ToolResult,
    ToolTraceEntry,
    TrainableSession,
    TrainingTrace,
    VerifyResult,
    _resolve_env_reward,
    build_harness_rollout_func,
)
from openenv.core.harness.capture.upstream import training_sampling
from openenv.core.llm_client import LLMResponse, ToolCall

from openenv_sandbox.models import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

ADD = Tool(name="add", description="Add.", input_schema={"type": "object"})


class Counter(ResourceSession):
    """Counts to a goal; the reward is on the last tool result and on the verification."""

    def __init__(self, goal: int = 2, reward: float | None = 1.0) -> None:
        self.goal, self.reward, self.count, self.log = goal, reward, 0, list[str]()

    def initial_messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "count"}]

    def list_tools(self) -> list[Tool]:
        return [ADD]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name != "add":
            raise KeyError(f"no tool {name!r}")
        self.log.append("tool")
        self.count += 1
        done = self.count >= self.goal
        metadata = {"reward": self.reward} if done and self.reward is not None else {}
        return ToolResult({"b": self.count, "a": 0}, done, metadata)

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        self.log.append("verify")
        return VerifyResult(self.reward, metrics={"count": self.count})

    def close(self) -> None:
        self.log.append("close")


class Counters(ResourceSessionFactory):
    def __init__(self, make: Callable[[], Counter] = Counter) -> None:
        self.make, self.made, self.tasks = make, list[Counter](), list[Any]()

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Counter:
        self.tasks.append((task, seed, episode_id))
        self.made.append(self.make())
        return self.made[-1]


@dataclass
class Policy:
    """Wants ``calls`` tool calls in every answer."""

    calls: int = 1
    name: str = "add"
    seen: list[Any] = field(default_factory=list)

    def __call__(self, messages: list[Any], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        self.seen.append((messages, tools, sampling))
        turn = len(self.seen)
        calls = [ToolCall(f"c{turn}.{n}", self.name, {}) for n in range(self.calls)]
        return ModelStepResult(LLMResponse("", calls), [turn], [10 + turn], [-float(turn)])


def answered(rollout: HarnessRolloutResult) -> bool:
    """Every call in the conversation has its result, in order."""
    wanted = [call["id"] for message in rollout.messages for call in message.get("tool_calls", ())]
    given = [message["tool_call_id"] for message in rollout.messages if message["role"] == "tool"]
    return wanted == given


def test_a_rollout_runs_until_the_episode_is_over() -> None:
    policy = Policy()
    rollout = MCPHarnessAdapter().run_white_box(policy, Counter(), HarnessRunLimits(sampling={"temperature": 1.0}))
    assert [message["role"] for message in rollout.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert rollout.messages[2] == {"role": "tool", "tool_call_id": "c1.0", "name": "add", "content": '{"a": 0, "b": 1}'}
    assert rollout.done
    assert rollout.metrics == {"turns": 2, "tool_calls": 2}
    assert (rollout.prompt_ids, rollout.completion_ids, rollout.logprobs) == ([1], [11, 12], [-1.0, -2.0])
    assert [entry.tool_name for entry in rollout.tool_trace] == ["add", "add"]
    assert policy.seen[0] == (rollout.messages[:1], [ADD], {"temperature": 1.0})


@pytest.mark.parametrize(
    ("limits", "calls", "tool_calls", "turns"),
    [
        (HarnessRunLimits(max_turns=3), 1, 3, 3),
        (HarnessRunLimits(max_total_tool_calls=2), 3, 2, 1),
        (HarnessRunLimits(max_total_tool_calls=3), 1, 3, 4),
        (HarnessRunLimits(max_turns=2, max_tool_calls_per_turn=2), 5, 4, 2),
    ],
)
def test_a_limit_truncates_and_leaves_no_call_without_its_result(
    limits: HarnessRunLimits, calls: int, tool_calls: int, turns: int
) -> None:
    rollout = MCPHarnessAdapter().run_white_box(Policy(calls), Counter(goal=99), limits)
    assert rollout.metrics == {"turns": turns, "tool_calls": tool_calls, "truncated": True}
    assert not rollout.done
    assert answered(rollout)


def test_an_episode_over_in_the_middle_of_an_answer_ends_there() -> None:
    rollout = MCPHarnessAdapter().run_white_box(Policy(calls=5), Counter(goal=2))
    assert rollout.metrics == {"turns": 1, "tool_calls": 2}
    assert rollout.done
    assert answered(rollout)


def test_an_answer_without_calls_ends_without_being_truncated() -> None:
    rollout = MCPHarnessAdapter().run_white_box(Policy(calls=0), Counter())
    assert rollout.metrics == {"turns": 1, "tool_calls": 0}


def test_each_adapter_has_one_way_to_run() -> None:
    def runner(bridge: SessionMCPBridge, session: ResourceSession, limits: HarnessRunLimits) -> HarnessRolloutResult:
        bridge.handle_request({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}})
        return HarnessRolloutResult([], [], [], metrics={"turns": limits.max_turns})

    session = Counter()
    assert CLIHarnessAdapter(runner).run_black_box(session).metrics == {"turns": 10}
    assert session.count == 1
    with pytest.raises(NotImplementedError, match="black box only"):
        CLIHarnessAdapter(runner).run_white_box(Policy(), session)
    with pytest.raises(NotImplementedError, match="white box only"):
        MCPHarnessAdapter().run_black_box(session)


def test_the_bridge_answers_every_request() -> None:
    bridge = SessionMCPBridge(Counter())

    def ask(method: Any, params: Any = None) -> dict[str, Any]:
        return bridge.handle_request({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})

    assert ask("tools/list")["result"]["tools"][0]["inputSchema"] == {"type": "object"}
    assert ask("tools/call", {"name": "add", "arguments": {}}) == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"data": {"b": 1, "a": 0}, "done": False, "metadata": {}, "error": None},
    }
    asked: list[tuple[Any, Any]] = [
        ("nope", None),
        ("tools/call", {"name": "x"}),
        ("tools/call", {}),
        ("tools/call", [1]),
        (None, None),
    ]
    codes = [ask(method, params)["error"]["code"] for method, params in asked]
    assert codes == [-32601, -32602, -32602, -32602, -32600]


def rollout_with(*rewards: Any) -> HarnessRolloutResult:
    trace = [ToolTraceEntry("add", {}, ToolResult({}, metadata={"reward": reward})) for reward in rewards]
    return HarnessRolloutResult([], trace, [])


def test_a_reward_is_found_and_never_made_up() -> None:
    """No reward, or two that differ, is an error.

    Scenario: L03
    Mutation: resolve_env_reward returns 0.0 where episode_reward gives None
    """
    assert _resolve_env_reward(rollout_with(0.0, 1.0), VerifyResult(1.0)) == 1.0
    assert _resolve_env_reward(rollout_with(0.5), VerifyResult()) == 0.5
    assert _resolve_env_reward(rollout_with(), VerifyResult(0.0)) == 0.0
    data = HarnessRolloutResult([], [ToolTraceEntry("add", {}, ToolResult({"reward": 0.25}))], [])
    assert _resolve_env_reward(data, VerifyResult()) == 0.25
    for rollout, verify in [
        (rollout_with(), VerifyResult()),
        (rollout_with(None), VerifyResult()),
        (rollout_with("1"), VerifyResult()),
        (rollout_with(1.0), VerifyResult(0.0)),
    ]:
        with pytest.raises(ValueError, match="reward"):
            _resolve_env_reward(rollout, verify)


def test_the_rollout_function_of_a_trainer() -> None:
    factory, trainer = Counters(), object()
    builders: list[Any] = []

    def build(got: Any, session: ResourceSession) -> Policy:
        builders.append((got, session))
        return Policy()

    rollout = build_harness_rollout_func(
        session_factory=factory, harness_adapter=MCPHarnessAdapter(), model_step_builder=build, reward_key="score"
    )
    output = rollout(["one", "two"], trainer)
    assert output == {
        "prompt_ids": [[1], [1]],
        "completion_ids": [[11, 12], [11, 12]],
        "logprobs": [[-1.0, -2.0], [-1.0, -2.0]],
        "score": [1.0, 1.0],
        "verify_metrics": [{"count": 2}, {"count": 2}],
    }
    assert factory.tasks == [("one", None, None), ("two", None, None)]
    assert builders == [(trainer, session) for session in factory.made]
    assert factory.made[0].log == ["tool", "tool", "verify", "close"]


def test_a_session_is_closed_when_its_episode_fails() -> None:
    factory = Counters(lambda: Counter(reward=None))
    rollout = build_harness_rollout_func(
        session_factory=factory, harness_adapter=MCPHarnessAdapter(), model_step_builder=lambda t, s: Policy()
    )
    with pytest.raises(ValueError, match="no reward"):
        rollout(["x"], None)
    assert factory.made[0].log[-1] == "close"


class Client:
    """A blocking client without ``sync``."""

    def __init__(self, fail: str = "") -> None:
        self.fail, self.log = fail, list[Any]()

    def _do(self, what: str, value: Any) -> Any:
        self.log.append((what, value))
        if what == self.fail:
            raise ConnectionError(what)
        return SimpleNamespace(observation={"n": len(self.log)}, reward=0.5, done=what == "step")

    def reset(self, **kwargs: Any) -> Any:
        return self._do("reset", kwargs)

    def step(self, action: Any) -> Any:
        return self._do("step", action)

    def state(self) -> Any:
        return self._do("state", None)

    def close(self) -> None:
        self.log.append(("close", None))


def adapt(client: Any, tools: tuple[Tool, ...] = (ADD,), **options: Any) -> StepEnvSessionAdapter:
    return StepEnvSessionAdapter(
        client,
        tool_specs=tools,
        action_builder=lambda name, arguments: (name, arguments),
        initial_messages_builder=lambda result, task: [{"role": "user", "content": f"{task}: {result.observation}"}],
        **options,
    )


def test_a_client_becomes_a_session() -> None:
    client = Client()
    session = adapt(client, task="t", seed=3, reset_kwargs={"level": 2})
    assert session.initial_messages() == [{"role": "user", "content": "t: {'n': 1}"}]
    result = session.call_tool("add", {"a": 1})
    assert result == ToolResult({"n": 3}, True, {"reward": 0.5})
    assert session.verify([]) == VerifyResult(0.5, True)
    judged = adapt(Client(), verify_builder=lambda transcript, final, last, state: VerifyResult(len(transcript)))
    assert judged.verify([{}, {}]).env_reward == 2
    session.close()
    session.close()
    assert client.log == [
        ("reset", {"level": 2, "seed": 3}),
        ("state", None),
        ("step", ("add", {"a": 1})),
        ("state", None),
        ("close", None),
    ]
    with pytest.raises(KeyError, match="no tool 'x'"):
        session.call_tool("x", {})


@pytest.mark.parametrize("fail", ["reset", "state"])
def test_a_session_that_cannot_start_closes_its_client(fail: str) -> None:
    client = Client(fail)
    with pytest.raises(ConnectionError):
        adapt(client)
    assert client.log[-1] == ("close", None)


def test_the_blocking_face_of_a_client_is_taken_and_bad_tools_are_refused() -> None:
    inner = Client()
    assert adapt(SimpleNamespace(sync=lambda: inner))._client is inner
    for name in ("reset", "step", "state", "close"):
        with pytest.raises(ValueError, match="reserved"):
            adapt(Client(), (Tool(name=name, description="", input_schema={}),))
    with pytest.raises(ValueError, match="one name"):
        adapt(Client(), (ADD, ADD))


def test_training_traces_and_protocols() -> None:
    entry: Any = {"prompt_token_ids": [1], "completion_token_ids": [2, 3], "per_token_logps": [-1.0, -2.0]}
    named: Any = {**entry, "metadata": {"node_id": "n"}}
    short: Any = {**entry, "per_token_logps": [-1.0]}
    trace = TrainingTrace.from_entries([named, entry])
    assert [turn.node_id for turn in trace.turns] == ["n", "1"]
    assert TrainingTrace.from_entries(trace.to_trace_entries()) == trace
    with pytest.raises(ValueError, match="2 completion tokens and 1 of per_token_logps"):
        TrainingTrace.from_entries([short])
    trainable = SimpleNamespace(wait_for_completion=int, fetch_training_trace=list)
    assert isinstance(trainable, TrainableSession)
    assert not isinstance(trainable, LoopOwningSession)


def test_sampling_that_changes_the_distribution_is_refused() -> None:
    assert training_sampling(None) == {}
    neutral = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0, "repetition_penalty": 1.0}
    assert training_sampling(neutral) == neutral
    bad: list[dict[str, Any]] = [
        {},
        {"temperature": 0},
        {"temperature": float("inf")},
        {"temperature": True},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 50},
        {"temperature": 1.0, "min_p": False},
        {"temperature": 1.0, "stop": ["x"]},
    ]
    for sampling in bad:
        with pytest.raises(ValueError, match=r"temperature|training"):
            training_sampling(sampling)
