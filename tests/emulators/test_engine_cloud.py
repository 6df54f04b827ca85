"""What the engine does as a cloud: time, quota, faults, snapshots, builds and a registry."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import SecretStr

from openenv_sandbox import image as images
from openenv_sandbox.errors import ImageError
from openenv_sandbox.spec import RegistryAuth
from tests.emulators.engine import LOGIN, Box, BuildFailed, EmuImage, QuotaReached

if TYPE_CHECKING:
    from pathlib import Path

    from tests.emulators.engine import Engine


def make(engine: Engine, id: str, **how: Any) -> Box:
    return engine.call(engine.create(engine.image("light"), id=id, **{"run_image": False, **how}))


def sh(engine: Engine, box: Box, text: str) -> str:
    code, out, err = engine.call(box.run(["/bin/sh", "-c", text]))
    assert code == 0, err
    return out.decode()


def until(probe: Any, what: str) -> None:
    deadline = time.monotonic() + 20
    while not probe():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


# --------------------------------------------------------------------------------------------------------- time


def test_the_clock_ends_boxes(engine: Engine) -> None:
    box = make(engine, "short", ttl_s=100)
    make(engine, "long", ttl_s=1000)
    make(engine, "ever")
    engine.clock.advance(99)
    assert engine.alive() == 3
    engine.clock.advance(2)
    assert set(engine.boxes) == {"long", "ever"}
    assert box.state == "stopped", "it has ended when advance returns"
    engine.boxes["long"].set_ttl(2000)
    engine.clock.advance(1500)
    assert set(engine.boxes) == {"long", "ever"}
    engine.boxes["long"].set_ttl(None)
    engine.clock.advance(10_000)
    assert engine.alive() == 2


def test_real_time_ends_boxes_too(engine: Engine) -> None:
    make(engine, "brief", ttl_s=0.2)
    until(lambda: engine.alive() == 0, "its time is over")


def test_idle_boxes_end_unless_touched(engine: Engine) -> None:
    used, idle = make(engine, "used", idle_s=60), make(engine, "idle", idle_s=60, on_idle="pause")
    sleeps = make(engine, "sleeps", idle_s=60)
    engine.call(sleeps.pause())
    engine.clock.advance(40)
    used.touch()
    engine.clock.advance(40)
    assert (used.state, idle.state) == ("running", "paused")
    engine.clock.advance(1000)
    assert set(engine.boxes) == {"idle", "sleeps"}, "a paused box is not idle"


def test_what_a_timer_does_is_the_faces_choice(engine: Engine) -> None:
    make(engine, "stops", ttl_s=10, on_ttl="stop")
    make(engine, "pauses", ttl_s=10, on_ttl="pause")
    engine.clock.advance(11)
    assert {box.id: box.state for box in engine.boxes.values()} == {"stops": "stopped", "pauses": "paused"}


def test_a_faces_own_timer(engine: Engine) -> None:
    fired = []

    async def slowly() -> None:
        await asyncio.sleep(0.01)
        fired.append("slow")

    async def arm() -> None:
        engine.clock.at(engine.clock.now() + 50, slowly)
        engine.clock.at(engine.clock.now() + 50, lambda: fired.append("quick"))

    engine.call(arm())
    engine.clock.advance(49)
    assert not fired
    engine.clock.advance(2)
    assert sorted(fired) == ["quick", "slow"]
    engine.clock.advance(100)
    assert len(fired) == 2


# ------------------------------------------------------------------------------------------------ quota, faults


def test_the_quota_counts_what_is_coming(engine: Engine) -> None:
    engine.quota = 3

    async def crowd() -> list[Any]:
        calls = (engine.create(engine.image("light"), id=f"q{n}") for n in range(8))
        return await asyncio.gather(*calls, return_exceptions=True)

    results = engine.call(crowd())
    assert [type(result) for result in results].count(QuotaReached) == 5
    assert engine.alive() == engine.peak == 3
    assert engine.call(engine.delete("q0"))
    make(engine, "q9")


def test_ids_are_given_once(engine: Engine) -> None:
    make(engine, "same")
    with pytest.raises(ValueError, match="exists"):
        make(engine, "same")


async def hooked_create(engine: Engine, **how: Any) -> Box:
    async with engine.hooked("create"):
        return await engine.create(engine.image("light"), **how)


def test_late_boxes_show_later(engine: Engine) -> None:
    engine.faults.add("create", late=30)
    engine.call(hooked_create(engine, id="late"))
    engine.call(hooked_create(engine, id="now"))
    assert [box.id for box in engine.visible()] == ["now"]
    assert engine.alive() == 2
    engine.clock.advance(31)
    assert len(engine.visible()) == 2


def test_half_is_told_to_the_face(engine: Engine) -> None:
    engine.faults.add("list", half=2)

    async def look() -> int | None:
        return (await engine.hook("list")).half

    assert engine.call(look()) == 2
    assert engine.call(look()) is None


def test_a_server_that_dies_by_rule(engine: Engine) -> None:
    engine.faults.add("create", die={"after_s": 0.05, "code": 5})
    box = engine.call(hooked_create(engine, id="dies"))
    other = engine.call(hooked_create(engine, id="lives"))
    assert box.main is not None
    assert other.main is not None
    assert engine.call(box.main.wait()) == 5
    assert b"dying words" in box.log.data
    assert other.main.code is None


def test_a_create_goes_on_when_its_caller_is_cancelled(engine: Engine) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(engine.create(engine.image("light"), id="goes-on"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    engine.call(cancelled())
    until(lambda: "goes-on" in engine.boxes and engine.boxes["goes-on"].main, "it is made and started")


def test_clear_empties_everything(engine: Engine) -> None:
    engine.quota = 7
    engine.call(engine.snapshot(make(engine, "box"), "snap"))
    rule = engine.faults.add("create", hang=True)
    engine.clear()
    assert (engine.alive(), engine.made, len(engine.faults.rules)) == (0, 0, 0)
    assert engine.quota is None
    assert "snap" not in engine.images
    assert rule._go.is_set()


# ---------------------------------------------------------------------------------------------------- snapshots


def test_snapshots_carry_every_change(engine: Engine) -> None:
    box = make(engine, "box", env={"A": "1"}, user="1000", workdir="/srv")
    sh(engine, box, "echo new > /srv/new; rm /etc/passwd; rm -r /etc/apt; mkdir /etc/apt; chmod 4711 /srv/new; id")
    image = engine.call(engine.snapshot(box, "snap-1"))
    engine.call(box.write("/srv/later", b""))
    assert (image.env["A"], image.user, image.workdir) == ("1", "1000", "/srv")
    again = engine.call(engine.create("snap-1", id="again", run_image=False))
    assert (
        sh(engine, again, "cat /srv/new; stat -c %a /srv/new; ls /srv /etc/apt; ls /tmp")
        == "new\n4711\n/etc/apt:\n\n/srv:\nnew\n"
    )
    with pytest.raises(FileNotFoundError):
        engine.call(again.read("/etc/passwd"))
    assert engine.drop_image("snap-1")
    assert not engine.drop_image("snap-1")
    assert engine.call(again.read("/srv/new")) == b"new\n", "what runs goes on"


# ------------------------------------------------------------------------------------------------------- builds


def build(engine: Engine, text: str, context: Path | None = None, **how: Any) -> tuple[EmuImage, list[str]]:
    lines: list[str] = []
    return engine.call(engine.build(text, context, log=lines.append, **how)), lines


def test_builds_really_run(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.sh").write_text("echo main\n")
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").write_text("two")
    text = f"""
ARG BASE={engine.image("light")}
FROM ${{BASE}} AS tools
RUN mkdir /out && echo tool > /out/tool
FROM python:3.11-slim
ARG SIZE=7
ENV MARK=size-$SIZE
WORKDIR /work
COPY app .
COPY --chown=12:34 --chmod=600 *.txt texts/
COPY one.txt renamed
COPY --from=tools /out /opt/out
RUN echo "$MARK $SIZE" > said && \\
    echo loud
SHELL ["/bin/bash", "-c"]
RUN [[ 1 == 1 ]] && echo bash
RUN ["/bin/echo", "exec form"]
USER 1000
RUN id -u > /tmp/who
EXPOSE 8000
ENTRYPOINT ["/bin/sh"]
CMD ["/work/main.sh"]
"""
    image, lines = build(engine, text, tmp_path, ref=f"{engine.registry}/built:2", build_args={"SIZE": "9"})
    assert {"loud", "bash", "exec form"} <= set(lines)
    assert (image.argv, image.user, image.workdir, image.ports) == (
        ("/bin/sh", "/work/main.sh"),
        "1000",
        "/work",
        (8000,),
    )
    assert image.env["MARK"] == "size-9"
    assert engine.alive() == 0
    box = engine.call(engine.create(image.ref, id="b"))
    assert box.main is not None
    assert engine.call(box.main.wait()) == 0
    until(lambda: bytes(box.log.data) == b"main\n", "its command ran")
    assert sh(engine, box, "cd /work; cat said renamed /opt/out/tool /tmp/who") == "size-9 9\nonetool\n1000\n"
    assert sh(engine, box, "stat -c '%n %u %g %a' /work/texts/*").split("\n")[:2] == [
        "/work/texts/one.txt 12 34 600",
        "/work/texts/two.txt 12 34 600",
    ]
    config = asyncio.run(images.resolve_config(images.parse(image.ref)))
    assert config is not None
    assert (config.argv, config.user, config.env["MARK"]) == (image.argv, "1000", "size-9")


def test_stages_stand_on_each_other(engine: Engine) -> None:
    image, _ = build(engine, "FROM debian:12 AS low\nENV A=1\nRUN echo low > /low\nFROM low\nRUN cat /low && rm /low\n")
    assert image.env["A"] == "1"
    box = engine.call(engine.create(image, id="b", run_image=False))
    assert sh(engine, box, "ls /low 2>/dev/null | wc -l") == "0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM python:3\nRUN echo so far && false", "non-zero code: 1"),
        ("FROM python:3\nRUN exit 42", "non-zero code: 42"),
        ("FROM python:3\nCOPY nothing /", "not found in build context: nothing"),
        ("FROM python:3\nCOPY ../secret /", "not found in build context"),
        ("FROM python:3\nCOPY --from=other a b", "no such stage"),
        ("FROM python:3\nADD https://example.com/x /x", "cannot ADD"),
        ("FROM python:3\nFROBNICATE", "unknown instruction: FROBNICATE"),
        ("FROM python:3\nRUN <<EOF\necho\nEOF", "here-documents"),
        ('FROM python:3\nRUN ["/no/such"]', "No such file"),
        ("FROM nobody/knows:1", "pull access denied for nobody/knows:1"),
        ("RUN true", "before the first FROM"),
    ],
)
def test_failed_builds_say_why(engine: Engine, tmp_path: Path, text: str, message: str) -> None:
    before = set(engine.images)
    (tmp_path / "secret").write_text("outside the context")
    (tmp_path / "context").mkdir()
    with pytest.raises(BuildFailed, match=message) as caught:
        build(engine, text, tmp_path / "context")
    if "so far" in text:
        assert "so far" in caught.value.log.splitlines()
    assert set(engine.images) == before


# ----------------------------------------------------------------------------------------------------- registry


def test_core_resolves_images_by_the_registry(engine: Engine) -> None:
    config = asyncio.run(images.resolve_config(images.parse(engine.image("user-env"))))
    assert config is not None
    image = engine.images[engine.image("user-env")]
    assert (config.argv, config.user, config.workdir) == (image.argv, "1000:1000", "/srv")
    assert (config.env["MARK"], config.ports) == ("from the image", (8000,))
    with pytest.raises(ImageError, match="not there"):
        asyncio.run(images.resolve_config(images.parse(f"{engine.registry}/light:nope")))
    private = images.parse(engine.image("private/light"))
    with pytest.raises(ImageError, match="wants a login"):
        asyncio.run(images.resolve_config(private))
    wrong = RegistryAuth(username=LOGIN[0], password=SecretStr("wrong"))
    with pytest.raises(ImageError, match="login"):
        asyncio.run(images.resolve_config(private, auth=wrong))
    login = RegistryAuth(username=LOGIN[0], password=SecretStr(LOGIN[1]))
    config = asyncio.run(images.resolve_config(private, auth=login))
    assert config is not None
    assert config.argv == engine.images[private.name].argv


def test_the_registry_speaks_oci(engine: Engine) -> None:
    with httpx.Client(base_url=f"http://{engine.registry}") as client:
        assert client.get("/v2/").status_code == 200
        manifest = client.get("/v2/light/manifests/1")
        digest = manifest.headers["docker-content-digest"]
        assert client.get(f"/v2/light/manifests/{digest}").content == manifest.content
        head = client.head("/v2/light/manifests/1")
        assert (head.content, head.headers["docker-content-digest"]) == (b"", digest)
        config = manifest.json()["config"]
        blob = client.get(f"/v2/light/blobs/{config['digest']}")
        assert len(blob.content) == config["size"]
        assert client.get(f"/v2/dying/blobs/{config['digest']}").status_code == 404
        assert client.get("/v2/none/manifests/1").json()["errors"][0]["code"] == "MANIFEST_UNKNOWN"
        assert client.put("/v2/light/manifests/1").status_code == 405
        private = "/v2/private/light/manifests/1"
        assert client.get(private).headers["www-authenticate"] == 'Basic realm="registry"'
        assert client.get(private, auth=(LOGIN[0], "wrong")).status_code == 401
        assert client.get(private, auth=LOGIN).status_code == 200
    ref = engine.image("light")
    for name in (ref, ref.removesuffix(":1"), f"{ref.removesuffix(':1')}@{digest}", f"{ref}@{digest}"):
        assert engine.find_image(name) is engine.images[ref]
    assert engine.find_image(f"{ref}@sha256:{'0' * 64}") is None
