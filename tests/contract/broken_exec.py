"""Defects in running commands, and the test of the suite that each is for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, ClassVar

from openenv_sandbox.errors import ExecError, ExecTimeout, SandboxGone
from openenv_sandbox.provider import RawResult
from openenv_sandbox.testing.fake import FakeSandbox
from tests.contract.broken_base import NATIVE, Broken


class Exec(FakeSandbox):
    """Hooks around the primitive."""

    def argv(self, argv: Any) -> Any:
        return argv

    def out(self, name: Any, data: bytes) -> tuple[Any, bytes]:
        return name, data

    def code(self, code: int | None) -> int | None:
        return code

    async def exec_raw(self, argv: Any, *, on_output: Any, **kw: Any) -> RawResult:
        def sink(name: Any, data: bytes) -> None:
            name, data = self.out(name, data)
            if data:
                on_output(name, data)

        result = await super().exec_raw(self.argv(argv), on_output=sink, **kw)
        return RawResult(self.code(result.exit_code))


def output(fn: Callable[[Any, bytes], tuple[Any, bytes]]) -> type[FakeSandbox]:
    """Output changed by ``fn``."""
    return type("Output", (Exec,), {"out": lambda self, name, data: fn(name, data)})


def codes(fn: Callable[[int | None], int | None]) -> type[FakeSandbox]:
    """Exit codes changed by ``fn``."""
    return type("Codes", (Exec,), {"code": lambda self, code: fn(code)})


def keywords(fn: Callable[[dict[str, Any]], dict[str, Any]]) -> type[FakeSandbox]:
    """Arguments of the primitive changed by ``fn``."""

    class Keywords(FakeSandbox):
        async def exec_raw(self, argv: Any, **kw: Any) -> RawResult:
            return await super().exec_raw(argv, **fn(kw))

    return Keywords


class NoEmptyWords(Exec):
    def argv(self, argv: Any) -> Any:
        return [word for word in argv if word]


class Imaginary(FakeSandbox):
    async def exec_raw(self, argv: Any, **kw: Any) -> RawResult:
        try:
            return await super().exec_raw(argv, **kw)
        except ExecError:
            return RawResult(0)


class Missing127(FakeSandbox):
    async def exec_raw(self, argv: Any, **kw: Any) -> RawResult:
        try:
            return await super().exec_raw(argv, **kw)
        except ExecError:
            return RawResult(127)


class Late(FakeSandbox):
    """All output at the end."""

    async def exec_raw(self, argv: Any, *, on_output: Any, **kw: Any) -> RawResult:
        chunks: list[tuple[Any, bytes]] = []
        result = await super().exec_raw(argv, on_output=lambda name, data: chunks.append((name, data)), **kw)
        for name, data in chunks:
            on_output(name, data)
        return result


class InputFirst(FakeSandbox):
    """Collects the input before it starts."""

    async def exec_raw(self, argv: Any, *, stdin: Any, **kw: Any) -> RawResult:
        if isinstance(stdin, AsyncIterator):
            stdin = b"".join([chunk async for chunk in stdin])
        return await super().exec_raw(argv, stdin=stdin, **kw)


class EnvInArgv(FakeSandbox):
    async def exec_raw(self, argv: Any, *, env: Any, **kw: Any) -> RawResult:
        for name, value in env.items():
            quoted = value.replace("'", "'\\''")
            argv = ["/bin/sh", "-c", f"{name}='{quoted}'; export {name}; \"$@\"; exit $?", "sh", *argv]
        return await super().exec_raw(argv, env={}, **kw)


class Own124(FakeSandbox):
    async def exec_raw(self, argv: Any, **kw: Any) -> RawResult:
        result = await super().exec_raw(argv, **kw)
        if result.exit_code == 124:
            raise ExecTimeout("timed out", ref=self.ref)
        return result


class TidiesUp(FakeSandbox):
    """Ends what a command left running."""

    async def exec_raw(self, argv: Any, **kw: Any) -> RawResult:
        try:
            return await super().exec_raw(argv, **kw)
        finally:
            script = (
                'for f in $(grep -ls "HOME=$HOME" /proc/[0-9]*/environ); do f=${f#/proc/}; '
                '[ "${f%/*}" = $$ ] || kill -9 "${f%/*}"; done 2>/dev/null; exit 0'
            )
            quiet: Any = {"env": {}, "cwd": None, "user": None, "stdin": None, "on_output": lambda name, data: None}
            with contextlib.suppress(SandboxGone):
                await asyncio.shield(super().exec_raw(["/bin/sh", "-c", script], **quiet))


class Believes(FakeSandbox):
    """Reads the exit code from the output."""

    async def exec_raw(self, argv: Any, *, on_output: Any, **kw: Any) -> RawResult:
        seen = bytearray()

        def sink(name: Any, data: bytes) -> None:
            seen.extend(data)
            on_output(name, data)

        result = await super().exec_raw(argv, on_output=sink, **kw)
        return RawResult(0) if b"E0," in seen else result


class Mixed(FakeSandbox):
    """Output goes to whoever started last."""

    last: ClassVar[Any] = None

    async def exec_raw(self, argv: Any, *, on_output: Any, **kw: Any) -> RawResult:
        type(self).last = on_output
        return await super().exec_raw(argv, on_output=lambda name, data: type(self).last(name, data), **kw)


class NotGone(FakeSandbox):
    async def exec_raw(self, argv: Any, **kw: Any) -> RawResult:
        try:
            return await super().exec_raw(argv, **kw)
        except SandboxGone as error:
            raise ExecError("failed", ref=self.ref) from error


class ShortPut(FakeSandbox):
    async def put(self, path: str, data: bytes) -> None:
        await super().put(path, data[:1000])


def short_input(kw: dict[str, Any]) -> dict[str, Any]:
    stdin = kw["stdin"]
    return {**kw, "stdin": stdin[: max(len(stdin) - 1, 0) // 2] if isinstance(stdin, bytes) else stdin}


no_stdout = output(lambda name, data: (name, b"" if name == "stdout" else data))
no_stderr = output(lambda name, data: (name, b"" if name == "stderr" else data))
merged = output(lambda name, data: ("stdout", data))
crlf = output(lambda name, data: (name, data.replace(b"\n", b"\r\n")))
ascii_only = output(lambda name, data: (name, data.decode("ascii", "replace").encode()))
twice = output(lambda name, data: (name, data + data))
noisy = output(lambda name, data: (name, b" " * 20_000 + data))
zero = codes(lambda code: 0)

RAW = {
    "test_raw_exit_code": Broken("every exit code is 0", sandbox=zero, param={"code": 7}),
    "test_raw_signal": Broken("a signal is negative", sandbox=codes(lambda code: -9 if code == 137 else code)),
    "test_raw_arguments": Broken("empty words vanish", sandbox=NoEmptyWords),
    "test_raw_bytes": Broken("ends of lines are converted", sandbox=crlf),
    "test_raw_missing_program": Broken("a missing program succeeds", sandbox=Imaginary),
    "test_raw_no_stdin": Broken("there is input nobody sent", sandbox=keywords(lambda kw: {**kw, "stdin": b"x"})),
    "test_raw_split": Broken("the streams are mixed", sandbox=merged),
    "test_raw_stdin": Broken("input is cut", sandbox=keywords(short_input), param={"size": 70_000}),
    "test_raw_stdin_stream": Broken("input is collected first", sandbox=InputFirst),
    "test_raw_stream": Broken("output comes at the end", sandbox=Late),
    "test_raw_env": Broken("variables are dropped", sandbox=keywords(lambda kw: {**kw, "env": {}})),
    "test_raw_cwd": Broken("the folder is ignored", sandbox=keywords(lambda kw: {**kw, "cwd": None})),
    "test_raw_user": Broken(
        "the user is ignored",
        sandbox=keywords(lambda kw: {**kw, "user": None}),
        caps={"exec": replace(NATIVE, user=True)},
    ),
    "test_raw_kill": Broken("cancelling ends nothing", caps={"exec": NATIVE}),
    "test_raw_put": Broken("files are cut", sandbox=ShortPut),
}

EXEC = {
    "test_exec_exit_code": Broken(
        "every exit code is 0",
        sandbox=zero,
        caps={"exec": NATIVE},
        param={"script": "exit 7", "code": 7, "stream": True},
    ),
    "test_exec_streams_apart": Broken("the streams are mixed", sandbox=merged, caps={"exec": NATIVE}),
    "test_exec_sequence": Broken("empty words vanish", sandbox=NoEmptyWords, caps={"exec": NATIVE}),
    "test_exec_stdin": Broken(
        "input is cut", sandbox=keywords(short_input), caps={"exec": NATIVE}, param={"size": 999_999}
    ),
    "test_exec_no_stdin": Broken(
        "there is input nobody sent", sandbox=keywords(lambda kw: {**kw, "stdin": b"x\n"}), caps={"exec": NATIVE}
    ),
    "test_exec_unread_stdin": Broken("every exit code is 0", sandbox=zero, caps={"exec": NATIVE}),
    "test_exec_env": Broken("variables stand in the command line", sandbox=EnvInArgv, caps={"exec": NATIVE}),
    "test_exec_cwd": Broken("the folder is ignored", sandbox=keywords(lambda kw: {**kw, "cwd": None})),
    "test_exec_missing_program": Broken("a missing program is an exit code", sandbox=Missing127, caps={"exec": NATIVE}),
    "test_exec_check": Broken("stderr is lost", sandbox=no_stderr, caps={"exec": NATIVE}),
    "test_exec_deadline": Broken("the deadline ends nothing", caps={"exec": NATIVE}),
    "test_exec_own_124": Broken("exit code 124 counts as the deadline", sandbox=Own124, caps={"exec": NATIVE}),
    "test_exec_cancel": Broken("cancelling ends nothing", caps={"exec": NATIVE}),
    "test_exec_output_bound": Broken("stderr is lost", sandbox=no_stderr, caps={"exec": NATIVE}),
    "test_exec_limits_of_the_context": Broken("stdout is lost", sandbox=no_stdout, caps={"exec": NATIVE}),
    "test_exec_streaming": Broken("chunks come twice", sandbox=twice, caps={"exec": NATIVE}),
    "test_exec_background": Broken("what a command leaves is ended", sandbox=TidiesUp),
    "test_exec_utf8": Broken("output is taken for ASCII", sandbox=ascii_only),
    "test_exec_imitated_end": Broken("the exit code is read from output", sandbox=Believes, caps={"exec": NATIVE}),
    "test_exec_at_once": Broken("output goes to whoever came last", sandbox=Mixed, caps={"exec": NATIVE}),
    "test_exec_hides_secrets": Broken("stderr is lost", sandbox=no_stderr, caps={"exec": NATIVE}),
    "test_exec_after_delete": Broken("gone is a failed command", sandbox=NotGone),
}

PROCESS = {
    "test_spawn": Broken("what a command leaves is ended", sandbox=TidiesUp),
    "test_spawn_stdin_end": Broken("input is cut", sandbox=keywords(short_input), caps={"exec": NATIVE}),
    "test_spawn_kill": Broken("what a command leaves is ended", sandbox=TidiesUp),
    "test_spawn_bounded_logs": Broken("what a command leaves is ended", sandbox=TidiesUp),
    "test_spawn_environment": Broken("the folder is ignored", sandbox=keywords(lambda kw: {**kw, "cwd": None})),
    "test_spawn_missing_program": Broken("every exit code is 0", sandbox=zero, caps={"exec": NATIVE}),
}

FILES = {
    "test_file_round_trip": Broken("ends of lines are converted", sandbox=crlf, param={"size": 5_000_000}),
    "test_file_mode_and_owner": Broken(
        "every exit code is 0 and stdout lost", sandbox=no_stdout, caps={"exec": NATIVE}
    ),
    "test_file_replaced_whole": Broken("input is cut", sandbox=keywords(short_input), caps={"exec": NATIVE}),
    "test_file_errors": Broken("every exit code is 0", sandbox=zero, caps={"exec": NATIVE}),
    "test_file_limit_first": Broken("noise on stderr", sandbox=noisy),
    "test_file_stream": Broken("chunks come twice", sandbox=twice, caps={"exec": NATIVE}),
    "test_tree_round_trip": Broken("ends of lines are converted", sandbox=crlf, caps={"exec": NATIVE}),
    "test_tree_single_file": Broken("input is cut", sandbox=keywords(short_input), caps={"exec": NATIVE}),
    "test_tree_links_out": Broken("stdout is lost", sandbox=no_stdout, caps={"exec": NATIVE}),
    "test_tree_limits": Broken("stdout is lost", sandbox=no_stdout, caps={"exec": NATIVE}),
    "test_tree_special_files": Broken("every exit code is 0", sandbox=zero, caps={"exec": NATIVE}),
}
