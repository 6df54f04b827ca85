"""Proof: a launch goes through the vendor's port URL, privately, with its token, into the image as it wants to run."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from openenv_sandbox import Endpoint
from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import AuthError, CapabilityError, ConnectError, EndpointError, SessionLost
from tests.emulators.proof_stage import ECHO, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

REFUSALS = {301, 302, 303, 307, 308, 401, 403, 404, 502}


class LaunchProof:
    """Endpoint, token, image configuration, and two sandboxes side by side."""

    async def test_through_the_port_url(self, stage: Stage) -> None:
        """echo_env answers through the vendor's port URL, and the session is one upgrade there.

        Scenario: C06
        Mutation: the endpoint leads past the vendor's proxy, or the client opens a second socket
        """
        before = stage.upgrades()
        async with stage.launch(stage.emulated.echo) as env:
            await env.reset()
            result = await env.step(ECHO)
            assert ECHO["arguments"]["message"] in str(result.observation)  # type: ignore[index]
            ref = env.sandbox.ref
            passed = {key: count for key, count in stage.upgrades().items() if count != before.get(key, 0)}
        assert list(passed.values()) == [1], f"upgrades at the port proxy: {passed}"
        ((box, port, token),) = passed
        assert (box, port) == (ref.id, 8000)
        assert bool(token) != isinstance(stage.emulated.wrong_token, str), "a token where the vendor has one"
        await stage.nothing_left()

    async def test_private_by_default(self, stage: Stage) -> None:
        """Without asking for it nothing is public: a stranger who knows the address is refused, or the launch is.

        Scenario: C09, C11
        Mutation: the port is published openly, or a public one passes for private
        """
        created = stage.count("create")
        if "private" not in stage.caps.exposure:
            with pytest.raises(CapabilityError, match="expos"):
                await stage.launch(exposure="private")
            assert created.hits == 0
            return
        async with stage.launch(exposure="private") as env, contextlib.aclosing(await stage.way(env)) as endpoint:
            assert not endpoint.public
            assert await status_of(endpoint, {}, "/state") in REFUSALS
            assert await status_of(endpoint, endpoint.headers, "/health") == 200

    async def test_wrong_token(self, stage: Stage) -> None:
        """A wrong token is an error of ours that says so; nothing of it passes the vendor's proxy.

        Scenario: C06, C08
        Mutation: the endpoint's token is not sent, or a refused upgrade is waited for as if the server were slow
        """
        async with stage.launch() as env, contextlib.aclosing(await stage.way(env)) as endpoint:
            own = env._token
            assert own, "our own token guards the server as well"
            with pytest.raises(ConnectError, match=r"401|403|token|auth"):
                await connect(endpoint, "not-the-token")
            if isinstance(stage.emulated.wrong_token, str):
                return
            before = sum(stage.upgrades().values())
            spoilt = stage.emulated.wrong_token or with_wrong_headers
            with pytest.raises((ConnectError, EndpointError), match=r"30[1-8]|401|403|404|auth|token"):
                await connect(spoilt(endpoint), own)
            assert sum(stage.upgrades().values()) == before

    async def test_expired_token(self, stage: Stage) -> None:
        """The token expires in mid-episode and the socket is cut: the session is lost, the next one has a fresh token.

        Scenario: C06
        Mutation: the client keeps the endpoint it was launched with
        """
        expire = stage.emulated.expire
        if isinstance(expire, str):
            pytest.skip(f"declined: {expire}")
        async with stage.launch() as env:
            await env.reset()
            box = stage.box(env.sandbox.ref)
            first = {token for (owner, _, token) in stage.upgrades() if owner == box.id}
            expire(box)
            with pytest.raises(SessionLost):
                await env.step(dict(stage.emulated.action))
            await env.reset()
            await env.step(dict(stage.emulated.action))
            second = {token for (owner, _, token) in stage.upgrades() if owner == box.id} - first
            assert len(second) == 1, f"upgrades: {stage.upgrades()}"
            assert stage.upgrades()[box.id, 8000, second.pop()] == 1

    async def test_image_configuration(self, stage: Stage) -> None:
        """USER, ENV and WORKDIR of the image hold for its server, which is started once, and for commands.

        Scenario: E01
        Mutation: core does not pass on what the vendor drops, or starts a second server beside the vendor's
        """
        config = stage.engine.images[stage.emulated.user_env]
        async with stage.launch(stage.emulated.user_env) as env:
            seen: Mapping[str, Any] = (await env.reset()).observation
            assert seen["starts"] == 1
            assert seen["cwd"] == config.workdir
            assert seen["mark"] == config.env["MARK"]
            assert str(seen["uid"]) == (config.user or "0").partition(":")[0] != "0"
            if stage.caps.exec is not None:
                result = await env.sandbox.exec('id -u; pwd -P; printf %s "$MARK"')
                assert result.text().split("\n") == [str(seen["uid"]), seen["cwd"], seen["mark"]]

    async def test_wishes_over_the_image(self, stage: Stage) -> None:
        """Variables and secrets of the spec reach the server, over those of the image.

        Mutation: the image's ENV wins over the spec's, or secrets are dropped
        """
        async with stage.launch(stage.emulated.user_env, secrets={"MARK": "of the spec: 'é' $HOME"}) as env:
            seen: Mapping[str, Any] = (await env.reset()).observation
            assert (seen["mark"], seen["starts"]) == ("of the spec: 'é' $HOME", 1)

    async def test_two_sandboxes(self, stage: Stage) -> None:
        """Both servers listen on port 8000, and share neither network, nor processes, nor files; the host has none.

        Mutation: the emulator runs commands on the host, or serves a port of it
        """
        before = open_on_host()
        async with stage.launch() as one, stage.launch() as two:
            await one.reset()
            await two.reset()
            for _ in range(2):
                await one.step(dict(stage.emulated.action))
            assert (await one.state()) != (await two.state())
            assert open_on_host() == before
            if stage.caps.exec is None:
                return
            script = "readlink /proc/self/ns/net; echo secret >/tmp/mine; exec sleep 300"
            await one.sandbox.spawn(script)
            await one.sandbox.exec("until [ -e /tmp/mine ]; do sleep 0.05; done")
            look = "readlink /proc/self/ns/net; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /tmp"
            first, second = await one.sandbox.exec(look), await two.sandbox.exec(look)
            assert first.text().split("\n")[0] != second.text().split("\n")[0]
            assert "sleep 300" in first.text()
            assert "mine" in first.text()
            assert "sleep 300" not in second.text()
            assert "mine" not in second.text()

    async def test_wrong_credential(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bad credential is an AuthError at once, before anything exists, and is not repeated in the message.

        Scenario: M01
        Mutation: 401 is retried, or taken for a server that is not ready
        """
        wrong = stage.emulated.wrong_auth
        if isinstance(wrong, str):
            pytest.skip(f"declined: {wrong}")
        for name, value in wrong.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(AuthError) as caught:
            await stage.launch()
        assert caught.value.outcome == "failed"
        assert not caught.value.retryable
        assert caught.value.provider == stage.provider.name
        assert not any(value in f"{caught.value}{vars(caught.value)}" for value in wrong.values() if len(value) > 5)
        await stage.nothing_left()


async def status_of(endpoint: Endpoint, headers: Mapping[str, str], path: str) -> int:
    """The status of one request through the endpoint's proxy, with these headers only."""
    url = httpx.URL(endpoint.url)
    host = url.netloc.decode()
    if endpoint.connect_to is not None:
        url = url.copy_with(host=endpoint.connect_to[0], port=endpoint.connect_to[1])
    verify: Any = endpoint.tls if endpoint.tls is not None else True
    async with httpx.AsyncClient(verify=verify, trust_env=False) as client:
        request = client.build_request(
            "GET", url.copy_with(path=url.path.rstrip("/") + path), headers={**headers, "Host": host}
        )
        if endpoint.connect_to is not None:
            request.extensions = {**request.extensions, "sni_hostname": host.partition(":")[0]}
        return (await client.send(request)).status_code


async def connect(endpoint: Endpoint, token: str | None) -> None:
    """Open a session through ``endpoint`` and close it."""
    client: GenericEnvClient = GenericEnvClient(base_url=endpoint.url)
    client._bind(endpoint, refresh=None, token=token, sandbox=None, on_close=None, death=None)
    try:
        await client.connect()
    finally:
        await client.close()


def with_wrong_headers(endpoint: Endpoint) -> Endpoint:
    """The same way with other values in every header."""
    assert endpoint.headers, "the token is not in the headers: the case needs `wrong_token`"
    headers = {name: f"{value[:-4]}oops" for name, value in endpoint.headers.items()}
    return Endpoint(endpoint.url, headers=headers, connect_to=endpoint.connect_to, tls=endpoint.tls)


def open_on_host(port: int = 8000) -> bool:
    """Whether anything listens on the host."""
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex(("127.0.0.1", port)) == 0
