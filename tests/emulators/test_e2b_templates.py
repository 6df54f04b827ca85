"""Templates of E2B and Novita: what is built, once, from what, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.errors import BuildError, CapabilityError, ImageError
from openenv_sandbox.prepare import prepare as prepared_once
from tests.emulators.e2b_bench import Clouds, made, prepare, spec_of
from tests.emulators.engine import LOGIN
from tests.emulators.proof import ECHO

if TYPE_CHECKING:
    from tests.emulators.proof import Stage

LIGHT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("light_server.py")))
ECHO_ENV = str(Path(__file__).parents[2] / "envs" / "echo_env")
DOCKERFILE = """
ARG BASE
FROM {base}
ARG FLAVOUR=plain
ENV GREETING="hello $FLAVOUR" PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv/env
COPY --chmod=640 notes/*.txt notes/
COPY server.py ./
RUN echo "$GREETING from $(pwd) as $(id -un)" > built && ls notes >> built
USER nobody
RUN id -un > /tmp/who
CMD ["python3", "server.py"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment, as far as a builder cares."""
    monkeypatch.delenv("OPENENV_BASE_IMAGE", raising=False)
    root = tmp_path / "some_env"
    (root / "notes").mkdir(parents=True)
    (root / "openenv.yaml").write_text("spec_version: 1\nname: some_env\napp: server:app\nport: 8000\n")
    (root / "notes" / "a.txt").write_text("a")
    (root / "notes" / "b.txt").write_text("b")
    (root / "notes" / "c.md").write_text("c")
    (root / "server.py").write_text("print('served')\n")
    (root / ".dockerignore").write_text("**/b.txt\n")
    return root


def write(folder: Path, stage: Stage, text: str = DOCKERFILE) -> str:
    (folder / "Dockerfile").write_text(text.format(base=stage.emulated.light).lstrip())
    return str(folder)


def builds(stage: Stage) -> int:
    return sum(len(template.builds) for template in stage.emulated.face.builder.templates.values())


class TestTemplates(Clouds):
    async def test_folder(self, stage: Stage, folder: Path) -> None:
        """A folder is built as docker would, and nothing of it is started by the vendor.

        Mutation: a step runs in another folder, as another user, without its variables, or CMD becomes a start command
        """
        stage.emulated.options = {**stage.emulated.options, "keep_openenv": True}
        provider, log = await stage.make(), list[str]()
        prepared = await prepare(provider, spec_of(stage, write(folder, stage)), log)
        assert prepared.image.argv == ("python3", "server.py")
        assert (prepared.image.env["GREETING"], prepared.image.workdir) == ("hello plain", "/srv/env")
        assert prepared.image.user == "nobody"
        assert any("COPY" in line for line in log)
        template = stage.emulated.face.builder.find(prepared.ref)
        assert template.start_cmd in ("", "sleep infinity")
        spec = spec_of(stage, str(folder))
        sandbox = await provider.create(prepared, spec, key="oe-12345678-abcdefabcdef")
        said = await run(sandbox, "cat built /tmp/who; stat -c %a notes/a.txt; ls -A", cwd="/srv/env")
        assert said.split("\n")[:4] == ["hello plain from /srv/env as root", "a.txt", "nobody", "640"]
        assert ".dockerignore" not in said
        await provider.delete(sandbox.ref)
        await provider.aclose()

    async def test_echo_env_from_its_folder(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """The repository's own environment, from the folder to a step, with the openenv that runs here.

        Mutation: the server is started by the vendor too, or on another openenv
        """
        monkeypatch.setenv("OPENENV_BASE_IMAGE", stage.emulated.light)
        async with stage.launch(ECHO_ENV) as env:
            await env.reset()
            assert "through the port url" in str((await env.step(ECHO)).observation)
            each = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"
            servers = await env.sandbox.exec(f"{each} | grep -c '^python3 -m uvicorn'")
            assert servers.text().strip() == "1"

    async def test_running_openenv_is_installed(self, stage: Stage, folder: Path) -> None:
        """The openenv inside is the one that builds.

        Mutation: the wheel is left out by the folder's own .dockerignore
        """
        (folder / ".dockerignore").write_text("**/*.whl\n**/install.sh\n")
        provider, log = await stage.make(), list[str]()
        await prepare(provider, spec_of(stage, write(folder, stage)), log)
        assert any("install.sh" in line for line in log), log[-20:]
        assert any("openenv" in line and ".whl" in line for line in log)
        await provider.aclose()

    async def test_built_once(self, stage: Stage, folder: Path) -> None:
        """Ten who want the same wait for one build, and a second process finds it; other sizes are another template.

        Mutation: the name does not hang on the content or the sizes, or a standing template is built again
        """
        from openenv_sandbox.image import parse

        provider, other = await stage.make(), await stage.make()
        spec = spec_of(stage, write(folder, stage))
        image = await asyncio.to_thread(parse, spec.image)
        logs: list[list[str]] = [[] for _ in range(10)]
        found = await asyncio.gather(*(prepared_once(provider, spec, image, on_log=log.append) for log in logs))
        assert {prepared.ref for prepared in found} == {found[0].ref}
        assert builds(stage) == 1
        assert all(any("Starting building" in line for line in log) for log in logs)
        assert (await prepare(other, spec)).ref == found[0].ref
        assert builds(stage) == 1
        bigger = spec_of(stage, str(folder), resources={"cpus": 1.5, "memory_mb": 1001})
        larger = await prepare(other, bigger)
        template = stage.emulated.face.builder.find(larger.ref)
        assert (larger.ref != found[0].ref, template.cpus, template.memory_mb) == (True, 2, 1002)
        (folder / "server.py").write_text("print('changed')\n")
        assert (await prepare(other, spec)).ref not in (found[0].ref, larger.ref)
        assert builds(stage) == 3
        sandbox = await other.create(larger, bigger, key="oe-12345678-abcdefabcdef")
        ours = [info async for info in other.list({"oe-key": "oe-12345678-abcdefabcdef"})]
        assert (ours[0].resources.cpus, ours[0].resources.memory_mb) == (2.0, 1002)  # type: ignore[union-attr]
        await other.delete(sandbox.ref)
        await provider.aclose()
        await other.aclose()

    async def test_a_build_of_somebody_else(self, stage: Stage) -> None:
        """Two processes at once: the second follows the first one's build.

        Mutation: the half-built template is booted, or built a second time
        """
        one, two, log = await stage.make(), await stage.make(), list[str]()
        spec = spec_of(stage)
        held = stage.faults.add("prepare", when="after", hang=True)
        first = asyncio.ensure_future(prepare(one, spec))
        await held.reached()
        second = asyncio.ensure_future(prepare(two, spec, log))
        await asyncio.sleep(0.3)
        assert not second.done()
        held.release()
        assert (await first).ref == (await second).ref
        assert builds(stage) == 1
        assert any("Build finished" in line for line in log)
        await one.aclose()
        await two.aclose()

    async def test_identical_build_in_flight(self, stage: Stage) -> None:
        """Told 409, it looks again for what is under way.

        Mutation: 409 is an error
        """
        provider = await stage.make()
        refused = stage.faults.add("prepare", status=409, message="an identical build is in flight", times=2)
        await prepare(provider, spec_of(stage))
        assert (refused.hits, builds(stage)) == (2, 1)
        await provider.aclose()

    async def test_pull_always(self, stage: Stage) -> None:
        """The registry is asked again.

        Mutation: what stands is taken
        """
        provider = await stage.make()
        for _ in range(2):
            await prepare(provider, spec_of(stage, pull="always"))
        assert builds(stage) == 2
        await provider.aclose()

    async def test_private_image(self, stage: Stage) -> None:
        """The login of the spec pulls a private image; without one, and with a wrong one, the error says what to give.

        Mutation: the login is not handed over, or is in the error
        """
        provider, image = await stage.make(), stage.engine.image("private/light")
        with pytest.raises(ImageError, match="registry_auth"):
            await prepare(provider, spec_of(stage, image))
        login = dict(zip(("username", "password"), LOGIN, strict=True))
        with pytest.raises(ImageError) as caught:
            await prepare(provider, spec_of(stage, image, registry_auth={**login, "password": "wrong-secret"}))
        assert "wrong-secret" not in f"{caught.value}{vars(caught.value)}"
        prepared = await prepare(provider, spec_of(stage, image, registry_auth=login))
        assert prepared.image.argv
        await provider.aclose()

    async def test_failing_build(self, stage: Stage, folder: Path) -> None:
        """The end of the log is in the error, control characters are not.

        Mutation: the log is dropped, or a page of it
        """
        lines = "for i in $(seq 150); do echo line $i; done"
        text = f"FROM {{base}}\nRUN {lines}; printf '\\033[31mred words\\n'; exit 7\n"
        provider, log = await stage.make(), list[str]()
        with pytest.raises(BuildError) as caught:
            await prepare(provider, spec_of(stage, write(folder, stage, text)), log)
        assert "red words" in caught.value.log
        assert "\x1b" not in str(caught.value)
        assert sum(line.startswith("line ") for line in log) == 150
        await provider.aclose()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("FROM {base} AS one\nFROM {base}\nCOPY --from=one /etc/hosts /x\n", "templates of one stage"),
            ("FROM {base}\nRUN --mount=type=cache,target=/x true\n", "line 2.*RUN --mount"),
            ("FROM {base}\nRUN <<EOF\ntrue\nEOF\n", "line 2.*here-documents"),
            ("FROM {base}\nADD https://example.org/x.tar.gz /x\n", "line 2.*ADD of a URL"),
            ("FROM {base}\nUSER 1000\nRUN true\n", "line 3.*by name only"),
            ("FROM {base}\nCOPY missing.txt /x\n", "line 2.*missing.txt is not in the folder"),
            ("FROM {base}\nONBUILD RUN true\n", "line 2.*ONBUILD"),
        ],
    )
    async def test_refused_dockerfile(self, stage: Stage, folder: Path, text: str, said: str) -> None:
        """What the builder cannot do is refused before anything is sent, with the line and what to do.

        Mutation: it is left out silently
        """
        stage.emulated.options = {**stage.emulated.options, "keep_openenv": True}
        provider = await stage.make()
        with pytest.raises(ImageError, match=said) as caught:
            await prepare(provider, spec_of(stage, write(folder, stage, text)))
        assert "is not in the folder" in said or "build_folders" in str(caught.value.hint)
        assert builds(stage) == 0
        await provider.aclose()

    async def test_folders_by_the_local_docker(self, stage: Stage, folder: Path) -> None:
        """The option takes folders from what the service builds, so that core builds and pushes them, or says how.

        Mutation: the option is not looked at
        """
        stage.emulated.options = {**stage.emulated.options, "build_folders": False}
        with pytest.raises(CapabilityError, match="registry"):
            await stage.launch(write(folder, stage))
        assert builds(stage) == 0

    async def test_template_that_is_still_built(self, stage: Stage) -> None:
        """Its build runs: the create is asked for again until it stands.

        Mutation: the service's 404 is taken for a template that does not exist
        """
        template = stage.emulated.face.builder.keep("late", None)
        asked = stage.count("create")
        task = asyncio.ensure_future(stage.launch("template:late", command=LIGHT).__aenter__())

        async def twice() -> bool:
            return bool(asked.hits >= 2)

        await stage.until("the create is asked for again", twice)
        template.image = stage.engine.images[stage.emulated.light]
        env = await task
        await env.reset()
        await env.close()

    async def test_template_as_it_is(self, stage: Stage) -> None:
        """A template boots natively; its sizes are its own.

        Mutation: sizes are silently ignored
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage, "template:base"))
        assert builds(stage) == 0
        await provider.delete(sandbox.ref)
        with pytest.raises(CapabilityError, match=r"resources\.cpus"):
            await prepare(provider, spec_of(stage, "template:base", resources={"cpus": 2}))
        with pytest.raises(ImageError):
            await made(provider, spec_of(stage, "template:certainly-not-there"))
        await provider.aclose()

    async def test_listed_and_dropped(self, stage: Stage) -> None:
        """Only what an openenv made is listed, with its install; one in use is not dropped.

        Mutation: the account's other templates are offered to gc, or the install is lost
        """
        provider = await stage.make()
        prepared = await prepare(provider, spec_of(stage))
        sandbox = await provider.create(prepared, spec_of(stage), key="oe-12345678-abcdefabcdef")
        listed = await provider.list_prepared()
        assert [(item.ref, item.labels["oe-install"]) for item in listed] == [(prepared.ref, "0123456789abcdef")]
        kept = await sandbox.snapshot()
        listed = await provider.list_prepared()
        assert {item.ref for item in listed} == {prepared.ref, kept.ref}
        assert {item.labels["oe-install"] for item in listed} == {"0123456789abcdef"}
        with pytest.raises(Exception, match="sandboxes"):
            await provider.drop(prepared)
        await provider.delete(sandbox.ref)
        for item in listed:
            await provider.drop(item)
        assert await provider.list_prepared() == []
        await provider.aclose()


async def run(sandbox: Any, script: str, cwd: str | None = None) -> str:
    out = bytearray()
    await sandbox.exec_raw(
        ["/bin/sh", "-c", script], env={}, cwd=cwd, user=None, stdin=None, on_output=lambda name, data: out.extend(data)
    )
    return out.decode()
