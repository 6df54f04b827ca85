"""Collecting episodes: what is written, what a second run does, and files that a killed run left; and evaluations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openenv.core.evals import EvalConfig, EvalHarness
from openenv.core.harness import MCPHarnessAdapter, ResourceSession, VerifyResult
from openenv.core.harness.collect import CollectRunner, EpisodeRecord, RolloutSerializer, build_model_step
from openenv.core.llm_client import LLMClient, LLMResponse, ToolCall

from openenv_sandbox.errors import FileError, SerializationError
from openenv_sandbox.models import Tool
from tests.adapters.test_harness import Counter, Counters, Policy

if TYPE_CHECKING:
    from pathlib import Path


def runner(folder: Path, factory: Counters, tasks: Any = None) -> CollectRunner:
    return CollectRunner(
        session_factory=factory,
        harness_adapter=MCPHarnessAdapter(),
        serializer=RolloutSerializer(folder),
        tasks=tasks,
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_episodes_are_lines_and_a_second_run_goes_on(tmp_path: Path) -> None:
    factory = Counters()
    first = runner(tmp_path, factory, ["a", "b", "c"]).run(model_step=Policy(), num_episodes=2)
    assert (first.num_collected, first.episode_ids) == (2, ["ep-000000", "ep-000001"])
    assert (first.avg_reward, first.success_rate) == (1.0, 1.0)
    second = runner(tmp_path, factory, ["a", "b", "c"]).run(model_step=Policy(), num_episodes=3)
    assert (second.num_collected, second.num_skipped) == (1, 2)
    assert [(line["episode_id"], line["task"]) for line in lines(tmp_path)] == [
        ("ep-000000", "a"),
        ("ep-000001", "b"),
        ("ep-000002", "c"),
    ]
    assert factory.tasks[-1] == ("c", None, "ep-000002")
    line = lines(tmp_path)[0]
    assert set(line) == {
        *("episode_id", "messages", "reward", "done", "tool_trace", "metrics", "verify_metrics", "artifacts", "task")
    }
    assert line["tool_trace"][1]["result"]["metadata"] == {"reward": 1.0}
    with pytest.raises(ValueError, match="there are 3"):
        runner(tmp_path, factory, ["a", "b", "c"]).run(model_step=Policy(), num_episodes=4)


class Breaks(Counter):
    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        raise ConnectionError("the verifier is gone")


def test_an_episode_that_failed_is_counted_closed_and_not_written(tmp_path: Path) -> None:
    """A verifier that crashes leaves no episode and no reward.

    Scenario: L02
    Mutation: CollectRunner.run writes a record with reward 0.0 in its except branch
    """
    made = iter([Counter(reward=0.0), Breaks(), Counter(reward=None)])
    factory = Counters(lambda: next(made))
    result = runner(tmp_path, factory).run(model_step=Policy(), num_episodes=3)
    assert (result.num_collected, result.num_failed) == (2, 1)
    assert [(line["episode_id"], line["reward"]) for line in lines(tmp_path)] == [
        ("ep-000000", 0.0),
        ("ep-000002", None),
    ]
    assert (result.avg_reward, result.success_rate) == (0.0, 0.0)
    assert all(session.log[-1] == "close" for session in factory.made)


def test_what_is_not_to_be_kept_is_dropped(tmp_path: Path) -> None:
    result = runner(tmp_path, Counters()).run(model_step=Policy(), num_episodes=2, should_keep=lambda record: False)
    assert (result.num_dropped, result.num_collected, result.avg_reward) == (2, 0, None)
    assert not (tmp_path / "results.jsonl").exists()


def record(name: str = "x", **fields: Any) -> EpisodeRecord:
    return EpisodeRecord(name, [], 1.0, True, [], {}, {}, fields.pop("artifacts", {}), **fields)


def test_a_missing_newline_is_repaired_and_a_torn_line_is_refused_by_place(tmp_path: Path) -> None:
    serializer = RolloutSerializer(tmp_path)
    serializer.write_episode(record("a", extra={"note": 1}))
    whole = serializer.results_path.read_bytes()
    serializer.results_path.write_bytes(whole.rstrip(b"\n"))
    serializer.write_episode(record("b"))
    assert serializer.collected_episode_ids() == {"a", "b"}
    assert lines(tmp_path)[0]["note"] == 1
    torn = serializer.results_path.read_bytes() + b'{"episode_id": "c", "mess'
    serializer.results_path.write_bytes(torn)
    with pytest.raises(FileError, match=r"results\.jsonl:3 is no episode"):
        serializer.write_episode(record("d"))
    with pytest.raises(FileError, match=r"results\.jsonl:3"):
        runner(tmp_path, Counters()).run(model_step=Policy(), num_episodes=1)
    assert serializer.results_path.read_bytes() == torn


def test_an_episode_without_a_json_form_is_not_half_written(tmp_path: Path) -> None:
    serializer = RolloutSerializer(tmp_path)
    with pytest.raises(SerializationError, match="artifacts"):
        serializer.write_episode(record(artifacts={"socket": object()}))
    assert not serializer.results_path.exists()


def test_metadata_is_replaced_as_a_whole(tmp_path: Path) -> None:
    serializer = RolloutSerializer(tmp_path / "new")
    assert serializer.read_metadata() == {}
    serializer.write_metadata({"model": "m"})
    serializer.write_metadata({"model": "n"})
    assert serializer.read_metadata() == {"model": "n"}
    assert [path.name for path in serializer.output_dir.iterdir()] == ["metadata.json"]


class Asked(LLMClient):
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        return prompt

    async def complete_with_tools(self, messages: Any, tools: Any, **kwargs: Any) -> LLMResponse:
        self.got = messages, tools, kwargs
        return LLMResponse("", [ToolCall("1", "add", {})])


def test_a_client_of_a_model_is_a_policy() -> None:
    client = Asked("http://x", 1)
    step = build_model_step(client, system_prompt="be brief")
    tool = Tool(name="add", description="Add.", input_schema={"type": "object"})
    assert step([{"role": "user", "content": "go"}], [tool], {"temperature": 1.0}).response.tool_calls[0].name == "add"
    messages, tools, options = client.got
    assert [message["role"] for message in messages] == ["system", "user"]
    assert tools == [{"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}]
    assert options == {"temperature": 1.0}


def test_an_evaluation_runs_what_its_configuration_says() -> None:
    class Mine(EvalHarness):
        def run(self, harness_version: str, library_versions: Any, dataset: str, eval_parameters: Any) -> Any:
            return {"got": [harness_version, library_versions, dataset, eval_parameters]}

    fields: dict[str, Any] = {"harness_version": "1", "library_versions": {"a": "2"}, "dataset": "d"}
    config = EvalConfig(harness_name="Mine", eval_parameters={"n": 1}, **fields)
    assert Mine().run_from_config(config).scores == {"got": ["1", {"a": "2"}, "d", {"n": 1}]}
    with pytest.raises(ValueError, match="for Other, this is Mine"):
        Mine().run_from_config(EvalConfig(harness_name="Other", eval_parameters={}, **fields))


def test_sessions_must_be_complete() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ResourceSession()  # type: ignore[abstract]
