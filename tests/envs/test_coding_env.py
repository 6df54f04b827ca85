"""The coding environment: what code may do, and what happens to code that does more."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from coding_env import CodeAction, CodeObservation, CodingEnv
from coding_env.server.coding_environment import PythonCodeActEnv
from coding_env.server.interpreter import Interpreter, Limits, _for_everybody
from coding_env.server.transforms import LengthPenalty, RiskPenalty, SuccessReward, rewards

from openenv_sandbox.errors import ActionInvalid
from tests.wire.serving import ROOT, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the interpreter's limits are Linux's")

FORK_BOMB = """
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        n += 1
except OSError:
    print("bounded", n)
"""


@pytest.fixture
def env() -> Iterator[PythonCodeActEnv]:
    env = PythonCodeActEnv(limits=Limits(time_s=20, memory_mb=512, output_bytes=10_000))
    yield env
    env.close()


def run(env: PythonCodeActEnv, code: str, timeout_s: float | None = None) -> CodeObservation:
    return env.step(CodeAction(code=code), timeout_s=timeout_s)


def processes_of(folder: str) -> list[int]:
    """Processes whose working folder it is."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                here = os.readlink(f"/proc/{name}/cwd")
            except OSError:
                continue
            if here.startswith(folder):
                found.append(int(name))
    return found


def all_gone(folder: str) -> bool:
    """Whether no process is left there; a kill takes effect a moment after it was sent."""
    deadline = time.monotonic() + 10
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes_of(folder)


def folder_of(env: PythonCodeActEnv) -> str:
    return run(env, "import os\nprint(os.getcwd())").stdout.strip()


def test_output_and_exit_codes(env: PythonCodeActEnv) -> None:
    """Streams apart, a traceback that begins in the code, and the code of sys.exit.

    Mutation: answer 0 for code that raised
    """
    env.reset()
    seen = run(env, "import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (seen.stdout, seen.stderr, seen.exit_code) == ("out\n", "err\n", 0)
    seen = run(env, "def f():\n    return 1 / 0\nf()")
    assert seen.exit_code == 1
    assert "return 1 / 0" in seen.stderr
    assert "ZeroDivisionError" in seen.stderr
    assert "_interpreter_main" not in seen.stderr
    assert run(env, "if True print(1)").exit_code == 1
    for code, exit_code in (("sys.exit()", 0), ("sys.exit(7)", 7), ("sys.exit('why')", 1), ("raise SystemExit(3)", 3)):
        seen = run(env, f"import sys\n{code}")
        assert seen.exit_code == exit_code
        assert env.state.last_exit_code == exit_code
    assert run(env, "import os\nos.write(1, b'\\xff\\n')").stdout == "�\n"


def test_what_is_defined_stays_until_reset(env: PythonCodeActEnv) -> None:
    """Names, modules and files last for the episode and no longer, also after an error and sys.exit.

    Mutation: run each step in a new process
    """
    env.reset(episode_id="one")
    run(env, "import math\nx = 41\nopen('f', 'w').write('kept')\nclass A: pass")
    run(env, "raise SystemExit(1)")
    run(env, "1 / 0")
    assert run(env, "print(x + 1, math.pi > 3, open('f').read(), A.__module__)").stdout == "42 True kept __main__\n"
    assert (env.state.episode_id, env.state.step_count) == ("one", 4)
    env.reset(seed=5)
    assert run(env, "print(x)").exit_code == 1
    assert run(env, "open('f')").exit_code == 1
    env.reset(seed=5)
    first = run(env, "import random; print(random.random())").stdout
    env.reset(seed=5)
    assert run(env, "import random; print(random.random())").stdout == first


def test_an_endless_loop_ends_the_step_and_keeps_the_state(env: PythonCodeActEnv) -> None:
    """It is interrupted at its limit; what was defined is still there.

    Mutation: kill at once
    """
    env.reset()
    run(env, "x = 1")
    seen = run(env, "print('begun')\nwhile True: pass", timeout_s=0.2)
    assert seen.exit_code == 124
    assert seen.stdout == "begun\n"
    assert "time limit of 0.2 s" in seen.stderr
    assert run(env, "print(x)").stdout == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "import time\nwhile True:\n    try:\n        while True: time.sleep(0.01)\n    except BaseException: pass",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "sum(range(10**12))",
        "import os\nos.kill(os.getpid(), 19)",
    ],
    ids=["catches", "ignores", "in-c", "stopped"],
)
def test_code_that_will_not_end_is_killed(env: PythonCodeActEnv, code: str) -> None:
    """The step ends, says that the interpreter begins anew, and the next one works.

    Mutation: wait for the answer of an interpreter that ignores the interrupt
    """
    env.reset()
    run(env, "x = 1")
    seen = run(env, code, timeout_s=0.1)
    assert seen.exit_code == 124
    assert "begins anew" in seen.stderr
    assert run(env, "print('x' in dir())").stdout == "False\n"


def test_memory_is_limited(env: PythonCodeActEnv) -> None:
    """More is a MemoryError inside the code, and the state is kept.

    Mutation: set no limit
    """
    env.reset()
    run(env, "x = 1")
    seen = run(env, "y = bytearray(10 << 30)")
    assert seen.exit_code == 1
    assert "MemoryError" in seen.stderr
    if os.geteuid() != 0:  # root may raise its limits again; code that runs as a user of its own may not
        assert run(env, "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))").exit_code == 1
    assert run(env, "print(x)").stdout == "1\n"


def test_an_interpreter_that_dies(env: PythonCodeActEnv) -> None:
    """By its own hand or a signal: told, and replaced.

    Mutation: leave the dead process in place
    """
    env.reset()
    for code, exit_code in (
        ("os._exit(9)", 9),
        ("os.kill(os.getpid(), 9)", 137),
        ("import ctypes; ctypes.string_at(0)", 137),
    ):
        seen = run(env, f"import os\nprint('last')\n{code}")
        assert (seen.exit_code, seen.stdout) == (exit_code, "last\n")
        assert "begins anew" in seen.stderr
        assert run(env, "print(1)").exit_code == 0


def test_a_flood_is_cut(env: PythonCodeActEnv) -> None:
    """The beginning is kept, the cut is marked, memory stays bounded, and the writer does not wait for ever.

    Mutation: keep everything
    """
    env.reset()
    seen = run(env, "for _ in range(200_000): print('x' * 99)")
    assert seen.exit_code == 0
    assert len(seen.stdout) < 11_000
    assert seen.stdout.startswith("xxx")
    assert "further bytes were cut" in seen.stdout


def test_children_are_ended(env: PythonCodeActEnv) -> None:
    """What the code starts in the background ends with the episode, and so does its folder.

    Mutation: kill only the interpreter
    """
    env.reset()
    folder = folder_of(env)
    run(env, "import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '1000'])")
    assert len(processes_of(folder)) == 4
    env.close()
    assert all_gone(folder)
    assert not os.path.exists(folder)


def test_the_environment_of_the_server_is_not_passed_on(env: PythonCodeActEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and keys of the server are in no variable of the code's process.

    Mutation: inherit the environment
    """
    monkeypatch.setenv("OPENENV_AUTH_TOKEN", "secret-token")
    env.reset()
    assert "secret-token" not in run(env, "import os\nprint(dict(os.environ))").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the code another user")
def test_another_user_where_the_server_is_root(tmp_path: Path) -> None:
    """The code cannot read the server's memory and variables, is bounded in processes, and cannot outlive its kill.

    Mutation: run the code as the server's user
    """
    python = next((path for path in (sys.executable, "/usr/bin/python3") if _for_everybody(path)), None)
    if python is None:
        pytest.skip("every Python here lies in a folder that only root may enter")
    env = PythonCodeActEnv(limits=Limits(time_s=20), python=python)
    try:
        env.reset()
        assert run(env, "import os\nprint(os.getuid() >= 61000)").stdout == "True\n"
        assert run(env, f"open('/proc/{os.getpid()}/environ').read()").exit_code == 1
        assert run(env, FORK_BOMB).stdout.startswith("bounded")
        folder = folder_of(env)
    finally:
        env.close()
    assert all_gone(folder)


def test_rewards() -> None:
    """Each transform looks at the code and at how it ended; together they add up.

    Mutation: judge every call by one rule
    """
    good, bad = CodeObservation(metadata={"last_code": "print(1)"}), CodeObservation(exit_code=1, metadata={})
    assert SuccessReward()(good.model_copy()).reward == 1.0
    assert SuccessReward(failure=-0.5)(bad.model_copy()).reward == -0.5
    for code, penalty in (
        ("import os", -1.0),
        ("from subprocess import run", -1.0),
        ("x = eval('1')", -1.0),
        ("import os.path as p", -1.0),
        ("s = 'import os'", 0.0),
        ("import math", 0.0),
        ("if:", 0.0),
    ):
        assert RiskPenalty()(CodeObservation(metadata={"last_code": code})).reward == penalty, code
    assert LengthPenalty(limit=3, per_character=-1)(CodeObservation(metadata={"last_code": "12345"})).reward == -2.0
    env = PythonCodeActEnv(transform=rewards())
    try:
        env.reset()
        assert run(env, "import os").reward == 0.0
        assert run(env, "x = 1").reward == 1.0
        assert run(env, "1 / 0").reward == 0.0
    finally:
        env.close()


def test_one_interpreter_in_trouble_does_not_hold_up_another() -> None:
    """Two sessions: one loops, the other goes on meanwhile."""
    stuck, free = Interpreter(Limits(time_s=5)), Interpreter(Limits())
    try:
        stuck.run("x = 1")
        thread = threading.Thread(target=stuck.run, args=("while True: pass",), kwargs={"time_s": 1.0})
        thread.start()
        steps = 0
        while thread.is_alive():
            assert free.run("print(1)").stdout == "1\n"
            steps += 1
        thread.join()
        assert steps > 3
        assert stuck.run("print(x)").stdout == "1\n"
    finally:
        stuck.close()
        free.close()


def test_over_the_wire() -> None:
    """Typed client, served as a package and from its folder; two sessions keep their own state."""
    for app, cwd in (("coding_env.server.app:app", ROOT / "envs"), ("server.app:app", ROOT / "envs" / "coding_env")):
        with serve(app, cwd=cwd) as address:
            url = f"http://{address}"
            with CodingEnv(base_url=url).sync() as env, CodingEnv(base_url=url).sync() as other:
                assert env.reset().observation.exit_code == 0
                other.reset()
                env.step(CodeAction(code="x = 6 * 7"))
                assert env.step(CodeAction(code="print(x)")).observation.stdout == "42\n"
                assert other.step(CodeAction(code="print(x)")).observation.exit_code == 1
                assert (env.state().step_count, other.state().last_exit_code) == (2, 1)
                assert env.step(CodeAction(code="1/0")).reward is None
                with pytest.raises(ActionInvalid):
                    env.step({"type": "list_tools"})  # type: ignore[arg-type]


def test_a_stopped_server_leaves_no_interpreter() -> None:
    """SIGTERM ends what the sessions started."""
    with serve("coding_env.server.app:app", cwd=ROOT / "envs") as address:
        client = CodingEnv(base_url=f"http://{address}").sync()
        client.reset()
        folder = client.step(CodeAction(code="import os\nprint(os.getcwd())")).observation.stdout.strip()
        assert processes_of(folder)
    assert all_gone(folder)
    client.close()


def test_a_server_with_many_open_files(env: PythonCodeActEnv) -> None:
    """Descriptors above 1023, which a server with many sessions has.

    Mutation: wait by select()
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine allows no more than 2048 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        env.reset()
        assert run(env, "print(1)").stdout == "1\n"
    finally:
        for number in many:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
