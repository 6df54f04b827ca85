"""``openenv collect``: from a family or a factory into a folder, with a stand-in model, and again after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.served import PACKAGES
from tests.adapters.served import served as served_app
from tests.authoring.hub_standin import TOKEN
from tests.authoring.hub_standin import served as served_hub
from tests.cli.llm_standin import KEY, Llm
from tests.cli.llm_standin import served as served_llm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The shape of the packages that exist: a factory of clients, then the variant by name; no verdict of its own.
HARNESS = """
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import StepEnvSessionAdapter

SCHEMA = {"type": "object", "properties": {"lit": {"type": "boolean"}}, "required": ["lit"]}

class LampSessionFactory:
    def __init__(self, client_factory, *, lamp_name="", dataset_config=None):
        self.client_factory, self.name, self.config = client_factory, lamp_name, dataset_config

    def create(self, task=None, seed=None, episode_id=None):
        return StepEnvSessionAdapter(
            client=self.client_factory(),
            task=task,
            tool_specs=[Tool(name="switch", description="Switch it.", input_schema=SCHEMA)],
            action_builder=lambda name, arguments: {"lit": arguments["lit"]},
            initial_messages_builder=lambda result, task: [
                {"role": "user", "content": f"{self.name} {self.config} {type(self.client_factory()).__name__}"}
            ],
        )

def make(base_url):
    from openenv.core import GenericEnvClient
    return LampSessionFactory(lambda: GenericEnvClient(base_url=base_url), lamp_name="made")

class Losing(LampSessionFactory):
    def create(self, task=None, seed=None, episode_id=None):
        session = super().create(task, seed, episode_id)
        from openenv.core.harness import ToolResult, VerifyResult
        session._tool_result_builder = lambda *args: ToolResult(done=True)
        session._verify_builder = lambda *args: VerifyResult(-1.0, True)
        return session

number = 3
"""
CLIENT = "from openenv.core import GenericEnvClient\n\n\nclass LampEnv(GenericEnvClient):\n    pass\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served_app("lantern_env.server.app:app", PACKAGES) as url:
        yield url


@pytest.fixture
def llm() -> Iterator[Llm]:
    with served_llm() as llm:
        yield llm


@pytest.fixture
def here(tmp_path: Path) -> Path:
    package = tmp_path / "lamp_env"
    package.mkdir()
    for name, text in {"__init__.py": "", "client.py": CLIENT, "harness.py": HARNESS}.items():
        (package / name).write_text(text)
    return tmp_path


def begun(here: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "OPENENV_", "OPENAI", "ANTHROPIC"))}
    state = {"OPENENV_STATE_DIR": os.environ["OPENENV_STATE_DIR"], "HF_HOME": str(here / "hf")}
    command = [sys.executable, "-W", "error", "-m", "openenv_sandbox.cli", "collect", *args]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=here, env={**clean, **state, **env}, text=True, **pipes)


def run(here: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    process = begun(here, *args, **env)
    out, err = process.communicate(timeout=120)
    assert KEY not in out + err
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_family_without_a_model(here: Path, url: str) -> None:
    """The variant goes to the factory, the client is that of the package, the simplest call is made, turns are counted.

    Mutation: give the factory the address instead of a factory of clients
    """
    args = ["lamp:night", "--base-url", url, "-o", "out", "-n", "2", "--dataset-config", '{"a": 1}']
    done = run(here, *args, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["num_collected"], told["num_failed"], told["avg_reward"]) == (2, 0, 0.5)
    assert "2/2 ep-000001 collected" in done.stderr
    first = lines(here / "out")[0]
    assert first["messages"][0]["content"] == "night {'a': 1} LampEnv"
    assert [entry["arguments"] for entry in first["tool_trace"]] == [{"lit": False}, {"lit": False}]
    assert (first["done"], first["reward"], first["metrics"]["turns"]) == (True, 0.5, 2)
    about = json.loads((here / "out" / "metadata.json").read_text())
    assert (about["env"], about["provider"], about["collected"], about["success_rate"]) == (
        "lamp:night",
        "scripted",
        2,
        1.0,
    )
    short = run(here, "lamp_env.harness:make", "--base-url", url, "-o", "short", "-n", "1", "--max-turns", "1")
    assert short.returncode == 0, short.stderr
    assert (lines(here / "short")[0]["done"], lines(here / "short")[0]["metrics"]["turns"]) == (False, 1)


def test_an_environment_of_ours(here: Path) -> None:
    """Installed, with its own policy: a little more in every turn, and the reward of the last.

    Mutation: ignore the policy of the factory's module
    """
    with served_app("echo_env.server.app:app", PACKAGES.parents[2] / "envs") as url:
        done = run(here, "echo:echo_message", "--base-url", url, "-o", "out", "-n", "2", "--max-turns", "3")
    assert done.returncode == 0, done.stderr
    assert [line["reward"] for line in lines(here / "out")] == [0.6, 0.6]
    last = lines(here / "out")[0]["tool_trace"][-1]
    assert (last["arguments"], last["result"]["data"]["result"]) == ({"message": "hahaha"}, "hahaha")


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_model(here: Path, url: str, llm: Llm, provider: str) -> None:
    """The model is asked in its own language, with the tools, the sampling and the system prompt; its key stays secret.

    Mutation: send the tools without their schema; drop the sampling
    """
    args = ["lamp:night", "--base-url", url, "-o", "out", "-n", "1", "--provider", provider, "--llm-endpoint", llm.url]
    sampling = ["--model", "m-1", "--temperature", "0.7", "--max-tokens", "33", "--system-prompt", "be brief"]
    done = run(here, *args, *sampling, **{f"{provider.upper()}_API_KEY": KEY})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "out"
    (first, second) = llm.requests
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m-1", 0.7, 33)
    assert "be brief" in json.dumps(first)
    assert '"lit"' in json.dumps(first["tools"])
    assert len(second["messages"]) == len(first["messages"]) + 2
    assert [entry["arguments"] for entry in lines(here / "out")[0]["tool_trace"]] == [{"lit": True}, {"lit": True}]
    assert KEY not in (here / "out" / "metadata.json").read_text()
    refused = run(here, *args, *sampling, "-n", "2", **{f"{provider.upper()}_API_KEY": "another"})
    assert (refused.returncode, "ep-000001 failed" in refused.stderr) == (1, True)
    assert len(lines(here / "out")) == 1


def test_a_killed_run_goes_on(here: Path, url: str, llm: Llm) -> None:
    """Killed in mid-episode, with a torn last line: what is there is kept and nothing of it is asked again.

    Mutation: begin at the first episode; keep the torn line
    """
    common = ["lamp:night", "--base-url", url, "-o", "out", "-n", "4", "--provider", "openai", "--model", "m"]
    args = [*common, "--llm-endpoint", llm.url.replace("http://", "").rpartition(":")[0]]
    args += ["--llm-port", llm.url.rpartition(":")[2]]
    llm.hold = 6  # the second turn of the third episode
    process = begun(here, *args, OPENAI_API_KEY=KEY)
    assert llm.held.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    llm.released.set()
    assert [line["episode_id"] for line in lines(here / "out")] == ["ep-000000", "ep-000001"]
    whole = (here / "out" / "results.jsonl").read_bytes()
    (here / "out" / "results.jsonl").write_bytes(whole + b'{"episode_id": "ep-000002", "mess')

    llm.requests.clear()
    llm.hold = None
    done = run(here, *args, OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert "the last line was unfinished" in done.stderr
    assert "2 collected, 2 skipped" in done.stderr
    assert len(llm.requests) == 4
    found = (here / "out" / "results.jsonl").read_bytes()
    assert found.startswith(whole)
    assert [line["episode_id"] for line in lines(here / "out")] == [f"ep-00000{n}" for n in range(4)]

    llm.requests.clear()
    again = run(here, *args, "--model", "another", OPENAI_API_KEY=KEY)
    assert "4 skipped" in again.stderr
    assert "model was 'm' for the episodes that are there" in again.stderr
    assert not llm.requests
    refused = run(here, *args, "--no-resume", OPENAI_API_KEY=KEY)
    assert (refused.returncode, "holds 4 episodes" in refused.stderr) == (2, True)
    assert (here / "out" / "results.jsonl").read_bytes() == found


def test_an_interrupt_ends_a_question_that_is_open(here: Path, url: str, llm: Llm) -> None:
    """At once, with what is whole on disk.

    Mutation: wait for the model's answer
    """
    args = ["lamp:night", "--base-url", url, "-o", "out", "-n", "2", "--provider", "openai", "--model", "m"]
    llm.hold = 3
    process = begun(here, *args, "--llm-endpoint", llm.url, OPENAI_API_KEY=KEY)
    assert llm.held.wait(60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert not llm.released.is_set()
    assert (process.returncode, "interrupted" in err) == (130, True), err
    assert "Traceback" not in err
    assert [line["episode_id"] for line in lines(here / "out")] == ["ep-000000"]


def test_losses(here: Path, url: str) -> None:
    """Dropped, unless they are asked for."""
    args = ["lamp_env.harness:Losing", "--base-url", url, "-n", "2"]
    done = run(here, *args, "-o", "wins")
    assert (done.returncode, "2 dropped" in done.stderr) == (0, True)
    assert not (here / "wins" / "results.jsonl").exists()
    kept = run(here, *args, "-o", "all", "--keep-losses")
    assert [line["reward"] for line in lines(here / "all")] == [-1.0, -1.0], kept.stderr


def test_a_server_that_is_gone(here: Path) -> None:
    """Episodes fail, none is written, none is a reward of 0."""
    done = run(here, "lamp:night", "--base-url", "http://127.0.0.1:9", "-o", "out", "-n", "2")
    assert (done.returncode, "2 failed" in done.stderr) == (1, True)
    assert "127.0.0.1:9" in done.stderr
    assert not (here / "out" / "results.jsonl").exists()


def test_what_is_refused(here: Path) -> None:
    """Before anybody is asked; the folder is not made."""
    (here / "two_env").mkdir()
    (here / "two_env" / "__init__.py").write_text("")
    (here / "two_env" / "harness.py").write_text("class ASessionFactory: ...\nclass BSessionFactory: ...\n")
    model = ["--provider", "openai"]
    cases = [
        (["lamp"], 2, "names no environment"),
        (["nothing:here"], 2, "no module nothing"),
        (["two:x"], 2, "ASessionFactory, BSessionFactory"),
        (["lamp_env.harness:mak"], 2, "did you mean 'make'"),
        (["lamp_env.harness:number"], 2, "makes no sessions"),
        (["lamp_env.harness:make", "--dataset-config", "{}"], 2, "takes no dataset_config"),
        (["lamp:x", "--dataset-config", "[1]"], 2, "JSON object"),
        (["lamp:x", *model], 2, "which model"),
        (["lamp:x", *model, "--model", "m"], 3, "OPENAI_API_KEY is not set"),
        (["lamp:x", *model, "--model", "m", "--llm-endpoint", "ftp://h"], 2, "no address"),
    ]
    for args, code, words in cases:
        done = run(here, *args, "--base-url", "http://127.0.0.1:9", "-o", "out")
        assert (done.returncode, words in done.stderr) == (code, True), (args, done.stderr)
    assert not (here / "out").exists()


def test_a_data_set(here: Path, url: str) -> None:
    """Created with a page that says how it came about; an update is a commit; what cannot be filled is deleted again.

    Mutation: leave the empty data set
    """
    args = ["lamp:night", "--base-url", url, "-o", "out", "-n", "1", "-H", "me/lamp", "--private"]
    with served_hub() as hub:
        login = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
        hub.fail["/commit/main"] = 422
        failed = run(here, *args, **login)
        assert (failed.returncode, hub.datasets) == (2, {}), failed.stderr
        hub.fail.clear()
        done = run(here, *args, **login)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == f"{hub.url}/datasets/me/lamp"
        held = hub.datasets["me/lamp"]
        assert held.private
        assert set(held.files) == {"README.md", "metadata.json", "results.jsonl"}
        assert held.files["results.jsonl"] == (here / "out" / "results.jsonl").read_bytes()
        page = held.files["README.md"].decode()
        assert "data_files: results.jsonl" in page
        assert "# lamp:night" in page
        assert "| episodes | 1 |" in page
        assert not hub.spaces
        more = run(here, *args, "-n", "3", "--commit-message", "more", **login)
        assert more.returncode == 0, more.stderr
        assert len(held.files["results.jsonl"].splitlines()) == 3
        bare = run(here, *args[:-3], "-H", "lamp", **login)
        assert (bare.returncode, "owner/name" in bare.stderr) == (2, True)
        nobody = run(here, *args, HF_ENDPOINT=hub.url)
        assert (nobody.returncode, "hf auth login" in nobody.stderr) == (3, True)
