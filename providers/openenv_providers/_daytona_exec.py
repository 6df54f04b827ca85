"""Commands in a daytona sandbox, over the one call that runs a command and returns its merged text.

What the SDK lacks is made inside the sandbox: a small supervisor runs the command with its streams in files, and the
requests look at those files. So stdout and stderr stay apart and are bytes, the exit code is exact, output arrives
while the command runs, and no proxy cuts a long one, since each request waits for at most `WINDOW_S`. (Sessions would
stream, but as text by lines, without an end of input, and a process left in the background keeps theirs busy.)
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from openenv_sandbox.errors import ExecError
from openenv_sandbox.shell import quote

WINDOW_S = 20
"""For how long one request waits for news, in seconds."""
CHUNK = 1 << 20
"""Bytes of each stream in one answer, and of input in one request; the SDK's HTTP client warns above that."""
LONGEST = 100_000
"""Characters of a command line; the vendor's shell takes it as one argument, of which Linux allows 128 KiB."""
NO_FOLDER, NO_CWD, GONE = 96, 97, 98

HOME = r"""
for d in "$TMPDIR" /tmp /dev/shm /var/tmp "$HOME"; do
  [ "$d" ] && [ -d "$d" ] && (umask 077; mkdir "$d/.oe-$1") 2>/dev/null || continue
  printf '%s:%s/.oe-%s;' "$2" "$d" "$1"
  exit 0
done
exit 96
"""
"""Arguments: a random name, a nonce. Makes the folder, which only its user can read, and prints its name."""

_NEWS = r"""
enc() { if command -v base64 >/dev/null 2>&1; then base64; else od -An -v -tx1; fi; }
for s in 0.01 0.02 0.05 0.1 0.2 0.4 0.6 0.6 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1; do
  c=; [ ! -f "$d/code" ] || read -r c <"$d/code"
  p=$(wc -c <"$d/out") && q=$(wc -c <"$d/err") || exit 98
  [ -z "$c" ] && [ "$p" -le "$a" ] && [ "$q" -le "$b" ] || break
  if read -r x <"$d/pid" && ! kill -0 "$x" 2>/dev/null && [ ! -f "$d/code" ]; then c=lost; break; fi
  sleep "$s" 2>/dev/null || sleep 1
done
[ $((p - a)) -le "$l" ] && [ $((q - b)) -le "$l" ] || c=
command -v base64 >/dev/null 2>&1 && f=b || f=x
printf '\n%s:%s:%s:' "$n" "$c" "$f"
tail -c "+$((a + 1))" "$d/out" | head -c "$l" | enc; printf ':'
tail -c "+$((b + 1))" "$d/err" | head -c "$l" | enc; printf ';'
"""

START = (
    r"""
n=$1 l=$2 d=$3 i=$4 w=$5 a=0 b=0 r=$6; shift 6
[ -z "$r" ] || rm -rf $r
m=$(umask); umask 077
mkdir "$d" 2>/dev/null && : >"$d/out" && : >"$d/err" || exit 96
umask "$m"
case $i in
"") exec 3</dev/null ;;
*" "*) cat $i >"$d/in" && exec 3<"$d/in" && rm -f $i "$d/in" || exit 96 ;;
*) exec 3<"$i" && rm -f "$i" || exit 96 ;;
esac
[ -z "$w" ] || cd "$w" 2>/dev/null || exit 97
$(command -v setsid) /bin/sh -c '
  d=$1; shift
  echo "$$" >"$d/pid"
  (exec "$@") <&3 >>"$d/out" 2>>"$d/err" 3<&-
  echo "$?" >"$d/code.new"; mv "$d/code.new" "$d/code"
' oe "$d" "$@" </dev/null >/dev/null 2>&1 &
exec 3<&-
while [ ! -s "$d/pid" ] && [ -d "$d" ]; do sleep 0.01 2>/dev/null || sleep 1; done
"""
    + _NEWS
)
"""Arguments: nonce, most bytes, folder of this command, files of its input, working directory, what to remove, command.

What is removed is what is left of commands that have ended."""

NEXT = "n=$1 l=$2 d=$3 a=$4 b=$5\n" + _NEWS
"""Arguments: nonce, most bytes, folder, bytes of stdout and of stderr that have arrived."""


@dataclass(frozen=True)
class News:
    """What is new of a command: its exit code once all of its output is told, ``lost`` when nobody knows it."""

    code: int | None
    lost: bool
    stdout: bytes
    stderr: bytes

    @property
    def over(self) -> bool:
        """Whether nothing follows."""
        return self.lost or self.code is not None


def line(script: str, *args: str) -> str:
    """One command line that any shell reads as a POSIX-sh script with arguments."""
    return " ".join(["/bin/sh", "-c", *map(quote, (script, "oe", *args))])


def as_file(script: str, *args: str) -> bytes:
    """The same as a file, for arguments that no command line holds."""
    return f"set -- {' '.join(map(quote, args))}\n{script}".encode()


def home(text: str, nonce: str) -> str:
    """The folder that `HOME` made.

    Raises:
        ExecError: None could be made.
    """
    found = re.search(re.escape(nonce) + r":([^;]+);", text)
    if found is None:
        raise ExecError("no writable folder in the sandbox for commands", hint="make /tmp writable")
    return found[1]


def news(text: str, nonce: str) -> News | None:
    """What a request brought; None when it did not come to its end."""
    found = re.search(rf"{re.escape(nonce)}:(\d*|lost):([bx]):([^:;]*):([^:;]*);", text)
    if found is None:
        return None
    code, form, out, err = found.groups()
    lost = code == "lost"
    return News(int(code) if code and not lost else None, lost, _bytes(form, out), _bytes(form, err))


def _bytes(form: str, text: str) -> bytes:
    joined = "".join(text.split())
    return base64.b64decode(joined) if form == "b" else bytes.fromhex(joined)
