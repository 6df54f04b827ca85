"""Collected episodes as a data set of the Hugging Face hub. Needs the extra ``hub``."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import ConfigError, FileError
from openenv_sandbox.harness.records import METADATA_FILENAME, RESULTS_FILENAME, RolloutSerializer

if TYPE_CHECKING:
    import os

README_FILENAME = "README.md"
_REPO = re.compile(r"[\w.-]+/[\w.-]+\Z")


def build_dataset_readme(output_dir: Path) -> str:
    """The page of a data set: what the viewer of the hub reads, then how the episodes came about.

    Args:
        output_dir: A folder that a `RolloutSerializer` wrote.

    Raises:
        FileError: A line of it is torn.
    """
    import yaml

    serializer = RolloutSerializer(output_dir)
    rewards = [episode.get("reward") for episode in serializer.episodes()]
    about = serializer.read_metadata()
    front = {
        "configs": [{"config_name": "default", "data_files": RESULTS_FILENAME}],
        "tags": ["openenv", "rollouts"],
        "task_categories": ["reinforcement-learning"],
    }
    rows: dict[str, Any] = {"episodes": len(rewards), **summary(rewards)}
    rows |= {name: value for name, value in about.items() if name not in rows and not isinstance(value, (dict, list))}
    lines = ["---", yaml.safe_dump(front, sort_keys=False).rstrip("\n"), "---", "", f"# {about.get('env', 'Rollouts')}"]
    lines += ["", f"Episodes collected with openenv; one JSON object a line in `{RESULTS_FILENAME}`.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows.items())]
    return "\n".join(lines) + "\n"


def summary(rewards: list[Any]) -> dict[str, float | None]:
    """Mean reward and share of positive ones, of episodes that have one; None where none has."""
    known = [float(reward) for reward in rewards if reward is not None]
    if not known:
        return {"avg_reward": None, "success_rate": None}
    return {"avg_reward": sum(known) / len(known), "success_rate": sum(one > 0 for one in known) / len(known)}


def push_to_hf_hub(
    output_dir: Path | str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    commit_message: str | None = None,
    token: str | None = None,
) -> str:
    """Create or update a data set. Blocks.

    Args:
        output_dir: A folder that a `RolloutSerializer` wrote. Its README.md goes along where it has one.
        repo_id: ``owner/name``.
        private: Whether a new data set is private.
        commit_message: Of the commit.
        token: Instead of the one that is logged in.

    Returns:
        The address of the data set.

    Raises:
        FileError: The folder holds no episodes, or a torn line.
        ConfigError: The name cannot be.
        AuthError: There is no token, or it may not do this.
        MissingExtraError: The extra ``hub`` is not installed.
        ProviderUnavailable: The hub cannot be reached.
        ProviderError: The hub refused. A data set that was new is deleted again.
    """
    from openenv_sandbox.authoring._hub_api import Hub

    if not _REPO.match(repo_id):
        raise ConfigError(f"{repo_id!r} does not name a data set", hint="write owner/name")
    folder = Path(output_dir)
    if not (folder / RESULTS_FILENAME).is_file():
        raise FileError(f"{folder} holds no {RESULTS_FILENAME}", hint="collect episodes into it first")
    readme = build_dataset_readme(folder)
    names = [name for name in (RESULTS_FILENAME, METADATA_FILENAME, README_FILENAME) if (folder / name).is_file()]
    files = {name: folder / name for name in names}
    with tempfile.TemporaryDirectory(prefix="openenv-dataset-") as scratch:
        if README_FILENAME not in files:
            files[README_FILENAME] = Path(scratch, README_FILENAME)
            files[README_FILENAME].write_text(readme, encoding="utf-8")
        return Hub(token=token).push_dataset(repo_id, files, private, commit_message or "Push episodes by openenv")


def _cell(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)
    return " ".join(text.split()).replace("|", "\\|")
