"""Reading and writing files inside any sandbox, by commands: binary-safe, bounded, in memory of a few MiB.

Only sh, cat, dd, wc, chmod and mv are needed inside.
"""

from __future__ import annotations

import secrets as random
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from openenv_sandbox.errors import FileError

if TYPE_CHECKING:
    from openenv_sandbox.capabilities import ExecCapabilities
    from openenv_sandbox.provider import SandboxRef
    from openenv_sandbox.shell import ExecResult

READ_LIMIT = 100 * 1024 * 1024
"""Bytes that `FileMethods.read` returns at most unless the call says otherwise."""
STREAM_LIMIT = 1024 * 1024 * 1024
"""Bytes that the streaming variants move at most unless the call says otherwise."""
CHUNK = 4 * 1024 * 1024
_BLOCK = 64 * 1024

# Statuses: 20 no such file, 21 a directory, 22 not a regular file, 23 not readable, 24 over the limit.
_STAT = r"""
[ -e "$1" ] || [ -L "$1" ] || exit 20
[ ! -d "$1" ] || exit 21
[ -f "$1" ] || exit 22
[ -r "$1" ] || exit 23
s=$(stat -L -c %s "$1" 2>/dev/null) || s=$(wc -c <"$1") || exit 23
s=$((s))
[ "$s" -le "$2" ] || { echo "$s" >&2; exit 24; }
"""
_READ = _STAT + '[ "$s" -gt "$3" ] || { cat "$1"; exit; }\necho "$s" >&2; exit 25'
_SIZE = _STAT + 'echo "$s"'
_PIECE = 'dd if="$1" bs=65536 skip="$2" count="$3" 2>/dev/null'

# Statuses: 21 a directory is there, 26 no parent and it cannot be made, 27 not writable, 28 something is missing.
_BEGIN = r"""
p=${1%/*}
[ "$p" = "$1" ] || [ -z "$p" ] || mkdir -p "$p" 2>/dev/null || exit 26
[ ! -d "$1" ] || exit 21
(umask 077; : >"$2") 2>/dev/null || exit 27
"""
_APPEND = r"""
cat >>"$1" || exit 27
n=$(wc -c <"$1"); [ "$((n))" -eq "$2" ] || { echo "$((n))" >&2; exit 28; }
"""
# A busy mount point (/etc/hosts in a container) cannot be replaced, only overwritten.
_END = r"""
n=$(wc -c <"$2"); [ "$((n))" -eq "$4" ] || { echo "$((n))" >&2; rm -f "$2"; exit 28; }
chmod "$3" "$2" || { rm -f "$2"; exit 27; }
mv -f "$2" "$1" 2>/dev/null || { cat "$2" >"$1" && rm -f "$2"; } 2>/dev/null || { rm -f "$2"; exit 27; }
"""
_WHY = {
    20: "no such file",
    21: "it is a directory",
    22: "it is not a regular file",
    23: "not readable",
    26: "its folder cannot be made (a read-only place? /tmp is writable)",
    27: "not writable, or the disk is full (a read-only place? /tmp is writable)",
}


@dataclass(frozen=True)
class FileStat:
    """What is known of a file: its size in bytes."""

    size: int


class FileMethods:
    """The file operations of `openenv_sandbox.RunningSandbox`."""

    if TYPE_CHECKING:

        @property
        def ref(self) -> SandboxRef:
            """The sandbox's name."""

        async def _command(
            self,
            argv: list[str],
            *,
            stdin: Any = ...,
            user: str | None = ...,
            timeout: Any = ...,
            max_output: int = ...,
        ) -> ExecResult: ...

        def _exec_caps(self) -> ExecCapabilities: ...

    async def read(self, path: str, *, max_bytes: int = READ_LIMIT, user: str | None = None) -> bytes:
        """The contents of a file.

        Args:
            path: Absolute, or relative to the sandbox's working directory.
            max_bytes: Larger files are refused before anything is moved.
            user: Read as this user.

        Raises:
            FileError: It does not exist, is not a regular file, not readable, or over ``max_bytes``.
            SandboxGone: The sandbox ended.
        """
        result = await self._command(
            sh(_READ, path, max_bytes, CHUNK), user=user, max_output=CHUNK + 4096, timeout=None
        )
        if result.exit_code == 0 and not result.truncated:
            return result.stdout
        if result.exit_code not in (0, 25):
            self._refuse(path, result, max_bytes)
        parts = [part async for part in self.read_stream(path, max_bytes=max_bytes, user=user)]
        return b"".join(parts)

    async def read_stream(
        self, path: str, *, max_bytes: int = STREAM_LIMIT, user: str | None = None
    ) -> AsyncIterator[bytes]:
        """The contents of a file in pieces of a few MiB.

        Args:
            path: As for `read`.
            max_bytes: Larger files are refused before anything is moved.
            user: Read as this user.

        Raises:
            FileError: As for `read`, or the file changed its size meanwhile.
        """
        size = await self._size(path, max_bytes, user)
        for start in range(0, size, CHUNK):
            argv = sh(_PIECE, path, start // _BLOCK, CHUNK // _BLOCK)
            result = await self._command(argv, user=user, max_output=CHUNK, timeout=None)
            want = min(CHUNK, size - start)
            if result.exit_code != 0 or len(result.stdout) < want:
                raise FileError(f"{path} became shorter, or unreadable, while it was read", ref=self.ref)
            yield result.stdout[:want]

    async def _size(self, path: str, limit: int, user: str | None) -> int:
        result = await self._command(sh(_SIZE, path, limit), user=user)
        if result.exit_code != 0:
            self._refuse(path, result, limit)
        return self._number(path, result.stdout)

    async def write(
        self,
        path: str,
        data: bytes | str | Iterable[bytes] | AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        user: str | None = None,
        max_bytes: int = STREAM_LIMIT,
    ) -> None:
        """Write a file, whole or not at all; missing folders are made.

        The file belongs to the user that commands run as. A link of that name is replaced, not followed.

        Args:
            path: Absolute, or relative to the sandbox's working directory.
            data: Contents, or an iterable of pieces; text is UTF-8.
            mode: Permission bits.
            user: Write as this user.
            max_bytes: More than this is refused.

        Raises:
            FileError: The place is not writable, a directory, or the disk full; ``data`` is over ``max_bytes``.
            SandboxGone: The sandbox ended.
        """
        if isinstance(data, str):
            data = data.encode()
        if isinstance(data, (bytes, bytearray, memoryview)):
            if len(data) > max_bytes:
                self._too_large(path, len(data), max_bytes)
            data = [bytes(data)]
        part = f"{path}.oe-{random.token_hex(4)}"
        await self._step(path, sh(_BEGIN, path, part), user)
        sent = 0
        try:
            async for piece in _pieces(data, self._piece_size()):
                sent += len(piece)
                if sent > max_bytes:
                    self._too_large(path, sent, max_bytes)
                await self._step(path, sh(_APPEND, part, sent), user, piece)
            await self._step(path, sh(_END, path, part, f"{mode & 0o7777:o}", sent), user)
        except BaseException:
            from openenv_sandbox.lifecycle import finish

            await finish(self._command(sh('rm -f "$1"', part), user=user), timeout=10)
            raise

    def _piece_size(self) -> int:
        limit = self._exec_caps().max_stdin
        return CHUNK if limit is None else max(1, min(CHUNK, limit - 4096))

    async def _step(self, path: str, argv: list[str], user: str | None, stdin: bytes | None = None) -> None:
        result = await self._command(argv, stdin=stdin, user=user, timeout=None)
        if result.exit_code != 0:
            self._refuse(path, result, 0)

    def _refuse(self, path: str, result: ExecResult, limit: int) -> NoReturn:
        said = result.stderr.decode("utf-8", "replace").strip()
        if result.exit_code == 24:
            self._too_large(path, self._number(path, result.stderr), limit)
        if result.exit_code == 28:
            raise FileError(f"{path}: the backend delivered less than was sent ({said} bytes arrived)", ref=self.ref)
        why = _WHY.get(result.exit_code, f"exit code {result.exit_code} {said[-200:]}".strip())
        raise FileError(f"{path}: {why}", ref=self.ref)

    def _number(self, path: str, text: bytes) -> int:
        if not text.strip().isdigit() or len(text) > 32:
            raise FileError(f"{path}: its size cannot be read", ref=self.ref)
        return int(text)

    def _too_large(self, path: str, size: int, limit: int) -> NoReturn:
        raise FileError(
            f"{path}: {size} bytes are over the limit of {limit}", ref=self.ref,
            hint="raise max_bytes, or use read_stream or download for large files",
        )  # fmt: skip


def sh(script: str, *args: object) -> list[str]:
    """The argv of a script of ours with its arguments."""
    return ["/bin/sh", "-c", script, "oe", *map(str, args)]


async def _pieces(data: Iterable[bytes] | AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """``data`` cut and joined into pieces of about ``size`` bytes."""
    rest = bytearray()
    async for item in _each(data):
        if not rest and len(item) >= size:
            view = memoryview(item)
            whole = len(item) // size * size
            for start in range(0, whole, size):
                yield bytes(view[start : start + size])
            rest += view[whole:]
            continue
        rest += item
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)


async def _each(data: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, AsyncIterable):
        async for item in data:
            yield item
        return
    for item in data:
        yield item
