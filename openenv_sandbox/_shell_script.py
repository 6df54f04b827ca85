"""The POSIX-sh texts that `openenv_sandbox.shell` sends into sandboxes.

Written for dash, bash and busybox ash, with or without setsid, grep and /proc. What each part has to cope with:

* A process tree is found by three marks: a cookie in the environment (survives setsid and nohup), membership of the
  session or group of a found process, and descent from one. Only ``env -i setsid`` after its parent died escapes.
* ``kill -KILL -- -PGID`` is refused by dash and busybox; ``kill -KILL -PGID`` works everywhere.
* Commands started by ``&`` ignore SIGINT for good, so the command runs as a member of a foreground pipeline and only
  the deadline's timer is in the background.
* The command must not inherit our descriptors, or a server it leaves behind would keep the exec open.
* The variables of the caller may contain PATH or IFS: they are applied last, in the process that becomes the command.
"""

from __future__ import annotations

# Grows __a, the list of pids, by every process that belongs to one of them; drops what is dead. Status 1: none alive.
_KIN = r"""
__kin() {
  __b=" "; __m=1
  while [ "$__m" ]; do
    __m=
    for __f in /proc/[0-9]*/stat; do
      __i=${__f#/proc/}; __i=${__i%/stat}
      case "$__b" in *" $__i "*) continue ;; esac
      [ "$__i" != "$__self" ] || continue
      __l=; read -r __l 2>/dev/null <"$__f" || continue
      set -- ${__l##*") "}
      case "$1" in Z | X | '') continue ;; esac
      case "$__a$__b" in *" $__i "* | *" $2 "* | *" $3 "* | *" $4 "*) __b="$__b$__i "; __m=1 ;; esac
    done
  done
  if [ ! -r /proc/self/stat ]; then
    for __i in $__a; do kill -0 "$__i" 2>/dev/null && __b="$__b$__i "; done
  fi
  __a=$__b
  [ "$__a" != " " ]
}
__marked() {
  if [ "$__grep" ]; then
    for __f in $("$__grep" -ls "$1" $2 2>/dev/null); do __f=${__f#/proc/}; __a="$__a${__f%%/*} "; done
  else
    for __f in $2; do
      case "$(cat "$__f" 2>/dev/null)" in *"$1"*) __f=${__f#/proc/}; __a="$__a${__f%%/*} " ;; esac
    done 2>/dev/null
  fi
}
__nap() { sleep 0.05 2>/dev/null || sleep 1; }
__all() { for __i in $__a; do kill "-$1" "$__i" 2>/dev/null; done; }
__grep=$(command -v grep)
"""

# Writes a file to descriptor 5, encoded where output is text.
_PUT = r"""
__put() {
  case "$__o$__z" in
  text*base64) echo B; "$__z" <"$1" ;;
  text*) echo H; "$__z" -An -v -tx1 <"$1" ;;
  *) cat "$1" ;;
  esac >&5
}
"""

WRAPPER = (
    _KIN
    + r"""
__c=$1 __t=$2 __ti=$3 __g=$4 __n=$5 __o=$6 __d=$7 __u=$8 __k=$9
shift 9
__s= __y= __w= __p= __self=
[ "$__k" ] || {
  IFS= read -r __k
  while IFS= read -r __l && [ "$__l" != "$__k" ]; do __s="$__s$__l
"; done
}
if [ "$__n" = - ]; then exec 3</dev/null; else exec 3<&0; fi
exec 5>&1 6>&2
[ "$__o" = split ] || exec 6>&5
"""
    + _PUT
    + r"""
__end() {
  [ "$__o" != text ] || [ ! -f "$__y/out" ] || __put "$__y/out"
  printf '%sO;' "$__k" >&5
  [ "$__o" = split ] || [ ! -f "$__y/err" ] || __put "$__y/err"
  printf '%sE%s,%s;' "$__k" "$1" "$2" >&6
  [ -z "$__y" ] || rm -rf "$__y"
}
__fail() { __end 125 "$1"; exit 125; }
__tmp() {
  for __y in "$TMPDIR" /tmp /dev/shm /var/tmp /run "$HOME"; do
    [ "$__y" ] && [ -d "$__y" ] && __y=$__y/.oe-$__c && (umask 077 && mkdir "$__y") 2>/dev/null && return
  done
  __y=; return 1
}
[ -z "$__d" ] || CDPATH= cd "$__d" >/dev/null 2>&1 || __fail d
__z=
[ "$__o" != text ] || __z=$(command -v base64) || __z=$(command -v od) || __fail e
[ "$__o" = split ] || { __tmp && : >"$__y/err"; } || __fail y
case $__n in
? | ?? | ??? | ???? | ????? | ??????) ;;
*) if [ "$__y" ] || __tmp; then
    head -c "$__n" <&3 >"$__y/in" && [ "$(wc -c <"$__y/in")" -eq "$__n" ] || __fail i
    exec 3<"$__y/in"
    __n=+
  fi ;;
esac
__q=$(command -v setsid) && __w=$__q
if [ "$__u" ]; then
  __v=${__u%%:*} __h=${__u#"$__v"}
  __h=${__h#:}
  if [ "$__v" != "$(id -u)" ] && [ "$__v" != "$(id -un 2>/dev/null)" ]; then
    [ "$(id -u)" = 0 ] || __fail u
    case $__v in
    *[!0-9]*) id -u "$__v" >/dev/null 2>&1 || __fail u ;;
    esac
    case $__v in
    [a-z_]*) case $__v in *[!a-zA-Z0-9_-]*) ;; *) eval "HOME=~$__v"; export HOME ;; esac ;;
    esac
    if __q=$(command -v setpriv) && "$__q" --reuid "$__v" --clear-groups true 2>/dev/null; then
      if [ "$__h" ]; then __w="$__w $__q --reuid $__v --regid $__h --clear-groups"
      elif __h=$(id -g "$__v" 2>/dev/null) && id -un "$__v" >/dev/null 2>&1; then
        __w="$__w $__q --reuid $__v --regid $__h --init-groups"
      else __w="$__w $__q --reuid $__v --regid $__v --clear-groups"; fi
    elif [ -z "$__h" ] && __q=$(command -v su) && __v=$(id -un "$__v" 2>/dev/null); then
      __w="$__w $__q -s /bin/sh -c"
    else __fail u; fi
  fi
fi
__cmd() {
  if [ "$__o" = split ]; then exec 2>&6; else exec 2>"$__y/err"; fi
  [ "$__o" != text ] || exec >"$__y/out"
  exec 3<&- 5>&- 6>&-
  __x=$1
  case $__w in
  *" -c") set -- $__w 'exec "$@"' -- "$__v" sh "$@" ;;
  *) set -- $__w "$@" ;;
  esac
  read -r __p __q 2>/dev/null </proc/self/stat || __p=$(exec /bin/sh -c 'echo $PPID')
  echo "$__p" >&4
  eval "$__s"
  export OPENENV_EXEC="$__c"
  command -v "$__x" >/dev/null 2>&1 || { echo n >&4; exit 127; }
  exec 4>&-
  exec "$@"
}
__timer() {
  trap 'kill $! 2>/dev/null; exit 0' TERM
  sleep "$__t" &
  wait $! || { sleep "$__ti" & wait $! || exit 8; }
  trap '' TERM
  __a=" $__p "
  __marked "OPENENV_EXEC=$__c" '/proc/[0-9]*/environ'
  __kin; __all TERM; kill -TERM "-$__p" 2>/dev/null
  __e=0
  while __kin && [ "$__e" -lt "$__g" ]; do __nap; __e=$((__e + 1)); done
  kill -KILL "-$__p" 2>/dev/null
  __e=0
  __marked "OPENENV_EXEC=$__c" '/proc/[0-9]*/environ'
  while __kin && [ "$__e" -lt 40 ]; do
    __all KILL; __nap; __e=$((__e + 1))
    __marked "OPENENV_EXEC=$__c" '/proc/[0-9]*/environ'
  done
  [ "$__a" = " " ] && exit 9
  exit 10
}
{
  {
    case $__n in
    - | +) (__cmd "$@") <&3 ;;
    *) head -c "$__n" <&3 3<&- 4>&- 5>&- 6>&- | __cmd "$@" ;;
    esac
    echo "$?" >&4
  } 4>&1 >&5 2>/dev/null
} | {
  exec 3<&-
  IFS= read -r __p
  __i=
  [ "$__t" = - ] || { (__timer) </dev/null >/dev/null 2>&1 5>&- 6>&- & __i=$!; }
  IFS= read -r __r
  __x=
  [ "$__r" != n ] || { __x=n; IFS= read -r __r; }
  [ -z "$__i" ] || {
    kill -TERM "$__i" 2>/dev/null
    wait "$__i"
    case $? in 9) __x=t ;; 10) __x=l ;; esac
  }
  __end "$__r" "$__x"
  exit "${__r:-255}"
} 2>/dev/null
"""
)
"""Arguments: cookie, timeout, timeout in whole seconds, grace in steps of 50 ms, stdin, split or merged or text, cwd,
user, trailer nonce (empty: first line of stdin), command.

``stdin`` is ``-`` (none), ``+`` (until end-of-file), or a number of bytes; from a million on they are counted before
the command starts. The trailer is ``<nonce>O;`` at the end of stdout and ``<nonce>E<code>,<flag>;`` at the end of
stderr. Flags: t deadline, l deadline and processes left, n no such program, d no such directory, u user, i input short,
y no writable folder, e nothing that encodes.

With ``text`` both streams come at the end, each as ``B`` and base64 or ``H`` and hexadecimal digits.
"""

KILL = (
    _KIN
    # Stopped first: a wrapper must not see its command end and tidy up before it is killed itself.
    + r"""
__self=$$ __a=" " __e=0
__marked "OPENENV_EXEC=$1$2" '/proc/[0-9]*/environ'
[ -z "$3" ] || __marked "$1$2" '/proc/[0-9]*/cmdline'
while __kin && [ "$__e" -lt 60 ]; do
  __all STOP; __all KILL; __nap; __e=$((__e + 1))
  __marked "OPENENV_EXEC=$1$2" '/proc/[0-9]*/environ'
done
[ "$__a" = " " ]
"""
)
"""Arguments: the cookie in two halves, so that this shell itself does not carry the mark, and whether command lines
count too, as the wrapper's does. Status 0: nothing is left."""

SIGNAL = (
    _KIN
    + r"""
__self=$$ __a=" "
__marked "OPENENV_EXEC=$1$2" '/proc/[0-9]*/environ'
__kin && __all "$3"
exit 0
"""
)
"""Arguments: the cookie in two halves, a signal."""

COLLECT = (
    _PUT
    + r"""
__o=$3 __k=$4
exec 5>&1
__z=$(command -v base64) || __z=$(command -v od)
for __y in "$TMPDIR" /tmp /dev/shm /var/tmp /run "$HOME"; do
  __y=$__y/.oe-$1$2
  [ -d "$__y" ] && break
done
[ ! -f "$__y/out" ] || __put "$__y/out"
printf '%sO;' "$__k"
[ ! -f "$__y/err" ] || __put "$__y/err"
printf '%sE,;' "$__k"
[ ! -d "$__y" ] || rm -rf "$__y"
"""
)
"""What a wrapper that was killed had put aside. Arguments: the cookie in two halves, merged or text, trailer nonce."""

AS_USER = r"""
u=${1%%:*} g=${1#"${1%%:*}"}
g=${g#:}
shift
[ "$u" != "$(id -u)" ] && [ "$u" != "$(id -un 2>/dev/null)" ] || exec "$@"
case $u in [a-z_]*) case $u in *[!a-zA-Z0-9_-]*) ;; *) eval "HOME=~$u"; export HOME ;; esac ;; esac
if s=$(command -v setpriv); then
  [ -z "$g" ] || exec "$s" --reuid "$u" --regid "$g" --clear-groups "$@"
  g=$(id -g "$u" 2>/dev/null) && exec "$s" --reuid "$u" --regid "$g" --init-groups "$@"
  exec "$s" --reuid "$u" --regid "$u" --clear-groups "$@"
fi
[ "$g" ] || { n=$(id -un "$u" 2>/dev/null) && exec su -s /bin/sh -c 'exec "$@"' -- "$n" sh "$@"; }
echo "cannot run as user $u: the image has no setpriv, and su does not know it" >&2
exit 126
"""
"""Arguments: ``name``, ``uid`` or ``uid:gid``, and the command that becomes this process under that user."""

FROM_FILES = 'f=$1; shift; { cat $f; rm -f $f; } | /bin/sh -c "$@"'
"""Arguments: files (names without blanks) whose contents are the input, then those of another script and itself."""
