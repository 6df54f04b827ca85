"""``openenv collect``: rollouts of an environment into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli.terminal import EXIT_FAILURE

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal

_TEACHERS = ("scripted", "openai", "anthropic")


@click.command("collect", short_help="Collect rollouts into a folder.")
@click.argument("env", metavar="FAMILY:VARIANT|MODULE:FACTORY")
@click.option("--base-url", required=True, metavar="URL", help="The environment's server.")
@click.option("--token", envvar="OPENENV_AUTH_TOKEN", show_envvar=True, help="Token of that server.")
@click.option("-o", "--output-dir", required=True, type=click.Path(path_type=Path, file_okay=False), help="The folder.")
@click.option(
    "-n", "--num-episodes", type=click.IntRange(1), default=10, show_default=True, help="How many in the end."
)
@click.option("--max-turns", type=click.IntRange(1), default=9, show_default=True, help="Of one episode.")
@click.option("--episode-id-prefix", default="ep", show_default=True, help="Of their names.")
@click.option("--resume/--no-resume", default=True, show_default=True, help="Go on where a run was stopped.")
@click.option("--provider", type=click.Choice(_TEACHERS), default="scripted", show_default=True, help="Who plays.")
@click.option("--model", help="Name of the model; needed unless scripted.")
@click.option("--llm-endpoint", metavar="URL", help="A service of your own, e.g. http://localhost:8000; /v1 is added.")
@click.option("--llm-port", type=click.IntRange(1, 65535), help="Its port, where the URL does not say.")
@click.option("--temperature", type=float, default=0.2, show_default=True, help="Of the sampling.")
@click.option("--max-tokens", type=click.IntRange(1), default=200, show_default=True, help="Longest answer.")
@click.option("--system-prompt", help="Put before conversations that have none.")
@click.option("--keep-losses", is_flag=True, help="Also keep episodes with a negative reward.")
@click.option(
    "-H", "--push-to-hub", metavar="OWNER/NAME", help="Upload the folder as a data set of the hub afterwards."
)
@click.option("--private", is_flag=True, help="A new data set is private.")
@click.option("--commit-message", help="Of the upload.")
@click.option("--dataset-config", metavar="JSON", help="For factories that take one: JSON or @FILE.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as JSON.")
@click.pass_obj
def command(terminal: Terminal, /, env: str, as_json: bool, **values: Any) -> int:
    """Play episodes against a running server and write results.jsonl and metadata.json.

    FAMILY:VARIANT names an installed environment whose package has a module harness, MODULE:FACTORY any factory of
    sessions. A run that was stopped, however it was, goes on when it is started again. Exit code 1 where an episode
    failed; those are not written. Keys: $OPENAI_API_KEY, $ANTHROPIC_API_KEY.

    Example: openenv collect reasoning_gym:chain_sum --base-url http://localhost:8000 -o out -n 100
    """
    from openenv_sandbox.harness.collecting import Wish, collect
    from openenv_sandbox.harness.sources import Teacher

    push = {name: values.pop(name) for name in ("push_to_hub", "private", "commit_message")}
    token, config = values.pop("token"), values.pop("dataset_config")
    names = ("model", "temperature", "max_tokens", "system_prompt", "provider")
    teacher = Teacher(
        endpoint=values.pop("llm_endpoint"), port=values.pop("llm_port"), **{name: values.pop(name) for name in names}
    )
    headers = {"Authorization": f"Bearer {token}"} if token else None
    wish = Wish(env, teacher=teacher, headers=headers, dataset_config=_json(config), **values)
    with terminal.bar(f"collecting {env}", wish.num_episodes) as advance:
        result = collect(wish, on_episode=lambda name, outcome: advance(f"{name} {outcome}"), on_note=terminal.say)
    url = _push(terminal, wish.output_dir, **push) if push["push_to_hub"] else None
    if as_json:
        terminal.json({**vars(result), "url": url})
    else:
        counts = ("collected", "skipped", "dropped", "failed")
        terminal.say(", ".join(f"{getattr(result, f'num_{name}')} {name}" for name in counts))
        terminal.data(url or str(wish.output_dir))
    return EXIT_FAILURE if result.num_failed else 0


def _push(terminal: Terminal, folder: Path, push_to_hub: str, private: bool, commit_message: str | None) -> str:
    from openenv_sandbox.harness.dataset import push_to_hf_hub

    with terminal.progress(f"pushing to {push_to_hub}"):
        return push_to_hf_hub(folder, push_to_hub, private=private, commit_message=commit_message)


def _json(text: str | None) -> Any:
    if text is None:
        return None
    from openenv_sandbox.cli.options import json_object

    return json_object(text, "--dataset-config")
