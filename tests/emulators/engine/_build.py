"""Dockerfiles, built by really running them: each stage in a box, the last one's snapshot is the image."""

from __future__ import annotations

import glob
import inspect
import io
import json
import os
import posixpath
import re
import shlex
import tarfile
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from openenv_sandbox import dockerfile as files
from openenv_sandbox.errors import ImageError
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.provider import ImageConfig

from ._images import EmuImage, base_env

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from ._box import Box
    from ._engine import Engine

_HOST_ROOT = re.compile(r"(?:[\w.:-]+/)*(?:python|debian|ubuntu|openenv-base)(?::[\w.-]+)?(?:@sha256:\w+)?\Z")
"""Bases nobody here has, which the host's own root stands for."""


class BuildFailed(Exception):
    """A step failed; ``log`` is what was said until then."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass
class _Build:
    engine: Engine
    file: files.Dockerfile
    context: Path | None
    sink: Callable[[str], Awaitable[None] | None]
    build_args: dict[str, str]
    said: list[str] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)

    async def log(self, line: str) -> None:
        self.said.append(line)
        result = self.sink(line)
        if inspect.isawaitable(result):
            await result

    def fail(self, message: str) -> BuildFailed:
        return BuildFailed(message, "\n".join(self.said))


async def build(
    engine: Engine,
    dockerfile: str,
    context: Path | None,
    *,
    log: Callable[[str], Awaitable[None] | None],
    ref: str | None,
    build_args: dict[str, str] | None = None,
) -> EmuImage:
    """See `Engine.build`."""
    given = build_args or {}
    try:
        job = _Build(engine, files.parse(dockerfile, build_args=given), context, log, given)
    except ImageError as error:
        raise BuildFailed(f"{error.message}") from error
    ref = ref or f"{engine.registry}/built-{uuid.uuid4().hex[:12]}:1"
    configs: list[EmuImage] = []
    try:
        for stage in job.file.stages:
            configs.append(await _stage(job, stage, configs))
        layer = await engine.layer_of(job.boxes[-1])
    finally:
        for box in job.boxes:
            await box.stop()
    engine.images[ref] = configs[-1].but(ref=ref, layer=layer)
    await job.log(f"Successfully built {ref}")
    return engine.images[ref]


async def _stage(job: _Build, stage: files.Stage, before: Sequence[EmuImage]) -> EmuImage:
    names = [s.name for s in job.file.stages[: len(before)]]
    await job.log(f"FROM {stage.base}")
    if stage.base.lower() in names:
        number = names.index(stage.base.lower())
        below = before[number].but(layer=await job.engine.layer_of(job.boxes[number]))
    else:
        below = _base(job, stage.base)
    box = await job.engine.spare(below, f"build-{len(before)}")
    job.boxes.append(box)
    base = ImageConfig(below.entrypoint, below.cmd, below.env, below.user, below.workdir, below.ports)
    alone = replace(stage, base="outside", name="")
    args = dict[str, str]()
    config = base
    for number, step in enumerate(stage.instructions):
        await job.log(f"{step.keyword} {step.args}")
        so_far = replace(alone, instructions=stage.instructions[: number + 1])
        try:
            config = files.config(replace(job.file, stages=(so_far,)), base=base, build_args=job.build_args)
        except (ImageError, ValueError) as error:
            raise job.fail(f"line {step.line}: {error}") from error
        if step.keyword == "ARG":
            args.update(files.arg_values(step.args, {**job.file.args, **args}, job.build_args))
        await _step(job, box, step, config, args, so_far)
    return EmuImage(
        stage.base, config.cmd, config.entrypoint, dict(config.env), config.user, config.workdir, config.ports
    )


def _base(job: _Build, ref: str) -> EmuImage:
    found = job.engine.find_image(ref)
    if found is not None:
        return found
    if _HOST_ROOT.match(ref):
        return EmuImage(ref, ("python3",), env=base_env())
    raise job.fail(f"pull access denied for {ref}: repository does not exist")


async def _step(
    job: _Build, box: Box, step: files.Instruction, config: ImageConfig, args: dict[str, str], stage: files.Stage
) -> None:
    if step.keyword == "WORKDIR" and config.workdir:
        await box.mkdir(config.workdir)
    elif step.keyword == "RUN":
        await _run(job, box, step, config, args, stage)
    elif step.keyword in ("COPY", "ADD"):
        await _copy(job, box, step, config, {**args, **config.env})
    elif step.keyword not in _CONFIG:
        raise job.fail(f"dockerfile parse error on line {step.line}: unknown instruction: {step.keyword}")


_CONFIG = frozenset("ARG CMD ENTRYPOINT ENV EXPOSE HEALTHCHECK LABEL SHELL STOPSIGNAL USER VOLUME WORKDIR".split())


def _flags(text: str) -> tuple[dict[str, str], str]:
    flags = {}
    while found := re.match(r"--([a-z-]+)(?:=(\S+))?\s+", text):
        flags[found[1]] = found[2] or ""
        text = text[found.end() :]
    return flags, text


def _array(text: str) -> list[str] | None:
    """A JSON array of texts; what only looks like one (``[[ … ]]``) is a command."""
    try:
        value = json.loads(text) if text.startswith("[") else None
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None


async def _run(
    job: _Build, box: Box, step: files.Instruction, config: ImageConfig, args: dict[str, str], stage: files.Stage
) -> None:
    if step.heredoc:
        raise job.fail(f"line {step.line}: here-documents are not built here")
    _, text = _flags(step.args)
    shells = [json.loads(other.args) for other in stage.instructions if other.keyword == "SHELL"]
    argv = _array(text) or [*(shells[-1] if shells else ["/bin/sh", "-c"]), text]
    merged = {**args, **config.env}
    try:
        proc = await box.exec(argv, env=merged, cwd=config.workdir, user=config.user)
    except OSError as error:
        raise job.fail(f"{error.filename}: {error.strerror}") from error
    code, out, err = await proc.communicate()
    for line in (out + err).decode(errors="replace").splitlines():
        await job.log(line)
    if code != 0:
        raise job.fail(f"The command '{shlex.join(argv)}' returned a non-zero code: {code}")


async def _copy(job: _Build, box: Box, step: files.Instruction, config: ImageConfig, scope: dict[str, str]) -> None:
    flags, text = _flags(step.args)
    words = _array(text) or shlex.split(text)
    words = [files.expand(word, scope) for word in words]
    if step.heredoc or len(words) < 2 or any("://" in word for word in words):
        raise job.fail(f"line {step.line}: cannot {step.keyword} {text}")
    *sources, target = words
    into = target.endswith("/") or len(sources) > 1 or target in (".", "..")
    target = posixpath.normpath(posixpath.join(config.workdir or "/", target))
    try:
        if "from" in flags:
            stage = job.file.stage(flags["from"])
            if stage is None:
                raise job.fail(f"invalid from flag value {flags['from']}: no such stage")
            other = job.boxes[job.file.stages.index(stage)]
            packed = await other.visit(_pack, "/", sources, target, into, flags)
        elif job.context is None:
            raise job.fail(f"{step.keyword} failed: there is no build context")
        else:
            packed = await daemon_call(_pack, str(job.context), sources, target, into, flags)
    except (OSError, ValueError) as error:
        raise job.fail(f"{step.keyword} failed: {error}") from error
    code, _, err = await box.run(["tar", "-xpf", "-", "-C", "/"], packed)
    if code != 0:
        raise job.fail(f"{step.keyword} failed: {err.decode(errors='replace')}")


def _pack(root: str, sources: Sequence[str], target: str, into: bool, flags: dict[str, str]) -> bytes:
    """A tar of what COPY takes from below ``root``, with the names it gets in the image."""
    buffer = io.BytesIO()
    uid, gid = (int(part) for part in f"{flags.get('chown', '0')}:0".split(":")[:2])

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid, entry.gid, entry.uname, entry.gname = uid, gid, "", ""
        if "chmod" in flags:
            entry.mode = int(flags["chmod"], 8)
        return entry

    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for source in sources:
            clean = posixpath.normpath("/" + source)
            found = sorted(glob.glob(root.rstrip("/") + clean))
            if not found:
                raise FileNotFoundError(f"file not found in build context: {source}")
            for path in found:
                if os.path.isdir(path):
                    for name in sorted(os.listdir(path)):
                        tar.add(os.path.join(path, name), f"{target}/{name}".lstrip("/"), filter=owned)
                else:
                    whole = f"{target}/{os.path.basename(path)}" if into else target
                    tar.add(path, whole.lstrip("/"), filter=owned)
    return buffer.getvalue()
