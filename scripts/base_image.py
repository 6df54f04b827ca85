"""Makes a small base image for environments from this machine, without a registry.

base_image.py [--tag TAG] [--with-uv] [--force]

The image holds a Debian user land (the files of installed packages), the Python that runs this script, git and curl,
and openenv's dependencies, so that an environment builds on it without a network. Made again only when one of those
changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LABEL = "openenv.base.fingerprint"
PACKAGES = (
    "base-files base-passwd bash ca-certificates coreutils curl dash debianutils findutils git grep gzip hostname "
    "libc-bin mawk netbase procps sed tar util-linux"
).split()
# Debian's git wants perl for verbs that no environment uses; the others are documentation or package management.
LEFT_OUT = {
    "perl",
    "perl-base",
    "git-man",
    "debconf",
    "dpkg",
    "install-info",
    "lsb-base",
    "openssl",
    "init-system-helpers",
    "liberror-perl",
}
BACKENDS = ("hatchling", "setuptools", "wheel")  # so that an environment installs with --no-build-isolation
UNWANTED = re.compile(
    r"/(share/(doc|man|info|locale|lintian|bash-completion|doc-base|common-licenses)|(idlelib|turtledemo|lib2to3|tkinter)|"
    r"config-3[^/]*|test|tests|lib/python3[^/]*/site-packages)/|\.a\Z|\.opt-[12]\.pyc\Z|EXTERNALLY-MANAGED\Z"
)
PREFIX = Path(sys.base_prefix).resolve()
SYSTEM = PREFIX == Path("/usr")
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def run(*argv: str, **kw: object) -> str:
    """Output of a command; its error text and exit are ours when it fails."""
    done = subprocess.run(argv, text=True, capture_output=True, check=False, **kw)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise SystemExit(f"{argv[0]} failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-2000:]}")
    return str(done.stdout)


def closure() -> dict[str, str]:
    """Installed packages that ours need, with their versions."""
    if shutil.which("dpkg-query") is None:
        raise SystemExit("a base image is made from Debian's packages: run this on Debian or Ubuntu")
    fields = "${binary:Package}\t${db:Status-Abbrev}\t${Version}\t${Pre-Depends}, ${Depends}\n"
    rows = (line.split("\t") for line in run("dpkg-query", "-W", f"-f={fields}").splitlines())
    known = {row[0].split(":")[0]: row for row in rows if row[1].startswith("ii")}
    missing = [name for name in PACKAGES if name not in known]
    if missing:
        sys.stdout.write(f"installing {' '.join(missing)}\n")
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", *missing, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        return closure()
    found: dict[str, str] = {}
    todo = list(PACKAGES) + ([f"python{VERSION}"] if SYSTEM else [])
    while todo:
        name = todo.pop()
        if name in found or name in LEFT_OUT or name not in known:
            continue
        found[name] = known[name][2]
        for clause in known[name][3].split(","):
            choices = [re.split(r"[ (:]", choice.strip())[0] for choice in clause.split("|")]
            todo += [choice for choice in choices if choice in known][:1]
    return found


def dependencies() -> list[str]:
    """What the project requires at run time."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads(text)["project"]
    return [*project["dependencies"], *BACKENDS]


def copy(source: Path, target: Path, *, links: bool = False) -> None:
    """Copy a file that is not there yet; never through a link, which would lead back to this machine's own file."""
    if os.path.lexists(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=not links)


def place(root: Path, path: str) -> None:
    """Copy one file or link of this machine to the same place below ``root``, through merged /bin and /lib."""
    source = Path(path)
    target = root / source.parent.resolve().relative_to("/") / source.name
    mode = source.lstat().st_mode
    if not UNWANTED.search(path) and (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        copy(source, target, links=True)


def userland(root: Path, packages: dict[str, str]) -> None:
    """The packages' files, and what their installation scripts would have made."""
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if Path("/", name).is_symlink():
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
    for path in run("dpkg-query", "-L", *packages).splitlines():
        if path.startswith("/") and os.path.lexists(path) and not os.path.isdir(path):
            place(root, path)
    for name in ("proc", "sys", "dev", "run", "root", "home", "var/tmp", "var/log", "opt", "app/src", "etc/ssl/certs"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(0o1777)
    (root / "root").chmod(0o700)
    etc = root / "etc"
    for name in ("passwd", "group"):
        copy(root / f"usr/share/base-passwd/{name}.master", etc / name)
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n")
    bundle = b"".join(path.read_bytes() for path in sorted((root / "usr/share/ca-certificates").rglob("*.crt")))
    (etc / "ssl/certs/ca-certificates.crt").write_bytes(bundle)
    for name, choice in (("sh", "dash"), ("awk", "mawk"), ("which", "which.debianutils")):  # alternatives
        if not os.path.lexists(root / "usr/bin" / name):
            (root / "usr/bin" / name).symlink_to(choice)


def python(root: Path, requirements: list[str], with_uv: bool) -> None:
    """The running interpreter below /usr/local (a system one stays below /usr) with the requirements installed."""
    home = root / "usr" if SYSTEM else root / "usr/local"
    stdlib = Path(sysconfig.get_path("stdlib", vars={"base": str(PREFIX), "installed_base": str(PREFIX)}))
    for path in stdlib.rglob("*"):
        relative = path.relative_to(PREFIX)
        if path.is_file() and not UNWANTED.search(f"/{relative}"):
            copy(path, home / relative)
    binary = home / "bin" / f"python{VERSION}"
    copy(PREFIX / "bin" / f"python{VERSION}", binary)
    for library in PREFIX.glob(f"lib/libpython{VERSION}*.so*"):
        copy(library, home / "lib" / library.name, links=True)
    local = root / "usr/local"
    packages = local / "lib" / f"python{VERSION}" / ("dist-packages" if SYSTEM else "site-packages")
    packages.mkdir(parents=True, exist_ok=True)
    (local / "bin").mkdir(parents=True, exist_ok=True)
    wanted = ["pip", *requirements, *(["uv"] if with_uv else [])]
    run(sys.executable, "-m", "pip", "install", "-q", "--no-warn-script-location", "--target", str(packages), *wanted)
    interpreter = f"/{binary.relative_to(root)}"
    for name in ("python", "python3", f"python{VERSION}"):
        if not (local / "bin" / name).exists():
            (local / "bin" / name).symlink_to(interpreter)
    for script in (packages / "bin").iterdir():
        content = script.read_bytes()
        if content.startswith(b"#!"):
            content = b"#!" + interpreter.encode() + content[content.index(b"\n") :]
        target = local / "bin" / script.name
        target.unlink(missing_ok=True)
        target.write_bytes(content)
        target.chmod(0o755)
    shutil.rmtree(packages / "bin")
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "-j2", str(home / "lib" / f"python{VERSION}"), str(packages)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    libraries(root, home)


def libraries(root: Path, home: Path) -> None:
    """Shared libraries that the interpreter and its modules are linked to."""
    objects = [str(path) for path in home.rglob("*.so*") if path.is_file()] + [str(home / "bin" / f"python{VERSION}")]
    found: set[str] = set()
    done = subprocess.run(["ldd", *objects], text=True, capture_output=True, check=False)
    found.update(re.findall(r"=> (/\S+) \(", done.stdout))
    found.update(re.findall(r"^\s+(/lib\S+) \(", done.stdout, re.MULTILINE))
    for path in sorted(found):
        if path.startswith(str(root)) or (not SYSTEM and path.startswith(str(PREFIX))):
            continue
        place(root, path)
        if os.path.islink(path):
            place(root, os.path.realpath(path))
    run("ldconfig", "-r", str(root))


def main() -> None:
    """Make the image, unless one with the same fingerprint is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", default="openenv-base:local")
    parser.add_argument("--with-uv", action="store_true", help="add uv (60 MB)")
    parser.add_argument("--force", action="store_true", help="make it again")
    options = parser.parse_args()
    packages, requirements = closure(), dependencies()
    parts = [Path(__file__).read_text(), packages, requirements, sys.version, str(PREFIX), options.with_uv]
    fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    form = f'{{{{.Id}}}} {{{{index .Config.Labels "{LABEL}"}}}}'
    argv = ["docker", "image", "inspect", "-f", form, options.tag]
    there = subprocess.run(argv, text=True, capture_output=True, check=False)
    before, _, label = there.stdout.strip().partition(" ")
    if label == fingerprint and not options.force:
        sys.stdout.write(f"{options.tag} is up to date\n")
        return
    with tempfile.TemporaryDirectory(prefix="openenv-base-") as folder:
        root = Path(folder, "root")
        root.mkdir()
        userland(root, packages)
        python(root, requirements, options.with_uv)
        changes = [
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "ENV LANG=C.UTF-8",
            "ENV PYTHONUNBUFFERED=1",
            "ENV PYTHONPATH=/app/src",
            "WORKDIR /app",
            'CMD ["python3"]',
            f"LABEL {LABEL}={fingerprint}",
        ]
        argv = ["docker", "import", *(word for change in changes for word in ("--change", change)), "-", options.tag]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as importer:
            assert importer.stdin is not None
            assert importer.stdout is not None
            with tarfile.open(fileobj=importer.stdin, mode="w|") as tar:
                tar.add(root, arcname=".", filter=_as_root)
            importer.stdin.close()
            importer.stdout.read()
        if importer.returncode != 0:
            raise SystemExit("docker import failed")
    if before:  # fails, rightly, while an image or a container stands on it
        subprocess.run(["docker", "rmi", before], capture_output=True, check=False)
    sys.stdout.write(f"{options.tag} made\n")


def _as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


if __name__ == "__main__":
    main()
