"""Reading and extending a Dockerfile: what it starts, whether it needs BuildKit, which base it stands on.

Only what those three questions need is understood; everything else is passed through untouched.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from dataclasses import dataclass, field, replace

from openenv_sandbox.errors import ImageError
from openenv_sandbox.provider import ImageConfig

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_DIRECTIVE = re.compile(r"#\s*(?P<name>syntax|escape|check)\s*=\s*(?P<value>\S+)\s*\Z", re.IGNORECASE)
_HEREDOC = re.compile(r"(?<!<)<<-?(?!<)\s*(?P<quote>[\"']?)(?P<word>[A-Za-z_][A-Za-z0-9_]*)(?P=quote)")
_VARIABLE = re.compile(r"\\\$|\$(?:\{(?P<braced>\w+)(?::(?P<op>[-+])(?P<word>[^}]*))?\}|(?P<plain>\w+))")
_BUILDKIT_FLAGS = re.compile(
    r"(?:\A|\s)--(?P<flag>mount|network|security|link|parents|exclude|checksum|keep-git-dir)(?:=|\s|\Z)"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction: its keyword in capitals, its arguments with continuations joined, and where it begins."""

    keyword: str
    args: str
    line: int
    heredoc: bool = False


@dataclass(frozen=True)
class Stage:
    """One build stage: the image or stage it stands on, its own name, and its instructions after FROM."""

    base: str
    name: str
    line: int
    flags: tuple[str, ...] = ()
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile taken apart.

    Attributes:
        text: As it was read.
        stages: In order; the last one is what is built.
        args: Defaults of the ARGs before the first FROM.
        needs_buildkit: The line that only BuildKit understands; None when any builder will do.
    """

    text: str
    stages: tuple[Stage, ...]
    args: dict[str, str] = field(default_factory=dict)
    needs_buildkit: str | None = None

    @property
    def final(self) -> Stage:
        """The stage that becomes the image."""
        return self.stages[-1]

    def stage(self, name: str) -> Stage | None:
        """The stage of that name or number, else None: then it is an image."""
        for index, stage in enumerate(self.stages):
            if name.lower() == stage.name or name == str(index):
                return stage
        return None

    def bases(self) -> tuple[str, ...]:
        """Images of the outside that the stages stand on, without repetition."""
        seen: dict[str, None] = {}
        for index, stage in enumerate(self.stages):
            earlier = {s.name for s in self.stages[:index]} | {str(n) for n in range(index)}
            if stage.base.lower() not in earlier and stage.base != "scratch":
                seen[stage.base] = None
        return tuple(seen)


def parse(text: str, *, build_args: dict[str, str] | None = None) -> Dockerfile:
    """Take a Dockerfile apart.

    Args:
        text: The file.
        build_args: Values that replace the defaults of ARGs.

    Raises:
        ImageError: There is no FROM, or an instruction cannot be read.
    """
    given = build_args or {}
    instructions, syntax = _instructions(text)
    args: dict[str, str] = {}
    stages: list[Stage] = []
    current: list[Instruction] = []
    needs = f"# syntax={syntax}" if syntax and _needs_frontend(syntax) else None
    for instruction in instructions:
        if instruction.keyword == "FROM":
            if stages:
                stages[-1] = replace(stages[-1], instructions=tuple(current))
            current = []
            stages.append(_from(instruction, args))
        elif not stages:
            if instruction.keyword != "ARG":
                raise ImageError(f"Dockerfile line {instruction.line}: {instruction.keyword} before the first FROM")
            args.update(arg_values(instruction.args, args, given))
        else:
            current.append(instruction)
        if needs is None:
            needs = _buildkit_reason(instruction)
    if not stages:
        raise ImageError("the Dockerfile has no FROM")
    stages[-1] = replace(stages[-1], instructions=tuple(current))
    return Dockerfile(text=text, stages=tuple(stages), args=args, needs_buildkit=needs)


def config(
    dockerfile: Dockerfile, *, base: ImageConfig | None = None, build_args: dict[str, str] | None = None
) -> ImageConfig:
    """How the built image wants to be started, as far as the file says.

    Args:
        dockerfile: The file.
        base: Config of the image the final stage stands on, where it is known.
        build_args: Values that replace the defaults of ARGs.
    """
    chain = [dockerfile.final]
    while (below := dockerfile.stage(chain[-1].base)) is not None and below not in chain:
        chain.append(below)
    result = base or ImageConfig()
    for stage in reversed(chain):
        result = _apply(stage, result, dockerfile.args, build_args or {})
    return result


def outside_base(dockerfile: Dockerfile) -> str | None:
    """The image that the final stage stands on in the end; None for ``scratch`` or where a variable hides it."""
    stage, seen = dockerfile.final, []
    while (below := dockerfile.stage(stage.base)) is not None and below not in seen:
        seen.append(below)
        stage = below
    return None if stage.base == "scratch" or "$" in stage.base or below is not None else stage.base


def with_base(dockerfile: Dockerfile, base_image: str) -> str:
    """The text with every outside base replaced by ``base_image``.

    Stages that stand on another stage stay; so does ``scratch``, and so do ``COPY --from=IMAGE`` lines.
    """
    lines = dockerfile.text.splitlines(keepends=True)
    outside = set(dockerfile.bases())
    for index, stage in enumerate(dockerfile.stages):
        earlier = {s.name for s in dockerfile.stages[:index]}
        if stage.base not in outside or stage.base.lower() in earlier:
            continue
        first = stage.line - 1
        last = first
        while lines[last].rstrip().endswith("\\") and last + 1 < len(lines):
            last += 1
        flags = "".join(f"{flag} " for flag in stage.flags if not flag.startswith("--platform"))
        name = f" AS {stage.name}" if stage.name else ""
        lines[first : last + 1] = [f"FROM {flags}{base_image}{name}\n", *[""] * (last - first)]
    return "".join(lines)


# ---------------------------------------------------------------------------------------------------- reading


def _instructions(text: str) -> tuple[list[Instruction], str | None]:
    escape, syntax = "\\", None
    lines = text.lstrip("\ufeff").splitlines()
    for line in lines:
        match = _DIRECTIVE.match(line.strip())
        if match is None:
            break
        if match["name"].lower() == "escape":
            escape = match["value"]
        elif match["name"].lower() == "syntax":
            syntax = match["value"]
    found: list[Instruction] = []
    index = 0
    while index < len(lines):
        start = index
        stripped = lines[index].strip()
        index += 1
        if not stripped or stripped.startswith("#"):
            continue
        parts = []
        while stripped.endswith(escape):
            parts.append(stripped[:-1])
            while index < len(lines) and (not lines[index].strip() or lines[index].strip().startswith("#")):
                index += 1
            if index >= len(lines):
                stripped = ""
                break
            stripped = lines[index].strip()
            index += 1
        parts.append(stripped)
        keyword, _, rest = " ".join(part.strip() for part in parts).strip().partition(" ")
        keyword = keyword.upper()
        words = [m["word"] for m in _HEREDOC.finditer(rest)] if keyword in ("RUN", "COPY", "ADD") else []
        for word in words:
            while index < len(lines) and lines[index].strip() != word:
                index += 1
            index += 1
        found.append(Instruction(keyword, rest.strip(), start + 1, heredoc=bool(words)))
    return found, syntax


def _needs_frontend(syntax: str) -> bool:
    """Whether a ``syntax`` line asks for another language; the stock one is a comment to the classic builder."""
    return re.match(r"(docker\.io/)?docker/dockerfile(:[0-9]+(\.[0-9]+)*)?(@\S+)?\Z", syntax) is None


def _buildkit_reason(instruction: Instruction) -> str | None:
    if instruction.heredoc:
        return f"line {instruction.line}: {instruction.keyword} <<… (here-document)"
    if instruction.keyword in ("RUN", "COPY", "ADD"):
        flags = re.match(r"(?:--\S+\s+)*", instruction.args)
        match = _BUILDKIT_FLAGS.search(flags.group() if flags else "")
        if match is not None:
            return f"line {instruction.line}: {instruction.keyword} --{match['flag']}"
    return None


def _from(instruction: Instruction, args: dict[str, str]) -> Stage:
    words = instruction.args.split()
    flags = tuple(word for word in words if word.startswith("--"))
    rest = [word for word in words if not word.startswith("--")]
    if len(rest) not in (1, 3) or (len(rest) == 3 and rest[1].lower() != "as"):
        raise ImageError(f"Dockerfile line {instruction.line}: cannot read FROM {instruction.args}")
    base = expand(rest[0], args)
    if not base:
        raise ImageError(f"Dockerfile line {instruction.line}: FROM {rest[0]} names an ARG without a default")
    return Stage(base, rest[2].lower() if len(rest) == 3 else "", instruction.line, flags)


def arg_values(text: str, known: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """The values that an ARG instruction sets: given ones before its own defaults."""
    found = {}
    for word in _words(text):
        name, equals, value = word.partition("=")
        if name in given:
            found[name] = given[name]
        elif equals:
            found[name] = expand(value, {**known, **found})
        elif name in known:
            found[name] = known[name]
    return found


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return text.split()


def expand(text: str, variables: dict[str, str]) -> str:
    """``$NAME``, ``${NAME}``, ``${NAME:-word}`` and ``${NAME:+word}`` as a Dockerfile means them."""

    def value(match: re.Match[str]) -> str:
        if match.group().startswith("\\"):
            return "$"
        name = match["braced"] or match["plain"]
        current = variables.get(name, "")
        if match["op"] == "-":
            return current or expand(match["word"], variables)
        if match["op"] == "+":
            return expand(match["word"], variables) if current else ""
        return current

    return _VARIABLE.sub(value, text)


def _apply(stage: Stage, below: ImageConfig, global_args: dict[str, str], given: dict[str, str]) -> ImageConfig:
    env = dict(below.env)
    args: dict[str, str] = {}
    entrypoint, cmd, user, workdir, ports = below.entrypoint, below.cmd, below.user, below.workdir, list(below.ports)
    shell, own_cmd = ("/bin/sh", "-c"), False
    for instruction in stage.instructions:
        keyword, text = instruction.keyword, instruction.args
        scope = {"PATH": DEFAULT_PATH, **args, **env}
        if keyword == "ARG":
            args.update(arg_values(text, {**global_args, **args}, given))
        elif keyword == "ENV":
            env.update(env_pairs(text, scope))
        elif keyword == "USER":
            user = expand(text.strip(), scope)
        elif keyword == "WORKDIR":
            workdir = posixpath.normpath(posixpath.join(workdir or "/", expand(unquote(text), scope)))
        elif keyword == "EXPOSE":
            ports += [port for port in _ports(expand(text, scope)) if port not in ports]
        elif keyword == "SHELL":
            shell = tuple(json.loads(text))
        elif keyword == "ENTRYPOINT":
            entrypoint = _argv(text, shell)
            cmd = cmd if own_cmd else ()
        elif keyword == "CMD":
            cmd, own_cmd = _argv(text, shell), True
    return ImageConfig(entrypoint, cmd, env, user or None, workdir, tuple(ports))


def env_pairs(text: str, scope: dict[str, str]) -> dict[str, str]:
    """The variables that an ENV instruction sets, in either of its forms."""
    words = _words(text)
    if words and "=" not in words[0]:
        name, _, value = text.partition(" ")
        return {name: expand(unquote(value), scope)}
    pairs = (word.partition("=") for word in words)
    return {name: expand(value, scope) for name, _, value in pairs}


def unquote(text: str) -> str:
    """A text without the quotes around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _ports(text: str) -> list[int]:
    found: list[int] = []
    for word in text.split():
        number, _, protocol = word.partition("/")
        if protocol.lower() in ("", "tcp") and number.isdigit():
            found.append(int(number))
    return found


def _argv(text: str, shell: tuple[str, ...]) -> tuple[str, ...]:
    if text.startswith("["):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    return (*shell, text) if text else ()
