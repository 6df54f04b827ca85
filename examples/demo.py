"""What `make demo` shows: an environment folder in, a connected client out, on the default backend."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from echo_env import CallToolAction, EchoEnv


async def main() -> None:
    async with EchoEnv.launch() as env:
        result = await env.reset()
        print("reset:", result.observation.echoed_message)
        result = await env.step(CallToolAction(tool_name="echo_message", arguments={"message": "Hello, World!"}))
        print("step: ", result.observation.result, "| reward:", result.reward)
        state = await env.state()
        print("state:", f"episode {state.episode_id}, {state.step_count} step(s)")
        print("ran in:", env.sandbox.ref)


if __name__ == "__main__":
    asyncio.run(main())
    print()
    subprocess.run([sys.executable, "-m", "openenv_sandbox.cli", "providers"], check=True)
