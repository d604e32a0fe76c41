"""What the fleet's own git takes of a node: memory for commits that unpack without end, disk, and CPUs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import acting_for
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.adapters.git_workspace import Credential, GitClone, GitWorkspaceProvider
from swe_ai_fleet.domain.access import Principal
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.command import Command, Owner
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, ResourceExhausted
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.sandbox import CpuSlots, IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.confinement import MAINLY_BWRAP, until
from tests.environments import provider_at
from tests.git_server import PASSWORD, USER, git_server, served_copy

_MIB = 1024**2
_LARGE = 1080 * _MIB
# A process's memory beside what it allocates: its code, and the files that it maps.
_BESIDE = 64 * _MIB
_SMALL = 256 * _MIB
# What each git of the fleet may allocate.
_LIMIT = 1024 * _MIB


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


class Place:
    """A provider whose gits are measured, and a repository."""

    def __init__(self, root: Path, level: IsolationLevel = IsolationLevel.NONE, *, like: Place | None = None) -> None:
        root.mkdir(exist_ok=True)
        self.repository = root / "repository"
        if like is None:
            make_repository(self.repository, {"a.txt": "a\n"})
        else:
            # The same commit, without what was unpacked there.
            shutil.copytree(like.repository, self.repository, ignore=shutil.ignore_patterns("pack-*"))
        self.base = git(self.repository, "rev-parse", "HEAD").strip()
        self.meter = Meter(root / "meter")
        self.handed = b""
        self.provider = provider_at(root, level=level, environ=self.meter.surroundings, fetch=self._fetch)

    async def _fetch(self, ref: BlobRef) -> bytes:
        return self.handed

    @asynccontextmanager
    async def clone(self) -> AsyncGenerator[GitClone]:
        pinned = await self.provider.pin("default", RepoRef(location=str(self.repository)))
        async with self.provider.open("e", "a", pinned, Environment()) as clone:
            yield clone

    def unpack(self, bomb: Bomb) -> int:
        """Take a bomb into the repository by an ordinary git, which has no limit: what that takes."""
        return self.meter.measured("index-pack", "--stdin", "--fix-thin", cwd=self.repository, stdin=bomb.pack)

    def hand_to(self, clone: GitClone, bomb: Bomb) -> None:
        """Put a bomb that is unpacked here into an agent's clone, as its HEAD."""
        for file in (self.repository / ".git/objects/pack").iterdir():
            shutil.copy(file, clone.root / ".git/objects/pack")
        (clone.root / ".git/HEAD").write_text(f"{bomb.commit}\n")


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Bomb]:
    """A repository that holds a bomb of deltas, unpacked without a limit."""
    place = Place(tmp_path_factory.mktemp("deltas"))
    bomb = Bomb.of_deltas(place.base, _LARGE)
    assert len(bomb.bundle) < 20_000
    # The control.
    assert place.unpack(bomb) > _LARGE
    return place, bomb


@pytest.mark.parametrize("level", MAINLY_BWRAP)
@pytest.mark.parametrize("kind", [pytest.param("deltas", marks=pytest.mark.slow), "trees"])
async def test_a_checkpoint_of_a_bomb(
    kind: str, level: IsolationLevel, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "deltas":
        bombed, bomb = request.getfixturevalue("deltas")
        place = Place(tmp_path, level, like=bombed)
    else:
        place = bombed = Place(tmp_path, level)
        bomb = Bomb.of_trees(place.base, levels=5, width=20)
        place.unpack(bomb)
    async with place.clone() as clone:
        bombed.hand_to(clone, bomb)
        said = await clone.run(Command(argv=("sh", "-c", "echo kept > kept.txt; git log -1 --format=%s HEAD")))
        assert said.stdout.text() == "boom\n"
        kept = await clone.checkpoint()
        # The commit is lost, the files are not, and the next checkpoint is like this one.
        assert kept.head == place.base
        assert await clone.checkpoint() == kept
        assert b"kept.txt" in (await clone.diff()).patch
    assert place.meter.ran("index-pack")
    assert place.meter.peak() < (_LIMIT + _BESIDE if kind == "deltas" else _SMALL)
    async with place.clone() as clone:
        await clone.restore(kept)
        assert (clone.root / "kept.txt").read_text() == "kept\n"


@pytest.mark.slow
async def test_an_upload_that_unpacks_to_much_more_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for number in range(16):
        (place.repository / f"zeros{number}").write_bytes(bytes(15 * _MIB) + b"%d" % number)
    git(place.repository, "add", ".")
    git(place.repository, "commit", "-qm", "zeros")
    bundle = tmp_path / "bundle"
    git(place.repository, "bundle", "create", "-q", str(bundle), "HEAD", "main")
    assert bundle.stat().st_size < 400_000

    async def store() -> None:
        raise AssertionError("it must not be kept")

    digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
    with pytest.raises(InvalidRequest, match="have more than") as refused:
        await place.provider.take("default", bundle, digest, RepoRef(location=f"upload:{digest}"), store)
    assert refused.value.field == "chunk"
    assert not list((tmp_path / "home/repositories").glob("*[0-9a-f]"))


# --- disk within a limit, CPUs by the slots of all ---

_DISK = 2 * _MIB


def make(root: Path, *, limit: int = _DISK, slots: CpuSlots | None = None) -> GitWorkspaceProvider:
    async def credential(tenant: str, reference: str, location: str) -> Credential:
        return Credential(username=USER, password=PASSWORD)

    sandbox = Sandbox(SandboxPolicy(level=IsolationLevel.NONE, max_disk_bytes=limit), slots)
    remote = {"protocols": ("http",), "hosts": ("127.0.0.1",), "credentials": credential}
    return provider_at(root.parent, root.name, sandbox=sandbox, **remote)


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("remote", "content"),
    # One that is large itself and has to be fetched, and a small commit of large files.
    [(True, os.urandom(3 * _DISK)), (False, bytes(3 * _DISK))],
    ids=["remote", "local"],
)
async def test_a_repository_larger_than_a_workspace_is_refused(tmp_path: Path, remote: bool, content: bytes) -> None:
    source = make_repository(tmp_path / "source", {"blob": content})
    served_copy(source, tmp_path / "served", "large.git")
    async with git_server(tmp_path / "served") as server:
        asked = RepoRef(location=f"{server.url}/large.git" if remote else str(source))
        with pytest.raises(ResourceExhausted) as refused:
            await make(tmp_path / "home").pin("acme", asked)
        assert refused.value.field == ("repo.url" if remote else "repo")
        assert "FLEET_MAX_DISK_BYTES" in refused.value.hint
        # Nothing gathers of what came before git was stopped.
        assert size(tmp_path / "home/repositories") < _MIB
        # The control.
        assert (await make(tmp_path / "other", limit=10 * _DISK).pin("acme", asked)).commit


async def test_submodules_come_to_no_more_than_a_workspace_together(tmp_path: Path) -> None:
    path = make_repository(tmp_path / "repository", {"README": "x\n"})
    for name in ("one", "two"):
        inner = make_repository(tmp_path / name, {"zeros": bytes(_DISK * 2 // 3), "name": name})
        git(path, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), name)
    git(path, "commit", "-qm", "submodules")
    for home, limit, expected in (("home", _DISK, 1), ("other", 10 * _DISK, 2)):
        provider = make(tmp_path / home, limit=limit)
        pinned = await provider.pin("acme", RepoRef(location=str(path)))
        async with provider.open("e", "a", pinned, Environment()) as clone:
            assert sum((clone.root / name / "zeros").exists() for name in ("one", "two")) == expected


async def test_an_upload_that_waits_for_its_turn_keeps_no_other_tenant_waiting(tmp_path: Path) -> None:
    path = make_repository(tmp_path / "repository", {"README": "x\n"})
    git(path, "bundle", "create", "--quiet", str(tmp_path / "bundle"), "HEAD", "main")
    slots = CpuSlots(tmp_path / "slots", 1)
    provider = make(tmp_path / "home", slots=slots)
    uploads = Uploads(workspaces=provider, blobs=MemoryLog(), max_bytes=_MIB)

    async def pieces() -> AsyncIterator[pb.UploadRepositoryRequest]:
        yield pb.UploadRepositoryRequest(header=pb.UploadRepositoryHeader())
        yield pb.UploadRepositoryRequest(chunk=(tmp_path / "bundle").read_bytes())

    async def sent(tenant: str) -> str:
        with acting_for(Principal(tenant=tenant)):
            return (await uploads.receive(pieces())).upload_id

    async with slots.hold(Owner(tenant="acme", execution_id="tests")):
        waiting = [asyncio.create_task(sent("acme")) for _ in range(2)]
        await until(lambda: any((tmp_path / "slots/waiting").iterdir()))
        # The control: another tenant has a slot of its own. Accepting a task takes none.
        async with asyncio.timeout(60):
            theirs = await sent("other")
        assert (await provider.pin("acme", RepoRef(location=str(path)))).commit
        assert not any(upload.done() for upload in waiting)
    assert await asyncio.gather(*waiting) == [theirs, theirs]
