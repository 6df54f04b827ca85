"""One run of ``openenv collect``: into a folder, going on where an earlier run of the same episodes was stopped."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import ConfigError
from openenv_sandbox.harness.adapters import MCPHarnessAdapter
from openenv_sandbox.harness.collect import CollectRunner
from openenv_sandbox.harness.dataset import summary
from openenv_sandbox.harness.records import RolloutSerializer
from openenv_sandbox.harness.sources import Teacher, find_factory, model_step
from openenv_sandbox.harness.types import HarnessRunLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from openenv_sandbox.harness.collect import CollectResult
    from openenv_sandbox.harness.records import EpisodeRecord

_SAME = ("env", "provider", "model", "temperature", "max_tokens", "system_prompt", "dataset_config", "max_turns")
"""Settings that make episodes of two runs comparable."""


@dataclass(frozen=True)
class Wish:
    """What is asked for.

    Attributes:
        env: ``FAMILY:VARIANT`` or ``module:factory``.
        base_url: Of the environment's server.
        output_dir: The folder.
        num_episodes: How many there shall be in the end.
        max_turns: Answers of the model in one episode.
        episode_id_prefix: Of their names.
        resume: Go on where an earlier run was stopped; without, a folder that holds episodes is refused.
        keep_losses: Keep episodes with a negative reward.
        teacher: Who plays.
        dataset_config: Given to factories that take one.
        headers: Sent to the server.
    """

    env: str
    base_url: str
    output_dir: Path
    num_episodes: int = 10
    max_turns: int = 9
    episode_id_prefix: str = "ep"
    resume: bool = True
    keep_losses: bool = False
    teacher: Teacher = field(default_factory=Teacher)
    dataset_config: Any = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)


def collect(
    wish: Wish,
    *,
    on_episode: Callable[[str, str], object] | None = None,
    on_note: Callable[[str], object] = lambda text: None,
) -> CollectResult:
    """Collect. Blocks.

    Args:
        wish: What is asked for.
        on_episode: Told each episode's name and what became of it.
        on_note: Told what is worth knowing beside that.

    Raises:
        ConfigError: The environment, the policy or the folder is not what it must be; nothing was asked of anybody.
        AuthError: The hosted service wants a key, and there is none.
        FileError: A line in the middle of the file is torn.
    """
    serializer = RolloutSerializer(wish.output_dir)
    factory, policy = find_factory(
        wish.env, base_url=wish.base_url, headers=wish.headers, dataset_config=wish.dataset_config
    )
    step = model_step(wish.teacher, policy)
    if serializer.drop_torn_line():
        on_note(f"{serializer.results_path}: the last line was unfinished and is collected again")
    there = serializer.collected_episode_ids()
    if there and not wish.resume:
        raise ConfigError(
            f"{wish.output_dir} holds {len(there)} episodes", hint="--resume goes on; else name another folder"
        )
    settings = _settings(wish)
    before = serializer.read_metadata()
    for name in _SAME if there else ():
        if name in before and before[name] != settings[name]:
            on_note(f"{name} was {before[name]!r} for the episodes that are there and is now {settings[name]!r}")
    serializer.write_metadata({**settings, "started_at": before.get("started_at", _now())})
    runner = CollectRunner(
        session_factory=factory,
        harness_adapter=MCPHarnessAdapter(),
        serializer=serializer,
        limits=HarnessRunLimits(max_turns=wish.max_turns),
    )
    result = runner.run(
        model_step=step,
        num_episodes=wish.num_episodes,
        episode_id_prefix=wish.episode_id_prefix,
        should_keep=None if wish.keep_losses else _is_no_loss,
        on_episode=on_episode,
    )
    rewards = [episode.get("reward") for episode in serializer.episodes()]
    done = {"collected": len(rewards), **summary(rewards), "finished_at": _now()}
    serializer.write_metadata({**serializer.read_metadata(), **done})
    return result


def _is_no_loss(record: EpisodeRecord) -> bool:
    return record.reward is None or record.reward >= 0


def _settings(wish: Wish) -> dict[str, Any]:
    from openenv_sandbox import __version__

    names = ("env", "base_url", "num_episodes", "max_turns", "episode_id_prefix", "keep_losses", "dataset_config")
    teacher = {name: value for name, value in asdict(wish.teacher).items() if name not in ("endpoint", "port")}
    return {**{name: getattr(wish, name) for name in names}, **teacher, "openenv_version": __version__}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
