"""What a Dockerfile starts, stands on and needs."""

from __future__ import annotations

import pytest

from openenv_sandbox import dockerfile
from openenv_sandbox.build import pythons
from openenv_sandbox.errors import ImageError
from openenv_sandbox.provider import ImageConfig

TWO_STAGES = """\
# syntax=docker/dockerfile:1
ARG BASE_IMAGE=ghcr.io/x/base:latest
FROM --platform=linux/amd64 ${BASE_IMAGE} AS Builder
WORKDIR /app
RUN --mount=type=cache,target=/root/.cache/uv \\
    if [ -f uv.lock ]; then \\
        # a comment in the middle
        uv sync; \\
    fi
ENTRYPOINT ["lost"]

FROM $BASE_IMAGE
WORKDIR /app
WORKDIR env
ARG NAME=echo
COPY --from=builder /app/.venv /app/.venv
ENV PATH="/app/.venv/bin:$PATH" WHO='a b' \\
    TITLE=${NAME:-none}/${MISSING:-x}/${NAME:+y}
ENV OLD style value
USER nobody:${GROUP:-nogroup}
EXPOSE 8000 9000/udp 9001/tcp
HEALTHCHECK CMD curl -f http://localhost:8000/health
CMD ["sh", "-c", "uvicorn server.app:app"]
"""


def config(text: str, base: ImageConfig | None = None) -> ImageConfig:
    return dockerfile.config(dockerfile.parse(text), base=base)


def test_two_stages() -> None:
    parsed = dockerfile.parse(TWO_STAGES)
    assert parsed.bases() == ("ghcr.io/x/base:latest",)
    assert parsed.needs_buildkit == "line 5: RUN --mount"
    assert dockerfile.config(parsed) == ImageConfig(
        entrypoint=(),
        cmd=("sh", "-c", "uvicorn server.app:app"),
        env={
            "PATH": f"/app/.venv/bin:{dockerfile.DEFAULT_PATH}",
            "WHO": "a b",
            "TITLE": "echo/x/y",
            "OLD": "style value",
        },
        user="nobody:nogroup",
        workdir="/app/env",
        ports=(8000, 9001),
    )


def test_stages_inherit_and_an_entrypoint_clears_an_inherited_cmd() -> None:
    text = 'FROM a AS one\nENV A=1\nCMD ["x"]\nFROM one\nENV B=$A\n'
    assert config(text).cmd == ("x",)
    assert config(text).env == {"A": "1", "B": "1"}
    assert config(text + 'ENTRYPOINT ["y"]\n').argv == ("y",)
    assert config(text + 'CMD ["z"]\nENTRYPOINT ["y"]\n').argv == ("y", "z")
    assert config("FROM a\n", base=ImageConfig(cmd=("b",), user="u")).user == "u"


def test_shell_forms() -> None:
    assert config("FROM a\nCMD run me\n").cmd == ("/bin/sh", "-c", "run me")
    assert config('FROM a\nSHELL ["/bin/bash", "-c"]\nCMD run me\n').cmd == ("/bin/bash", "-c", "run me")


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ("RUN --mount=type=secret,id=x true", True),
        ("RUN <<EOF\nCMD inner\nEOF", True),
        ("COPY --link a b", True),
        ("COPY --from=x a b", False),
        ("COPY --chown=a:b a b", False),
        ("RUN echo --mount", False),
        ("RUN cat <<< text", False),
    ],
)
def test_what_needs_buildkit(line: str, needs: bool) -> None:
    parsed = dockerfile.parse(f"FROM a\n{line}\nCMD last\n")
    assert (parsed.needs_buildkit is not None) is needs
    assert dockerfile.config(parsed).cmd[-1] == "last"
    assert len(parsed.final.instructions) == 2


@pytest.mark.parametrize(("syntax", "needs"), [("docker/dockerfile:1.7", False), ("example/lang:1", True)])
def test_only_another_front_end_needs_buildkit(syntax: str, needs: bool) -> None:
    assert (dockerfile.parse(f"# syntax={syntax}\nFROM a\n").needs_buildkit is not None) is needs


def test_another_base_replaces_every_outside_one() -> None:
    replaced = dockerfile.with_base(dockerfile.parse(TWO_STAGES), "mine:1")
    assert "FROM mine:1 AS builder\n" in replaced
    assert dockerfile.parse(replaced).bases() == ("mine:1",)
    text = "FROM a AS x\nFROM \\\n  x \\\n  AS y\nFROM scratch\nCOPY --from=y a b\n"
    assert dockerfile.with_base(dockerfile.parse(text), "m") == text.replace("FROM a AS x", "FROM m AS x")
    assert len(replaced.splitlines()) == len(TWO_STAGES.splitlines())


@pytest.mark.parametrize("text", ["", "RUN x\nFROM a\n", "FROM\n", "FROM ${X}\n", "FROM a b\n"])
def test_unreadable(text: str) -> None:
    with pytest.raises(ImageError):
        dockerfile.parse(text)


def test_the_python_that_a_command_uses() -> None:
    def of(*argv: str) -> list[str]:
        return pythons(ImageConfig(cmd=argv, workdir="/app/env"))

    assert of("/app/.venv/bin/uvicorn", "a:b") == ["/app/.venv/bin/python"]
    assert of("/usr/bin/python3.12", "-m", "x") == ["/usr/bin/python3.12"]
    assert of("/bin/sh", "-c", "cd /app/env && uv run uvicorn a:b") == [
        "/app/env/.venv/bin/python",
    ]
    assert of("sh", "-c", "exec /opt/v/bin/python -m x") == ["/opt/v/bin/python"]
    assert of("uvicorn", "a:b") == []
