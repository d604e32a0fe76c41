"""Commits that are small on their way and have no bounds where they arrive, and what git takes for them in memory."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import subprocess
import sys
import zlib
from pathlib import Path

_MIB = 1024**2
_COPIED = 15 * _MIB
_COMMIT, _TREE, _BLOB, _REF_DELTA = 1, 2, 3, 7
# A child of its own for each git, so that what is measured is that git's and its children's.
_METER = """\
#!{python} -IS
import os, sys
os.environ["PATH"] = {path!r}
child = os.posix_spawnp("git", ["git", *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(child, 0)
with open({log!r}, "a") as log:
    # Options of git itself, each with a value, stand before the command.
    commands = sys.argv[1::2]
    log.write(f"{{usage.ru_maxrss}} {{next(word for word in commands if word != '-c')}}\\n")
os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128)
"""


class Meter:
    """A `git` for a PATH that notes how much memory each git took at most."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._log = directory / "log"
        self._path = os.environ["PATH"]
        self.surroundings = {**os.environ, "PATH": f"{directory}:{self._path}"}
        program = directory / "git"
        program.write_text(_METER.format(python=sys.executable, path=self._path, log=str(self._log)))
        program.chmod(stat.S_IRWXU)

    def peak(self) -> int:
        """The most bytes that one git has had."""
        return max(int(line.split()[0]) for line in self._log.read_text().splitlines()) * 1024

    def ran(self, command: str) -> bool:
        """Whether there was a git with this command."""
        return f" {command}\n" in self._log.read_text()

    def measured(self, *arguments: str, cwd: Path, stdin: bytes = b"") -> int:
        """The bytes that an ordinary git takes at most, without any limit; it must work."""
        subprocess.run(
            ["git", *arguments], cwd=cwd, input=stdin, env=self.surroundings, check=True, capture_output=True
        )
        return int(self._log.read_text().splitlines()[-1].split()[0]) * 1024


class Bomb:
    """A commit on top of `base`, as a pack and as a bundle."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._entries: list[bytes] = []
        self.commit = ""

    def _add(self, kind: int, word: str, content: bytes) -> str:
        self._entries.append(_header(kind, len(content)) + zlib.compress(content))
        return _name(word, content)

    def _commit(self, tree: str) -> None:
        who = "a <a@b> 1700000000 +0000"
        text = f"tree {tree}\nparent {self._base}\nauthor {who}\ncommitter {who}\n\nboom\n"
        self.commit = self._add(_COMMIT, "commit", text.encode())

    @classmethod
    def of_deltas(cls, base: str, size: int) -> Bomb:
        """One file of `size` bytes, a whole number of times 15 MiB, that says only what it copies."""
        bomb, zeros = cls(base), bytes(_COPIED)
        small = bomb._add(_BLOB, "blob", zeros)
        times = size // _COPIED
        delta = _length(_COPIED) + _length(size) + (b"\xf0" + struct.pack("<I", _COPIED)[:3]) * times
        bomb._entries.append(_header(_REF_DELTA, len(delta)) + bytes.fromhex(small) + zlib.compress(delta))
        digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        for _ in range(times):
            digest.update(zeros)
        entry = b"100644 large\0" + digest.digest() + b"100644 small\0" + bytes.fromhex(small)
        bomb._commit(bomb._add(_TREE, "tree", entry))
        return bomb

    @classmethod
    def of_trees(cls, base: str, *, levels: int, width: int) -> Bomb:
        """`width` to the power of `levels` files, of `levels` trees."""
        bomb = cls(base)
        name, mode = bomb._add(_BLOB, "blob", b"x"), b"100644"
        for _ in range(levels):
            entries = (mode + b" d%03d\0" % number + bytes.fromhex(name) for number in range(width))
            name, mode = bomb._add(_TREE, "tree", b"".join(entries)), b"40000"
        bomb._commit(name)
        return bomb

    @property
    def pack(self) -> bytes:
        data = b"PACK" + struct.pack(">II", 2, len(self._entries)) + b"".join(self._entries)
        return data + hashlib.sha1(data, usedforsecurity=False).digest()

    @property
    def bundle(self) -> bytes:
        return f"# v2 git bundle\n-{self._base}\n{self.commit} refs/fleet/checkpoint\n\n".encode() + self.pack


def _name(word: str, content: bytes) -> str:
    return hashlib.sha1(f"{word} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def _header(kind: int, size: int) -> bytes:
    first, size = kind << 4 | size & 15, size >> 4
    return bytes([first | 0x80]) + _length(size) if size else bytes([first])


def _length(size: int) -> bytes:
    found = bytearray()
    while size > 0x7F:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*found, size])
