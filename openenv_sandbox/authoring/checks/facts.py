"""Run inside an environment's sandbox, by its Python: ``app MODULE:ATTR …``, or ``usage PORT …``; prints JSON.

Only the standard library at the top: the environment may have another openenv, or none.
"""

import inspect
import json
import os
import sys


def of_app(names: "list") -> "dict | None":  # type: ignore[type-arg]
    """What the application's environment claims: flags of its class, the arguments of reset, how many sessions."""
    sys.path.insert(0, os.getcwd())
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            app = __import__(module, fromlist=["_"])
            for part in (attribute or "app").split("."):
                app = getattr(app, part)
        except (ImportError, AttributeError):
            continue
        return of_server(app)
    return None


def of_server(app: object) -> "dict":  # type: ignore[type-arg]
    """The same of an application."""
    server = getattr(getattr(app, "state", None), "openenv_server", None)
    cls = getattr(server, "_class", None)
    facts = {"max_sessions": getattr(server, "max_concurrent_envs", None), "class": getattr(cls, "__name__", None)}
    if cls is not None:
        parameters = inspect.signature(cls.reset).parameters.values()
        facts["seed"] = any(p.name == "seed" for p in parameters)
        facts["concurrent"] = bool(getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False))
    return facts


def usage(ports: "list") -> "dict | None":  # type: ignore[type-arg]
    """Open files, threads and children of the process that listens on one of the ports; None where there is none."""
    inodes = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) in ports}
    owners = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if inodes & sockets_of(pid)]
    if not owners:
        return None
    pid = min(owners, key=int)
    children = 0
    for other in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{other}/stat") as file:
                children += file.read().rpartition(")")[2].split()[1] == pid
        except OSError:
            continue
    return {
        "open files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "child processes": children,
    }


def sockets_of(pid: str) -> "set":  # type: ignore[type-arg]
    """Inodes of the sockets a process holds."""
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


if __name__ == "__main__":
    answer = of_app(sys.argv[2:]) if sys.argv[1] == "app" else usage(list(map(int, sys.argv[2:])))
    sys.stdout.write("\nopenenv-facts " + json.dumps(answer) + "\n")
