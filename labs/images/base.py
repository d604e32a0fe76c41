"""Base images made of this machine's own root, for engines that can pull none: a small Debian with this Python.

Both are streams for `docker import`. `runtime_base` has the programs that the images need and the interpreter in
`/usr/local`, as the official image has it. `build_base` adds pip, with the wheels of the lock in a directory as its
only index: the host's own configuration of pip gets nowhere near the engine.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

_PACKAGES = (
    "base-files base-passwd bash bubblewrap ca-certificates coreutils dash diffutils findutils git grep gzip hostname "
    "libc-bin libc6 libgcc-s1 libstdc++6 login mawk netbase passwd procps ripgrep sed tar tini util-linux zlib1g"
)
"""Of Debian; the libraries that their programs load come along."""

WHEELS = "/opt/wheels"
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_NOT_NEEDED = re.compile(
    r"/usr/share/(doc|man|locale|info|lintian|bash-completion|perl5|bug)/|/usr/lib/(cgi-bin|systemd)/"
)
_NOT_OF_PYTHON = {"site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "__pycache__"}
_LIBRARY = re.compile(rb"(?:=> )?(/\S+) \(0x")
_PIP = f"[global]\nno-index = true\nfind-links = {WHEELS}\n"


class NoBase(Exception):
    """This machine cannot give a base; the message says why."""


def runtime_base(target: IO[bytes]) -> None:
    """Write the runtime base as an uncompressed tar stream. Raises NoBase."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _system(archive)


def build_base(target: IO[bytes], wheels: Path) -> None:
    """Write the build base, pip and its wheels in it. Raises NoBase."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise NoBase("this interpreter has no pip")
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _system(archive)
        place = f"usr/local/lib/python{sysconfig.get_python_version()}/site-packages/pip"
        _tree(archive, Path(spec.origin).parent, place)
        for wheel in sorted(wheels.iterdir()):
            archive.add(wheel, arcname=f"{WHEELS[1:]}/{wheel.name}", recursive=False)
        _text(archive, "etc/pip.conf", _PIP)


def _system(archive: tarfile.TarFile) -> None:
    for name in _MERGED:
        _link(archive, name, f"usr/{name}")
    for name, mode in (("tmp", 0o1777), ("var/tmp", 0o1777), ("root", 0o700), ("proc", 0o755), ("sys", 0o755)):
        _directory(archive, name, mode)
    for name, mode in (("dev", 0o755), ("run", 0o755), ("home", 0o755), ("var/lib", 0o755)):
        _directory(archive, name, mode)
    _text(archive, "etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
    _text(archive, "etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n")
    _text(archive, "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    _text(archive, "etc/os-release", Path("/etc/os-release").read_text())
    _text(archive, "etc/ssl/certs/ca-certificates.crt", Path("/etc/ssl/certs/ca-certificates.crt").read_text())
    files = {_merged(path): path for path in _debian_files()}
    python, places = _python_files()
    libraries = _libraries([*files.values(), *python])
    prefix = Path(sys.base_prefix)
    for library in libraries:
        # The interpreter's own library lies in its prefix.
        if not library.is_relative_to(prefix):
            files.setdefault(_merged(library), library)
    files |= places
    for directory in sorted({str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}):
        _directory(archive, directory, 0o755)
    for name, path in sorted(files.items()):
        _file(archive, path, name)
    version = sysconfig.get_python_version()
    for name in ("python3", "python"):
        _link(archive, f"usr/local/bin/{name}", f"python{version}")
    _loadable(archive, [*files])


def _debian_files() -> Iterator[Path]:
    asked = subprocess.run(
        ["dpkg-query", "--listfiles", *_PACKAGES.split()], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        raise NoBase(f"not every package is installed: {asked.stderr.strip()}")
    for line in asked.stdout.splitlines():
        path = Path(line)
        if line.startswith(("/etc/", "/var/", "/tmp/")) or line[1:] in _MERGED or _NOT_NEEDED.search(line):
            continue
        if path.is_symlink() or path.is_file():
            yield path


def _python_files() -> tuple[list[Path], dict[str, Path]]:
    """What has libraries to load, and every file by its name in the image."""
    version = sysconfig.get_python_version()
    prefix = Path(sys.base_prefix)
    program = prefix / "bin" / f"python{version}"
    if not program.exists():
        raise NoBase(f"the interpreter is not {program}")
    places = {f"usr/local/bin/python{version}": program}
    places |= {f"usr/local/lib/{one.name}": one for one in (prefix / "lib").glob("libpython*.so*")}
    standard = Path(sysconfig.get_path("stdlib"))
    for directory, children, names in os.walk(standard):
        children[:] = [child for child in children if child not in _NOT_OF_PYTHON and not child.startswith("config-")]
        for name in names:
            path = Path(directory, name)
            places[f"usr/local/lib/python{version}/{path.relative_to(standard)}"] = path
    return [program, *standard.glob("lib-dynload/*.so")], places


def _libraries(paths: list[Path]) -> set[Path]:
    """The shared libraries that the programs among some files load."""
    found: set[Path] = set()
    programs = [path for path in paths if not path.is_symlink() and _is_elf(path)]
    for start in range(0, len(programs), 200):
        asked = subprocess.run(["ldd", *programs[start : start + 200]], capture_output=True, check=False)
        named = {Path(os.fsdecode(one)) for one in _LIBRARY.findall(asked.stdout)}
        found |= named | {path.resolve() for path in named}
    return found


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _merged(path: Path) -> str:
    """A path's name in the image, where /bin and its like are links."""
    name = str(path).lstrip("/")
    return f"usr/{name}" if name.split("/", 1)[0] in _MERGED else name


def _tree(archive: tarfile.TarFile, directory: Path, name: str) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            _file(archive, path, f"{name}/{path.relative_to(directory)}")


def _file(archive: tarfile.TarFile, path: Path, name: str) -> None:
    info = archive.gettarinfo(path, arcname=name)
    if info.islnk() or not (info.isfile() or info.issym()):
        # A second name of a file that already exists: written out, whatever the first one was called.
        info = archive.gettarinfo(path.resolve(), arcname=name)
        info.type, info.size = tarfile.REGTYPE, path.stat().st_size
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    if info.isfile():
        with path.open("rb") as content:
            archive.addfile(info, content)
    else:
        archive.addfile(info)


def _text(archive: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    content = text.encode()
    info.size, info.mode = len(content), 0o644
    archive.addfile(info, io.BytesIO(content))


def _directory(archive: tarfile.TarFile, name: str, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    archive.addfile(info)


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    archive.addfile(info)


def _loadable(archive: tarfile.TarFile, names: list[str]) -> None:
    """The interpreter's own library, where the loader looks without a cache of libraries."""
    for name in names:
        base = name.rsplit("/", 1)[-1]
        if name.startswith("usr/local/lib/libpython"):
            _link(archive, f"usr/lib/x86_64-linux-gnu/{base}", f"/usr/local/lib/{base}")
