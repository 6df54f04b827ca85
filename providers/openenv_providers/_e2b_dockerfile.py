"""A Dockerfile as the steps of a template of e2b or novita.

Their builders know one stage and two steps that are used here: COPY, and RUN of a shell command. Everything else is
resolved before: variables, working folder and user go into each RUN itself, because the services neither carry ENV into
what runs later nor agree on how a step inherits it; and CMD and ENTRYPOINT are left out, because the services would run
them at every start, and core starts the server.
"""

from __future__ import annotations

import glob
import json
import os
import posixpath
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openenv_sandbox.dockerfile import DEFAULT_PATH, arg_values, env_pairs, expand, unquote
from openenv_sandbox.errors import ImageError

if TYPE_CHECKING:
    from pathlib import Path

    from openenv_sandbox.dockerfile import Dockerfile, Instruction
    from openenv_sandbox.provider import ImageConfig

_NO_STEP = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "STOPSIGNAL", "HEALTHCHECK", "VOLUME", "MAINTAINER"})
_ELSEWHERE = (
    "option build_folders=False has the local docker build it and push it to [image] registry; or give a pushed ref"
)
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class Step:
    """One step: ``copy`` of ``source`` (in the upload) to ``target``, or ``run`` of ``command``.

    Attributes:
        source: Path in the upload; empty for ``run``.
        target: Absolute path in the image.
        command: A POSIX-sh script.
        user: Who runs it, or owns what is copied.
        mode: Of what is copied; None keeps it.
    """

    source: str = ""
    target: str = ""
    command: str = ""
    user: str = "root"
    mode: int | None = None


def steps(parsed: Dockerfile, base: ImageConfig, context: Path, name: str) -> list[Step]:
    """What has to be done on top of the base image.

    Args:
        parsed: The Dockerfile.
        base: Config of the image it stands on.
        context: The folder's files, as they are uploaded.
        name: The backend, for errors.

    Raises:
        ImageError: It has more than one stage, or a line that the service cannot do; says which.
    """
    if len(parsed.stages) > 1:
        raise ImageError(
            f"{name} builds templates of one stage, and this Dockerfile has {len(parsed.stages)}",
            provider=name,
            hint=_ELSEWHERE,
        )
    return _Translation(base, context, name, parsed.args).run(parsed.final.instructions)


class _Translation:
    def __init__(self, base: ImageConfig, context: Path, name: str, args: dict[str, str]) -> None:
        self.env, self.args, self.global_args = dict(base.env), dict[str, str](), args
        self.user, self.workdir = base.user or "root", base.workdir or "/"
        self.shell = ["/bin/sh", "-c"]
        self.context, self.name = context, name
        self.steps: list[Step] = []

    @property
    def scope(self) -> dict[str, str]:
        return {"PATH": DEFAULT_PATH, **self.args, **self.env}

    def run(self, instructions: tuple[Instruction, ...]) -> list[Step]:
        for instruction in instructions:
            keyword, text = instruction.keyword, instruction.args
            if instruction.heredoc:
                raise self.refused(instruction, "here-documents")
            if keyword == "ARG":
                self.args.update(arg_values(text, {**self.global_args, **self.args}, {}))
            elif keyword == "ENV":
                self.env.update(env_pairs(text, self.scope))
            elif keyword == "USER":
                self.user = expand(text.strip(), self.scope)
            elif keyword == "WORKDIR":
                self.workdir = self.absolute(expand(unquote(text), self.scope))
                self.steps.append(Step(command=f"mkdir -p {shlex.quote(self.workdir)}"))
            elif keyword == "SHELL":
                self.shell = json.loads(text)
            elif keyword == "RUN":
                self.run_step(instruction)
            elif keyword in ("COPY", "ADD"):
                self.copy_step(instruction)
            elif keyword not in _NO_STEP:
                raise self.refused(instruction, keyword)
        return self.steps

    def refused(self, instruction: Instruction, what: str) -> ImageError:
        return ImageError(
            f"Dockerfile line {instruction.line}: {self.name} cannot do {what}", provider=self.name, hint=_ELSEWHERE
        )

    def absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def run_step(self, instruction: Instruction) -> None:
        text = instruction.args
        if text.startswith("--"):
            raise self.refused(instruction, f"RUN {text.split()[0]}")
        user, _, group = self.user.partition(":")
        if user.isdecimal() and int(user) == 0:
            user = "root"
        if user.isdecimal() or group not in ("", user, "0", "root"):
            raise self.refused(instruction, f"RUN as {self.user} (users by name only, with their own group)")
        argv = _exec_form(text)
        command = shlex.join(argv if argv is not None else [*self.shell, text])
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.scope.items()]
        script = "; ".join([*exports, f"cd {shlex.quote(self.workdir)} && {command}"])
        self.steps.append(Step(command=f"/bin/sh -c {shlex.quote(script)}", user=user))

    def copy_step(self, instruction: Instruction) -> None:
        owner, mode, words = "root:root", None, _words(instruction.args)
        while words and words[0].startswith("--"):
            flag, _, value = words.pop(0).partition("=")
            if flag == "--chown":
                owner = expand(value, self.scope)
            elif flag == "--chmod" and value.isdigit():
                mode = int(value, 8)
            elif flag not in ("--link",):
                raise self.refused(instruction, f"{instruction.keyword} {flag}")
        *sources, target = [expand(word, self.scope) for word in words] or [""]
        if not sources or not target:
            raise self.refused(instruction, f"a {instruction.keyword} without source or target")
        found = [path for source in sources for path in self.found(instruction, source)]
        folder = target.endswith("/") or len(found) > 1
        place = self.absolute(target) + ("/" if folder else "")
        for path in found:
            if instruction.keyword == "ADD" and ("://" in path or path.endswith(_ARCHIVES)):
                raise self.refused(instruction, "ADD of a URL or an archive")
            self.steps.append(Step(source=path, target=place, user=owner, mode=mode))

    def found(self, instruction: Instruction, source: str) -> list[str]:
        """The files that ``source`` names, relative to the context."""
        if "://" in source:
            return [source]
        relative = posixpath.normpath(source.lstrip("/")) if source.strip("/") else "."
        names = glob.glob(relative, root_dir=self.context) if glob.has_magic(relative) else [relative]
        names = sorted(name for name in names if os.path.lexists(self.context / name))
        if not names or relative.startswith(".."):
            raise ImageError(
                f"Dockerfile line {instruction.line}: {source} is not in the folder, or .dockerignore leaves it out",
                provider=self.name,
            )
        return names


def _exec_form(text: str) -> list[str] | None:
    if not text.startswith("["):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(word, str) for word in value) else None


def _words(text: str) -> list[str]:
    flags: list[str] = []
    rest = text.strip()
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.lstrip()
    listed = _exec_form(rest)
    return [*flags, *(listed if listed is not None else shlex.split(rest))]
