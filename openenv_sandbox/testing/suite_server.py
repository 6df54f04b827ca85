"""Contract suite: the server inside, and the way to it."""

from __future__ import annotations

import asyncio

import pytest

from openenv_sandbox.errors import CapabilityError, EndpointError, SandboxGone
from openenv_sandbox.testing.case import HANG_S, Bench, ContractBase


class ServerContract(ContractBase):
    """`endpoint`, `wait_exit`, `first_output`, `logs`, variables and network of the server."""

    def serving(self, bench: Bench) -> None:
        """Skip where nothing serves or nothing can be reached."""
        self.hook(bench.case.serves, "a served environment")
        self.needs(bench.caps.ports != "none", "ports")

    async def test_reset_and_step(self, bench: Bench) -> None:
        """A client connects through the endpoint and steps."""
        self.serving(bench)
        client = await bench.connect(await bench.run())
        try:
            await client.reset(**bench.case.reset)
            result = await client.step(dict(bench.case.action))
            assert result.observation is not None
        finally:
            await client.close()

    async def test_two_servers(self, bench: Bench) -> None:
        """Two sandboxes listen on the same port, and each endpoint leads to its own."""
        self.serving(bench)
        one, two = await bench.run(), await bench.run()
        clients = [await bench.connect(one), await bench.connect(two)]
        try:
            for client in clients:
                await client.reset(**bench.case.reset)
            for _ in range(2):
                await clients[0].step(dict(bench.case.action))
            states = [await client.state() for client in clients]
            assert states[0] != states[1]
            await one.stop(confirm=True)
            await clients[1].step(dict(bench.case.action))
        finally:
            await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)

    async def test_endpoint_is_private(self, bench: Bench) -> None:
        """An endpoint says whether it is public, and its secrets are in no repr."""
        self.serving(bench)
        endpoint = await (await bench.run()).endpoint()
        assert endpoint.public in (False, "public" in bench.caps.exposure)
        assert not any(value in repr(endpoint) for value in endpoint.headers.values())
        assert endpoint.failure() is None
        await endpoint.aclose()
        await endpoint.aclose()

    async def test_undeclared_port(self, bench: Bench) -> None:
        """``at-create``: a port that was not declared is refused."""
        self.needs(bench.caps.ports == "at-create", "ports at create")
        running = await bench.run()
        with pytest.raises(CapabilityError):
            await running.endpoint(9)

    async def test_endpoint_of_the_gone(self, bench: Bench) -> None:
        """A deleted sandbox has no endpoint."""
        self.needs(bench.caps.ports != "none", "ports")
        running = await bench.run()
        await running.stop(confirm=True)
        with pytest.raises((SandboxGone, EndpointError)):
            await asyncio.wait_for(running.endpoint(), HANG_S)

    async def test_server_dies(self, bench: Bench) -> None:
        """The server's end is an event with its exit code and last words."""
        self.hook(bench.case.dying is not None, "a server that ends")
        self.needs(bench.caps.start == "command", "a command at create")
        sandbox = await bench.create(**dict(bench.case.dying or {}))
        end = await asyncio.wait_for(sandbox.wait_exit(), HANG_S)
        assert end.code == 17
        assert b"dying words" in end.tail

    async def test_wait_exit_of_the_gone(self, bench: Bench) -> None:
        """Deleting the sandbox ends the wait for its server; cancelling the wait leaves no trace."""
        sandbox = await bench.create()
        given_up = asyncio.ensure_future(sandbox.wait_exit())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait({given_up}, timeout=HANG_S)
        assert given_up.cancelled()
        waiting = asyncio.ensure_future(sandbox.wait_exit())
        await asyncio.wait({waiting}, timeout=0.1)
        await bench.provider.delete(sandbox.ref)
        done, _ = await asyncio.wait({waiting}, timeout=HANG_S)
        assert done, "wait_exit went on after the sandbox was deleted"
        assert waiting.exception() is None or isinstance(waiting.exception(), SandboxGone)

    async def test_logs(self, bench: Bench) -> None:
        """``logs``: the server's output can be read back, its last lines too."""
        self.needs(bench.caps.start == "command", "a command at create")
        sandbox = await bench.create(command="echo line one; echo line two; echo line three; exec sleep 1000")
        if not bench.caps.logs:
            with pytest.raises(CapabilityError):
                await sandbox.logs()
            return

        async def all_there() -> bool:
            return b"line three" in await sandbox.logs()

        await bench.until("the output is there", all_there)
        assert (await sandbox.logs()).replace(b"\r", b"").endswith(b"line one\nline two\nline three\n")
        assert (await sandbox.logs(tail=1)).replace(b"\r", b"") == b"line three\n"

    async def test_server_environment(self, bench: Bench) -> None:
        """Variables and secrets reach the server unchanged."""
        self.needs(bench.caps.start == "command", "a command at create")
        self.needs(bench.caps.logs, "logs")
        value = "x 'y' \"z\" $HOME é"
        sandbox = await bench.create(
            command='printf "<%s|%s>\\n" "$OE_A" "$OE_S"; exec sleep 1000',
            env={"OE_A": value},
            secrets={"OE_S": "s3kret-canary"},
        )

        async def said() -> bool:
            return f"<{value}|s3kret-canary>".encode() in await sandbox.logs()

        await bench.until("the server has its variables", said)

    async def test_workload_user(self, bench: Bench) -> None:
        """``user``: the server runs as the user asked for, and commands do too."""
        self.needs(bench.caps.user and bench.caps.exec is not None, "user")
        running = await bench.run(user="65534", command="exec sleep 1000")
        assert (await running.exec("id -u")).text() == "65534\n"

    async def test_network_none(self, bench: Bench) -> None:
        """``network none``: no address outside can be reached, and the server still can be."""
        self.needs("none" in bench.caps.network and bench.caps.exec is not None, "network none")
        running = await bench.run(network="none")
        script = "cat /proc/net/route 2>/dev/null | tail -n +2 | wc -l"
        assert int((await running.exec(script)).stdout) == 0
        if bench.case.serves:
            client = await bench.connect(running)
            await client.reset(**bench.case.reset)
            await client.close()
