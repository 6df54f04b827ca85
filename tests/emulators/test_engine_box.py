"""Boxes of the engine: apart from each other and from the host, and gone with whoever made them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulators.engine import BoxGone, NoSuchUser

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.emulators.engine import Box, Engine

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def make(engine: Engine, id: str, image: str = "light", **how: Any) -> Box:
    return engine.call(engine.create(engine.image(image), id=id, **how))


def sh(engine: Engine, box: Box, text: str, data: bytes | None = None, **how: Any) -> tuple[int, str, str]:
    code, out, err = engine.call(box.run(["/bin/sh", "-c", text], data, **how))
    return code, out.decode(), err.decode()


def until(probe: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not probe():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


async def ask(box: Box, port: int = 8000) -> bytes:
    reader, writer = await box.connect(port)
    writer.write(HEALTH)
    try:
        return await reader.read()
    finally:
        writer.close()


def answers(engine: Engine, box: Box) -> bool:
    try:
        return b"healthy" in engine.call(ask(box))
    except OSError:
        return False


def serves(engine: Engine, box: Box) -> None:
    until(lambda: answers(engine, box), f"port 8000 of {box.id}")


def test_boxes_share_nothing(engine: Engine) -> None:
    one, two = make(engine, "one"), make(engine, "two")
    for box in (one, two):
        serves(engine, box)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 8000), timeout=5)
    sh(engine, one, "echo mine > /tmp/mine; echo mine > /etc/mine; mkdir -p /home/me")
    assert sh(engine, one, "cat /tmp/mine /etc/mine")[1] == "mine\nmine\n"
    assert sh(engine, two, "cat /tmp/mine /etc/mine; ls /home")[:2] == (0, "")
    assert not Path("/etc/mine").exists()
    assert not Path("/tmp/mine").exists()
    engine.call(one.exec(["sleep", "1234"]))
    commands = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    until(lambda: "1234" in sh(engine, one, commands)[1], "it shows where it runs")
    seen = sh(engine, two, commands)[1]
    assert "1234" not in seen
    assert "pytest" not in seen
    for kind in ("net", "pid", "mnt", "uts", "ipc"):
        spaces = {sh(engine, box, f"readlink /proc/self/ns/{kind}")[1] for box in (one, two)}
        assert len(spaces | {os.readlink(f"/proc/self/ns/{kind}") + "\n"}) == 3
    assert sh(engine, one, "hostname")[1] == "one\n"


def test_a_box_has_no_way_out(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, _, err = sh(
            engine,
            make(engine, "in", run_image=False),
            f"{sys.executable} -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 5)'",
        )
    assert code == 1
    assert "refused" in err


def test_private_folders_are_empty(engine: Engine) -> None:
    assert os.listdir("/tmp")
    box = make(engine, "box", run_image=False)
    assert sh(engine, box, "ls -A /tmp /home /run /var/tmp")[1].split() == ["/home:", "/run:", "/tmp:", "/var/tmp:"]


@pytest.mark.parametrize(
    ("argv", "code", "out", "err"),
    [
        (["/bin/sh", "-c", "echo a; echo b >&2; exit 7"], 7, b"a\n", b"b\n"),
        (["/bin/sh", "-c", "kill -9 $$"], 137, b"", b""),
        (["/bin/sh", "-c", "kill -TERM $$"], 143, b"", b""),
        (["/bin/sh", "-c", "pwd; echo $HOME $PATH | cut -c1-5"], 0, b"/\n/root\n", b""),
    ],
)
def test_codes_and_streams(engine: Engine, argv: list[str], code: int, out: bytes, err: bytes) -> None:
    assert engine.call(make(engine, "box", run_image=False).run(argv)) == (code, out, err)


def test_stdin_of_any_size(engine: Engine) -> None:
    data = os.urandom(1 << 20) * 5
    box = make(engine, "box", run_image=False)
    assert engine.call(box.run(["cat"], data)) == (0, data, b"")
    assert engine.call(box.run(["cat"])) == (0, b"", b"")
    assert engine.call(box.run(["true"], data))[0] == 0


def test_env_cwd_and_user(engine: Engine) -> None:
    box = make(engine, "box", run_image=False)
    assert sh(engine, box, "echo $A$B", env={"A": "1"})[1] == "1\n"
    assert sh(engine, box, "pwd", cwd="/etc")[1] == "/etc\n"
    assert sh(engine, box, "id -u; id -g; id -G; echo $HOME", user="4242")[1] == "4242\n0\n0\n/\n"
    assert sh(engine, box, "id -u; id -G", user="nobody:4243")[1] == "65534\n4243\n"
    assert "denied" in sh(engine, box, "cat /etc/shadow", user="nobody")[2]


def test_what_cannot_start(engine: Engine) -> None:
    box = make(engine, "box", run_image=False)
    for how, file in (
        ({"argv": ["no-such-program"]}, "no-such-program"),
        ({"argv": ["/etc/passwd"]}, "/etc/passwd"),
        ({"argv": ["true"], "cwd": "/no/such"}, "/no/such"),
    ):
        with pytest.raises((FileNotFoundError, PermissionError)) as caught:
            engine.call(box.exec(**how))
        assert caught.value.filename == file
    with pytest.raises(NoSuchUser):
        engine.call(box.exec(["true"], user="no-such-user"))
    with pytest.raises(KeyError):
        engine.call(engine.create("nobody/knows:1", id="x"))


def test_kill_takes_the_whole_session(engine: Engine) -> None:
    box = make(engine, "box", run_image=False)
    other = engine.call(box.exec(["sleep", "999"]))
    proc = engine.call(box.exec(["/bin/sh", "-c", "sleep 1111 & (sleep 2222; true) & echo up; wait"]))
    assert engine.call(proc.stdout.readline()) == b"up\n"
    assert f"{proc.pid} " in sh(engine, box, f"cat /proc/{proc.pid}/stat")[1]
    engine.call(proc.kill())
    assert engine.call(proc.wait()) == 137
    until(lambda: sh(engine, box, "ps -eo args | grep -c '[s]leep [12]'")[1] == "0\n", "its children are gone")
    assert other.code is None


def test_orphans_leave_no_zombies(engine: Engine) -> None:
    box = make(engine, "box", run_image=False)
    sh(engine, box, "(sleep 0.05 &) ; true")
    until(lambda: sh(engine, box, "ps -eo stat,args | grep -c '[s]leep'")[1] == "0\n", "the orphan is reaped")


def test_files(engine: Engine) -> None:
    box = make(engine, "box", run_image=False)
    engine.call(box.write("/data/deep/file", b"\0one", user="1234", mode=0o640))
    assert engine.call(box.read("/data/deep/file")) == b"\0one"
    entry = engine.call(box.stat("/data/deep/file"))
    assert (entry.type, entry.size, entry.mode, entry.uid) == ("file", 4, 0o640, 1234)
    sh(engine, box, "ln -s /data/deep/file /data/link")
    assert engine.call(box.read("/data/link")) == b"\0one", "absolute links stay inside"
    engine.call(box.move("/data/deep/file", "/data/moved"))
    assert [(e.name, e.type) for e in engine.call(box.listdir("/data"))] == [
        ("deep", "dir"),
        ("link", "link"),
        ("moved", "file"),
    ]
    engine.call(box.remove("/data/deep"))
    with pytest.raises(OSError, match="not empty"):
        engine.call(box.remove("/data"))
    engine.call(box.remove("/data", recursive=True))
    with pytest.raises(FileNotFoundError):
        engine.call(box.stat("/data"))
    with pytest.raises(FileNotFoundError):
        engine.call(box.write("/no/such/folder", b"", parents=False))


def test_images_say_how_they_start(engine: Engine) -> None:
    box = make(engine, "user", "user-env", env={"MORE": "x"})
    serves(engine, box)
    assert box.main is not None
    status = sh(engine, box, f"cat /proc/{box.main.pid}/status; readlink /proc/{box.main.pid}/cwd")[1]
    assert "Uid:\t1000\t1000" in status
    assert status.endswith("/srv\n")
    environ = sh(engine, box, f"tr '\\0' '\\n' < /proc/{box.main.pid}/environ")[1].splitlines()
    assert {"MARK=from the image", "MORE=x"} <= set(environ)
    dying = make(engine, "dying", "dying", exits=True)
    assert dying.main is not None
    assert engine.call(dying.main.wait()) == 17
    until(lambda: dying.state == "stopped", "it stops with its main process")
    assert bytes(dying.log.data) == b"dying words\n"
    assert engine.alive() == 2


def test_the_log_is_followed_to_its_end(engine: Engine) -> None:
    async def follow(box: Box) -> bytes:
        return b"".join([chunk async for chunk in box.log.follow()])

    box = make(engine, "ends", argv=["/bin/sh", "-c", "echo one; sleep 0.1; echo two >&2"])
    assert engine.call(follow(box)) == b"one\ntwo\n"
    box = make(engine, "cut", argv=["/bin/sh", "-c", "echo one; sleep 99"])
    following = engine.call(later(engine, follow(box)))
    until(lambda: box.log.data, "it speaks")
    engine.call(box.stop())
    assert engine.call(wait_for(following)) == b"one\n"


async def later(engine: Engine, coro: Any) -> Any:
    return engine.keep(coro)


async def wait_for(task: Any) -> Any:
    return await task


def test_paused_boxes_stand_still(engine: Engine) -> None:
    box = make(engine, "box")
    serves(engine, box)
    counter = engine.call(box.exec(["/bin/sh", "-c", "while :; do echo .; sleep 0.01; done > /tmp/count"]))
    until(lambda: "/tmp/count" in [entry.path for entry in engine.call(box.listdir("/tmp"))], "it counts")
    engine.call(box.pause())
    with pytest.raises(BoxGone):
        engine.call(box.exec(["true"]))
    stat = Path(f"/proc/{counter.host_pid}/stat")
    # "D": the shell waits for a child that was stopped before its exec.
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TD", "it is stopped")
    engine.call(box.resume())
    size = engine.call(box.stat("/tmp/count")).size
    until(lambda: engine.call(box.stat("/tmp/count")).size > size, "it counts again")
    assert answers(engine, box)
    engine.call(box.pause())
    assert engine.call(engine.delete("box"))
    assert engine.call(counter.wait()) == 137


def test_nothing_is_left_of_a_deleted_box(engine: Engine) -> None:
    mounts = Path("/proc/mounts").read_text()
    box = make(engine, "box")
    running = engine.call(box.exec(["/bin/sh", "-c", "trap '' TERM; sleep 77 & wait"]))
    space = os.readlink(f"/proc/{box.init_pid}/ns/pid")
    assert engine.call(engine.delete("box"))
    assert not engine.call(engine.delete("box"))
    assert engine.call(running.wait()) == 137
    assert box.main is not None
    assert engine.call(box.main.wait()) == 137
    assert space not in spaces()
    assert Path("/proc/mounts").read_text() == mounts
    with pytest.raises(BoxGone):
        engine.call(box.connect(8000))
    with pytest.raises(BoxGone):
        engine.call(box.read("/etc/passwd"))


def spaces() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            found.add(os.readlink(path))
        except OSError:
            continue
    return found


VICTIM = """
import os, sys
from tests.emulators.engine import Engine
engine = Engine().__enter__()
for n in range(3):
    box = engine.call(engine.create(engine.image("light"), id=f"b{n}"))
    engine.call(box.exec(["/bin/sh", "-c", "setsid sleep 999 & sleep 999"]))
    print(os.readlink(f"/proc/{box.init_pid}/ns/pid"))
print(engine.tmp, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_no_boxes(engine: Engine) -> None:
    root = str(Path(__file__).resolve().parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdout is not None
    lines = [child.stdout.readline().strip() for _ in range(4)]
    made, folder = set(lines[:3]), Path(lines[3])
    assert made <= spaces()
    assert folder.is_dir()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    until(lambda: not made & spaces(), "its boxes are gone")
    until(lambda: not folder.exists(), "its folder is gone")


def test_many_at_once(engine: Engine) -> None:
    async def many() -> list[bytes]:
        import asyncio

        async def one(n: int) -> bytes:
            box = await engine.create(engine.image("light"), id=f"m{n}")
            while True:
                try:
                    return await ask(box)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)

        return await asyncio.gather(*(one(n) for n in range(60)))

    replies = engine.call(many())
    assert len(replies) == 60
    assert all(b"healthy" in reply for reply in replies)
    assert engine.alive() == engine.peak == engine.made == 60
    engine.clear()
    assert engine.alive() == 0
