from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import (
    ConfigError,
    ConnectError,
    Event,
    ExecError,
    GenericEnvClient,
    ImageError,
    SandboxGone,
    UsageError,
    attach,
    launch,
    live_refs,
    redact,
    sandbox,
)
from openenv_sandbox.journal import Journal
from openenv_sandbox.testing.fake import FakeCloud
from tests.unit.launch_harness import nothing_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.provider import SandboxRef

CANARY = "canary-5ecret-value"


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


def test_the_blocking_faces(cloud: FakeCloud) -> None:
    def live() -> list[SandboxRef]:
        return [ref for ref in live_refs() if ref.scope.startswith(f"fake:{cloud.address}")]

    with launch("fake-env:1", provider=cloud.provider()).sync() as env:
        assert env.reset().reward == 0.0
        assert env.step({"a": 1}).reward == 1.0
        assert live() == [env.sandbox.ref]
    assert live() == []
    with sandbox("fake-env:1", provider=cloud.provider()).sync() as box:
        assert box.exec("echo hi").text() == "hi\n"
        assert box.ref.provider == "fake"
    assert cloud.live() == []


def test_a_blocking_launch_that_cannot_connect_leaves_nothing(cloud: FakeCloud) -> None:
    class Wrong(GenericEnvClient):
        def _bind(self, endpoint: Any, **kw: Any) -> None:
            super()._bind(endpoint, **{**kw, "token": "wrong-token"})

    with pytest.raises(ConnectError, match="401"):
        launch("fake-env:1", client=Wrong, provider=cloud.provider()).sync()
    assert cloud.live() == []


@pytest.mark.anyio
async def test_a_launch_that_cannot_connect_leaves_nothing(cloud: FakeCloud) -> None:
    class Wrong(GenericEnvClient):
        def _bind(self, endpoint: Any, **kw: Any) -> None:
            super()._bind(endpoint, **{**kw, "token": "wrong-token"})

    with pytest.raises(ConnectError, match="401"):
        await launch("fake-env:1", client=Wrong, provider=cloud.provider())
    await nothing_left(cloud)


@pytest.mark.anyio
async def test_a_handle_is_used_once(cloud: FakeCloud) -> None:
    handle = sandbox("fake-env:1", provider=cloud.provider())
    async with handle:
        pass
    with pytest.raises(UsageError, match="used already"):
        await handle
    with pytest.raises(UsageError, match="sync"):
        with launch("fake-env:1", provider=cloud.provider()):
            pass
    await nothing_left(cloud)
    assert cloud.count("create") == 1


@pytest.mark.anyio
async def test_an_error_in_the_block_is_the_one_that_is_seen(cloud: FakeCloud) -> None:
    with pytest.raises(ZeroDivisionError):
        async with launch("fake-env:1", provider=cloud.provider()):
            raise ZeroDivisionError
    await nothing_left(cloud)


@pytest.mark.anyio
async def test_events_tell_the_stages_with_durations(cloud: FakeCloud, caplog: pytest.LogCaptureFixture) -> None:
    """Every stage comes once, in order, to the callback and to the log; a broken callback changes nothing.

    Mutation: Reporter lets the callback's error out, or gives no durations
    """
    seen: list[Event] = []

    def on_event(event: Event) -> None:
        seen.append(event)
        raise RuntimeError("a broken callback")

    with caplog.at_level(logging.INFO, "openenv.launch"):
        async with launch("fake-env:1", provider=cloud.provider(), on_event=on_event) as env:
            ref = env.sandbox.ref
    stages = [event.stage for event in seen if event.stage != "building"]
    assert stages == ["creating", "created", "starting", "ready", "connected", "stopping", "stopped"]
    took = {event.stage: event.duration_s for event in seen}
    assert all(took[stage] is not None for stage in ("created", "ready", "connected", "stopped"))
    assert {event.key for event in seen} == {ref.key}
    assert seen[-1].ref == ref
    assert sum("ready" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("start", ["command", "exec"])
async def test_secrets_are_nowhere(cloud: FakeCloud, caplog: pytest.LogCaptureFixture, start: str) -> None:
    """A canary in ``secrets`` reaches the server and no log, event, error, repr or journal byte.

    Scenario: M01
    Mutation: pipeline does not register the secrets, or hands them to create where core starts the server
    """
    seen: list[str] = []
    provider = cloud.provider(start=start)
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(Exception, match="exited") as caught:
            await launch(
                "fake-env:1",
                provider=provider,
                command=["sh", "-c", 'echo "got $API_KEY"; test -n "$API_KEY" && exit 9'],
                secrets={"API_KEY": CANARY},
                on_event=lambda event: seen.append(repr(event)),
            )
    await nothing_left(cloud)
    error = caught.value
    assert "got ***" in str(error)
    journal = await Journal.open()
    assert journal.folder is not None
    files = b"".join(path.read_bytes() for path in journal.folder.rglob("*") if path.is_file())
    text = "".join([*seen, str(error), repr(error.__dict__), caplog.text])
    assert CANARY not in text
    assert CANARY.encode() not in files + pickle.dumps(error)
    given = next(call.args for call in cloud.calls if call.op == "create")
    assert (CANARY in given["env"].values()) == (start == "command")
    assert ("OPENENV_AUTH_TOKEN" in given["env"]) == (start == "command")


@pytest.mark.anyio
async def test_secrets_stay_hidden_as_long_as_anybody_has_them(cloud: FakeCloud) -> None:
    """A launch that fails shows no secret, not even one in its command, and unmasks none that another sandbox has.

    Scenario: M01
    Mutation: _Launch.run forgets secrets that the owner has forgotten already, or masks the error after that
    """
    provider, secrets = cloud.provider(), {"API_KEY": CANARY}
    async with sandbox("fake-env:1", provider=provider, secrets=secrets):
        with pytest.raises(Exception, match="exited") as caught:
            await launch("fake-env:1", provider=provider, secrets=secrets, command=["sh", "-c", f"exit 9 {CANARY}"])
        assert CANARY not in str(caught.value) + repr(caught.value.__dict__)
        assert redact.mask(CANARY) == redact.MASK
    assert redact.mask(CANARY) == CANARY, "nobody has it any more"


@pytest.mark.anyio
async def test_the_token_is_masked_in_what_commands_say(cloud: FakeCloud) -> None:
    """The variables of the container hold the server's token; no output of a command shows it.

    Scenario: M01
    Mutation: RunningSandbox masks the user's secrets only
    """
    async with sandbox("fake-env:1", provider=cloud.provider()) as box:
        token = next(call.args for call in cloud.calls if call.op == "create")["env"]["OPENENV_AUTH_TOKEN"]
        result = await box.exec(["sh", "-c", f"echo {token}"])
        assert result.text() == "***\n"
        with pytest.raises(ExecError) as caught:
            await box.exec(["sh", "-c", f"echo {token} >&2; exit 3"], check=True)
        assert token not in str(caught.value)


@pytest.mark.anyio
async def test_a_server_is_started_once_with_what_the_image_says(cloud: FakeCloud) -> None:
    """Where core starts the server, environment and secrets go to that one command.

    Mutation: ExecServer drops workdir or secrets, or is started twice
    """
    script = 'echo "$A|$B|$UVICORN_WS_MAX_SIZE|$(pwd)" >> "$HOME/seen"; exec fake-env'
    async with launch(
        "fake-env:1",
        provider=cloud.provider(start="exec"),
        command=["sh", "-c", script],
        env={"A": "a'b c"},
        secrets={"B": "bbbbbb"},
        workdir="/",
    ) as env:
        await env.reset()
        seen = await env.sandbox.exec('cat "$HOME/seen"', redact=False)
        assert seen.text() == "a'b c|bbbbbb|67108864|/\n"
    create = next(call.args for call in cloud.calls if call.op == "create")
    assert create["env"].get("B") is None


@pytest.mark.anyio
async def test_attaching_to_a_sandbox_of_another_process(cloud: FakeCloud) -> None:
    from openenv_sandbox import registry

    provider = cloud.provider()
    box = await sandbox("fake-env:1", provider=provider)
    ref = pickle.loads(pickle.dumps(box.ref))
    await box.detach()
    with registry.registered(provider):
        async with attach(ref, own=False) as other:
            assert (await other.exec("echo hi")).text() == "hi\n"
        assert cloud.live()
        async with attach(ref) as mine:
            assert [row.state for row in await (await Journal.open()).rows()] == ["created"]
            assert mine.ref == ref
        await nothing_left(cloud)
        with pytest.raises(SandboxGone):
            await attach(ref)
        from dataclasses import replace

        with pytest.raises(ConfigError, match="belongs to"):
            await attach(replace(ref, scope="elsewhere"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"timeout": 3}, ConfigError, "did you mean 'timeouts'"),
        ({"labels": {"oe-run": "x"}}, ConfigError, "ours"),
        ({"env": {"a b": "c"}}, ConfigError, "environment variable"),
        ({"secrets": {"A": "b\0"}}, ConfigError, "NUL"),
        ({"command": ["a\0b"]}, ConfigError, "NUL"),
        ({"provider_options": {"nope": 1}}, ConfigError, "nope"),
        ({"image": "not an image"}, ImageError, "no image"),
        ({"image": None}, ConfigError, "no image"),
    ],
)
async def test_wrong_arguments_are_sentences(
    cloud: FakeCloud, fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    image = fields.pop("image", "fake-env:1")
    with pytest.raises(error, match=text):
        await launch(image, provider=cloud.provider(), **fields)
    assert cloud.calls == []


@pytest.mark.anyio
async def test_launches_in_two_loops_do_not_share_a_provider(cloud: FakeCloud) -> None:
    provider = cloud.provider()

    def elsewhere() -> None:
        async def go() -> None:
            async with launch("fake-env:1", provider=provider) as env:
                await env.reset()

        asyncio.run(go())

    async with launch("fake-env:1", provider=provider) as env:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        await env.reset()
    await nothing_left(cloud)


@pytest.mark.anyio
@pytest.mark.usefixtures("no_blocking")
async def test_nothing_blocks_the_loop(cloud: FakeCloud) -> None:
    """From configuration to the delete no call blocks the event loop.

    Scenario: J04
    Mutation: request.resolve reads files on the loop
    """
    async with launch("fake-env:1", provider=cloud.provider()) as env:
        await env.reset()
        await env.step({"a": 1})
    async with launch("fake-env:1", provider=cloud.provider(start="exec")) as env:
        await env.reset()
