"""The coding environment against code and deaths that nobody planned for."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from coding_env.server import interpreter as module
from coding_env.server.interpreter import Interpreter, Limits, _claim_user, _for_everybody

from tests.envs.test_coding_env import all_gone
from tests.wire.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the interpreter's limits are Linux's")


@pytest.fixture
def code() -> Iterator[Interpreter]:
    made = Interpreter(Limits(time_s=20, memory_mb=512))
    yield made
    made.close()


def test_a_fork_of_the_code_answers_nothing(code: Interpreter) -> None:
    """Parent and child both reach the end of the code; only the parent's answer counts and only it sees the next step.

    Mutation: leave a forked child in the loop that reads code
    """
    forked = code.run(
        "import os\npid = os.fork()\nif pid == 0:\n    x = 'child'\n    raise SystemExit(7)\nx = 'parent'"
    )
    assert forked.exit_code == 0
    for number in range(3):
        assert code.run(f"print(x, {number})").stdout == f"parent {number}\n"
    assert code.run("print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))").stdout == "7\n"


@pytest.mark.parametrize(("source", "exit_code"), [("raise KeyboardInterrupt", 1), ("raise SystemExit(124)", 124)])
def test_only_a_limit_that_was_reached_is_told(code: Interpreter, source: str, exit_code: int) -> None:
    """Code may raise the interrupt, or exit with the number, by itself.

    Mutation: take the exit code for the limit
    """
    seen = code.run(source)
    assert seen.exit_code == exit_code
    assert "time limit" not in seen.stderr


def test_a_time_that_is_no_number_is_no_limit(code: Interpreter) -> None:
    assert code.run("print(1)", time_s=float("nan")).stdout == "1\n"


def test_a_folder_deeper_than_the_stack_is_removed(code: Interpreter) -> None:
    """Closing neither fails nor leaves anything, whatever the depth and the modes.

    Mutation: remove by recursion
    """
    folder = code.run("import os\nprint(os.getcwd())").stdout.strip()
    code.run("for _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\nos.chmod('.', 0)")
    code.close()
    assert not os.path.exists(folder)


@pytest.mark.parametrize("replaced", ["", "; os.symlink('/', folder)"])
def test_code_that_removes_its_folder_harms_itself_alone(code: Interpreter, replaced: str) -> None:
    """The next interpreter has a folder again, and it is no link to elsewhere.

    Mutation: start in the folder without looking
    """
    code.run(f"import os\nfolder = os.getcwd()\nos.rmdir(folder){replaced}")
    assert "begins anew" in code.run("os._exit(3)").stderr
    assert code.run("import os\nopen('f', 'w').close()\nprint(os.listdir())").stdout == "['f']\n"
    assert code.run("import os\nprint(len(os.getcwd()) > 1)").stdout == "True\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the code another user")
def test_a_user_of_its_own_cannot_move_its_folder() -> None:
    """What is moved away would stay.

    Mutation: give the code the temporary folder itself
    """
    python = next((path for path in (sys.executable, "/usr/bin/python3") if _for_everybody(path)), None)
    if python is None:
        pytest.skip("every Python here lies in a folder that only root may enter")
    code = Interpreter(Limits(time_s=20), python)
    try:
        moved = code.run("import os\nos.rename(os.getcwd(), '/tmp/openenv-moved')")
        if code._user is not None:
            assert "PermissionError" in moved.stderr
        assert code.run("open('f', 'w').close()").exit_code == 0
    finally:
        code.close()


def test_what_left_its_session_ends_with_the_interpreter(code: Interpreter) -> None:
    """A daemon of the code's too, whether or not the code has a user of its own.

    Mutation: kill the process group alone
    """
    folder = code.run("import os\nprint(os.getcwd())").stdout.strip()
    code.run("import time\npid = os.fork()\nif pid == 0:\n    os.setsid()\n    time.sleep(1000)")
    assert code.run("while os.getsid(pid) != pid: time.sleep(0.01)").exit_code == 0
    code.close()
    assert all_gone(folder)


def test_orphans_of_the_code_are_buried() -> None:
    """A server that is the first process of its container inherits them, and nobody else would.

    Mutation: kill without waiting
    """
    program = (
        "import ctypes, os\n"
        "from coding_env.server.interpreter import *\n"
        "assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0\n"  # PR_SET_CHILD_SUBREAPER
        "i = Interpreter(Limits(time_s=20))\n"
        "i.run('import os, time')\n"
        "for end in ('os.setsid(); time.sleep(99)', 'time.sleep(99)', 'pass'): i.run('if os.fork() == 0: ' + end)\n"
        "i.run('time.sleep(0.2)')\n"
        "i.close()\n"
        "try:\n    print(os.waitpid(-1, os.WNOHANG))\nexcept ChildProcessError:\n    print('none')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "envs", capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "none\n", done.stderr


def test_a_killed_server_leaves_no_busy_interpreter() -> None:
    """Nobody can close anything after SIGKILL; code that loops must end all the same, and so must what it forked.

    Mutation: leave the end of the server to the read of the next code
    """
    program = (
        "from coding_env.server.interpreter import *\n"
        "i = Interpreter(Limits(time_s=1000))\n"
        "print(i.run('import os; print(os.getcwd())').stdout, flush=True)\n"
        "i.run('os.fork()\\nwhile True: pass')\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT / "envs", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    with server.stdout:
        folder = server.stdout.readline().strip()
        server.kill()
        server.wait()
    try:
        assert "openenv-code-" in folder
        assert all_gone(folder)
    finally:
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))


def test_no_two_servers_give_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends one session kills every process of its user, so nobody else may have that user meanwhile.

    Mutation: count users in each process by itself
    """
    program = (
        "from coding_env.server import interpreter as m\nm.USERS = 2\n"
        "user, held = m._claim_user()\nprint(user, flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT / "envs", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        monkeypatch.setattr(module, "USERS", 2)
        ours, held = _claim_user()
        with held:
            assert {ours, theirs} == {module.FIRST_USER, module.FIRST_USER + 1}
            with pytest.raises(RuntimeError, match="users"):
                _claim_user()
        _claim_user()[1].close()
        other.kill()
