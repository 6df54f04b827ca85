"""``openenv build``: an environment's image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.options import pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.cli.terminal import Terminal


@click.command("build", short_help="Build an environment's image.")
@click.argument("path", default=".", type=click.Path(path_type=Path, resolve_path=True))
@click.option("-t", "--tag", "tags", multiple=True, help="Name of the image; default openenv-NAME:latest. Repeatable.")
@click.option("--base-image", help="Replaces the Dockerfile's base; default $OPENENV_BASE_IMAGE, else as written.")
@click.option("--build-arg", "arguments", multiple=True, metavar="K=V", help="Value of an ARG; readable in the image.")
@click.option("--no-cache", is_flag=True, help="Build every step anew.")
@click.option("--host", help="The daemon, e.g. unix:///run/podman/podman.sock; default that of docker.")
@click.pass_obj
def command(
    terminal: Terminal,
    path: Path,
    tags: tuple[str, ...],
    base_image: str | None,
    arguments: tuple[str, ...],
    no_cache: bool,
    host: str | None,
) -> None:
    """Build the folder PATH and print the image's name. The openenv that runs this command goes into the image.

    Example: openenv build ./my_env -t ghcr.io/me/my-env:1
    """
    given = pairs(arguments, "--build-arg")
    with terminal.progress(f"building {path}") as update:
        names = interrupt.run(terminal, _build(terminal, update, path, tags, base_image, given, no_cache, host))
    for name in names:
        terminal.data(name)


async def _build(
    terminal: Terminal,
    update: Callable[[str], None],
    path: Path,
    tags: tuple[str, ...],
    base_image: str | None,
    arguments: dict[str, str],
    no_cache: bool,
    host: str | None,
) -> list[str]:
    import asyncio

    from openenv_sandbox import _dockerhost, build, image

    def on_log(line: str) -> None:
        if terminal.verbosity:
            terminal.say(line)
        else:
            update(line)

    parsed = await asyncio.to_thread(image.parse, str(path))
    where = await asyncio.to_thread(_dockerhost.resolve, host)
    names = list(tags) or [f"openenv-{parsed.name.replace('_', '-').lower()}:latest"]
    built = await build.build_folder(
        parsed, host=where, on_log=on_log, base_image=base_image, build_args=arguments, force=no_cache
    )
    await build.tag(built, names, host=where)
    return names
