"""Episodes on disk: one JSON line each."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import FileError
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from openenv_sandbox.harness.types import HarnessRolloutResult, VerifyResult

RESULTS_FILENAME = "results.jsonl"
METADATA_FILENAME = "metadata.json"


@dataclass
class EpisodeRecord:
    """One episode as it is kept.

    Attributes:
        episode_id: Its name.
        messages: The conversation.
        reward: Its reward; None when it has none.
        done: Whether it reached its end.
        tool_trace: The tool calls with their results.
        metrics: Figures of the rollout.
        verify_metrics: Figures of the verification.
        artifacts: Further outcomes of the verification.
        task: What it was about.
        extra: Further fields, kept at the top level of the line.
    """

    episode_id: str
    messages: list[dict[str, Any]]
    reward: float | None
    done: bool
    tool_trace: list[dict[str, Any]]
    metrics: dict[str, Any]
    verify_metrics: dict[str, Any]
    artifacts: dict[str, Any]
    task: Any = None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_rollout(
        cls,
        *,
        episode_id: str,
        rollout: HarnessRolloutResult,
        verify: VerifyResult,
        task: Any = None,
        reward: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> EpisodeRecord:
        """The record of a rollout.

        Args:
            episode_id: Its name.
            rollout: What happened.
            verify: What the environment says about it.
            task: What it was about.
            reward: Its reward, by default that of the verification.
            extra: Further fields.
        """
        trace = [
            {
                "tool_name": entry.tool_name,
                "arguments": entry.arguments,
                "result": {
                    "data": entry.result.data,
                    "done": entry.result.done,
                    "metadata": entry.result.metadata,
                    "error": entry.result.error,
                },
            }
            for entry in rollout.tool_trace
        ]
        return cls(
            episode_id=episode_id,
            messages=list(rollout.messages),
            reward=verify.env_reward if reward is None else reward,
            done=rollout.done or verify.done,
            tool_trace=trace,
            metrics=dict(rollout.metrics),
            verify_metrics=dict(verify.metrics),
            artifacts=dict(verify.artifacts),
            task=task,
            extra=dict(extra or {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON types.

        Raises:
            SerializationError: One has no JSON form; the message names it.
        """
        fields = {name: value for name, value in vars(self).items() if name != "extra"}
        plain: dict[str, Any] = codec.loads(codec.dumps({**self.extra, **fields}))
        return plain


class RolloutSerializer:
    """Keeps episodes in a folder: ``results.jsonl``, one line each, and ``metadata.json``.

    Args:
        output_dir: The folder; made when the first thing is written.
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        self.output_dir = Path(output_dir)

    @property
    def results_path(self) -> Path:
        """The file of episodes."""
        return self.output_dir / RESULTS_FILENAME

    @property
    def metadata_path(self) -> Path:
        """The file about the run."""
        return self.output_dir / METADATA_FILENAME

    def episodes(self) -> Iterator[dict[str, Any]]:
        """Every episode so far.

        Raises:
            FileError: A line is torn or no episode; the message names file and line.
        """
        if not self.results_path.exists():
            return
        with self.results_path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    _ = record["episode_id"]
                except (ValueError, KeyError, TypeError) as error:
                    raise FileError(
                        f"{self.results_path}:{number} is no episode: {error}",
                        hint="the run that wrote it was killed in the middle of the line: remove it and resume",
                    ) from error
                yield record

    def collected_episode_ids(self) -> set[str]:
        """Names of the episodes so far. Raises what `episodes` raises."""
        return {str(record["episode_id"]) for record in self.episodes()}

    def drop_torn_line(self) -> bool:
        """Cut off a last line that a killed run left unfinished; says whether there was one.

        A line is written with its newline, so one without is unfinished unless it is whole all the same.
        """
        try:
            content = self.results_path.read_bytes()
        except FileNotFoundError:
            return False
        keep = content.rfind(b"\n") + 1
        try:
            torn = bool(content[keep:].strip()) and "episode_id" not in json.loads(content[keep:])
        except (ValueError, TypeError):
            torn = True
        if torn:
            os.truncate(self.results_path, keep)
        return torn

    def write_episode(self, record: EpisodeRecord) -> None:
        """Add one episode at the end; it is on disk when this returns.

        Raises:
            SerializationError: A field has no JSON form; nothing was written.
            FileError: The last line of the file is torn.
        """
        line = json.dumps(record.to_dict()).encode() + b"\n"
        self.output_dir.mkdir(parents=True, exist_ok=True)
        with self.results_path.open("ab+") as file:
            if self._open_ended(file):
                line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _open_ended(self, file: Any) -> bool:
        """Whether the last line lacks its newline; a torn one is refused."""
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return False
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return False
        for _ in self.episodes():
            pass
        return True

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace what is known about the run, as a whole or not at all."""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        fresh = self.metadata_path.with_suffix(".json.new")
        text = json.dumps(codec.loads(codec.dumps(dict(metadata))), indent=2, sort_keys=True)
        fresh.write_text(text + "\n", encoding="utf-8")
        fresh.replace(self.metadata_path)

    def read_metadata(self) -> dict[str, Any]:
        """What is known about the run; empty before anything was written."""
        if not self.metadata_path.exists():
            return {}
        found: dict[str, Any] = json.loads(self.metadata_path.read_text(encoding="utf-8"))
        return found
