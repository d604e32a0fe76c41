"""Unpacks the layers of an image into one directory, without touching anything outside of it.

Each path is opened by descriptors from the root, and links on the way are refused, so that no entry can be written
through another one. Devices are left out, setuid bits and owners are dropped: all files belong to the fleet.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from swe_ai_fleet.adapters.git_workspace.directories import DIRECTORY, NEW_FILE
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.json_values import parsed

CHUNK = 1024 * 1024
_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_DEEPEST = 100
_LONGEST_PATH = 4096
_LARGEST_HEADER = 1024 * 1024
_LATEST = 2**33
# Small archives may legitimately consist of empty files.
_UNJUDGED_BYTES = 64 * 1024**2
UNREADABLE = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError)
"""The exceptions of reading an untrusted archive."""
_EXTENSIONS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """The limits of an image: compressed bytes, bytes and entries of its root, and the ratio of both sizes."""

    compressed_bytes: int = 8 * 1024**3
    unpacked_bytes: int = 20 * 1024**3
    entries: int = 500_000
    ratio: int = 100


class Header(tarfile.TarInfo):
    """An entry whose extensions, which are read into memory, have a realistic size."""

    def _proc_member(self, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in _EXTENSIONS and self.size > _LARGEST_HEADER):
            raise tarfile.ReadError("an entry has no size that it can have")
        return super()._proc_member(tarfile_)  # type: ignore[misc]


class Unpacking:
    """Unpacks layers, the lowest first, into `root`, an empty directory. Blocking. For one thread."""

    def __init__(self, root: Path, limits: ImageLimits) -> None:
        self._root = root
        self._limits = limits
        self._bytes = self._packed = self._entries = 0
        self._made: set[str] = set()

    def layer(self, file: IO[bytes], size: int, diff_id: str) -> None:
        """Unpack a layer of `size` bytes. Raises PreconditionFailed for a malformed layer, ResourceExhausted.

        `diff_id` is the digest of the uncompressed archive.
        """
        self._packed += size
        self._made = set()
        stream = _Counted(file, self._count)
        try:
            source = cast("IO[bytes]", stream)
            with parsed(lambda: tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK, tarinfo=Header)) as archive:
                while (member := parsed(archive.next)) is not None:
                    self._entries += 1
                    if self._entries > self._limits.entries:
                        raise ResourceExhausted(f"the image has more than {self._limits.entries:,} entries")
                    self._unpack_member(archive, member)
                    vars(archive)["members"].clear()  # or the archive would keep all of them
            while stream.read(CHUNK):
                pass
        except UNREADABLE as error:
            raise PreconditionFailed(f"a layer of the image cannot be read: {error}") from None
        except OSError as error:
            raise PreconditionFailed(f"a layer of the image cannot be unpacked: {error.strerror or error}") from None
        if stream.digest != diff_id:
            raise PreconditionFailed("a layer of the image is not the one that its configuration names")

    def read(self, path: str) -> bytes:
        """The beginning of a file of the root; empty without one."""
        *parents, name = path.split("/")
        try:
            with self._directory(parents) as directory:
                if directory is None:
                    return b""
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                with os.fdopen(descriptor, "rb") as file:
                    return file.read(CHUNK)
        except (OSError, PreconditionFailed):
            return b""

    def write(self, path: str, data: bytes) -> None:
        """Write a file of the root, replacing any entry; does nothing if its parent is no directory."""
        *parents, name = path.split("/")
        with suppress(PreconditionFailed), self._directory(parents, make=True) as directory:
            assert directory is not None
            _remove(directory, name)
            with os.fdopen(os.open(name, NEW_FILE, 0o644, dir_fd=directory), "wb") as file:
                file.write(data)

    def _count(self, size: int) -> None:
        """Count uncompressed bytes."""
        self._bytes += size
        if self._bytes > self._limits.unpacked_bytes:
            raise ResourceExhausted(f"the image unpacks to more than {self._limits.unpacked_bytes:,} bytes")
        if self._bytes > max(_UNJUDGED_BYTES, self._packed * self._limits.ratio):
            raise ResourceExhausted(f"the image unpacks to more than {self._limits.ratio} times its size")

    def _unpack_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            return  # the root itself
        *parents, name = parts
        if name.startswith(_WHITEOUT):
            self._white_out(parents, name)
            return
        if member.sparse is not None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            if member.isdev():
                return  # a sandbox has devices of its own
            raise PreconditionFailed(f"the image holds {member.name[:200]!r}, which is of a kind that none may have")
        with self._directory(parents, make=True) as directory:
            assert directory is not None
            self._made.update("/".join((*parents, name)[:end]) for end in range(1, len(parents) + 2))
            if member.isdir():
                self._put_directory(directory, name, member)
                return
            source = _parts(member.linkname) if member.islnk() else ()
            if source == (*parents, name):
                return
            _remove(directory, name)
            if member.issym():
                if "\0" in member.linkname or not member.linkname:
                    raise PreconditionFailed(f"the image has a link without a target, {member.name[:200]!r}")
                os.symlink(member.linkname, name, dir_fd=directory)
            elif source:
                with self._directory(source[:-1]) as other:
                    if other is None:
                        raise PreconditionFailed(f"the image links {member.name[:200]!r} to what it does not have")
                    os.link(source[-1], name, src_dir_fd=other, dst_dir_fd=directory, follow_symlinks=False)
            else:
                self._put_file(directory, name, archive, member)

    def _put_directory(self, directory: int, name: str, member: tarfile.TarInfo) -> None:
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                _remove(directory, name)
                os.mkdir(name, 0o700, dir_fd=directory)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=directory)
        descriptor = os.open(name, DIRECTORY, dir_fd=directory)
        try:
            os.fchmod(descriptor, member.mode & 0o777 | 0o700)
        finally:
            os.close(descriptor)

    def _put_file(self, directory: int, name: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        source = archive.extractfile(member)
        assert source is not None
        with os.fdopen(os.open(name, NEW_FILE, 0o600, dir_fd=directory), "wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
            file.flush()
            os.fchmod(file.fileno(), member.mode & 0o777 | 0o600)
            # Python's compiled files contain the modification time of their source.
            time = min(max(int(member.mtime), 0), _LATEST)
            os.utime(file.fileno(), (time, time))

    def _white_out(self, parents: list[str], name: str) -> None:
        """Remove an entry of lower layers; entries of this layer stay."""
        removed = name.removeprefix(_WHITEOUT)
        if name.startswith(_RESERVED) and name != _OPAQUE:
            return  # marks of the overlay file system itself
        if removed in ("", ".", ".."):
            raise PreconditionFailed(f"the image removes {removed!r}, which is no file of it")
        with self._directory(parents) as directory:
            if directory is None:
                return
            if name == _OPAQUE:
                self._clear(directory, "/".join(parents))
            elif "/".join((*parents, removed)) not in self._made:
                _remove(directory, removed)

    def _clear(self, directory: int, path: str) -> None:
        for name in os.listdir(directory):
            below = f"{path}/{name}" if path else name
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if below not in self._made:
                _remove(directory, name)
            elif stat.S_ISDIR(mode):
                descriptor = os.open(name, DIRECTORY, dir_fd=directory)
                try:
                    self._clear(descriptor, below)
                finally:
                    os.close(descriptor)

    @contextmanager
    def _directory(self, parts: list[str] | tuple[str, ...], *, make: bool = False) -> Generator[int | None]:
        """A directory below the root, by descriptor; None without one. Raises PreconditionFailed for a link."""
        descriptor = os.open(self._root, DIRECTORY)
        try:
            for number, name in enumerate(parts):
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=descriptor)
                try:
                    inner = os.open(name, DIRECTORY, dir_fd=descriptor)
                except FileNotFoundError:
                    yield None
                    return
                except OSError:
                    path = "/".join(parts[: number + 1])
                    raise PreconditionFailed(
                        f"the image writes through {path[:200]!r}, which is no directory"
                    ) from None
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def _parts(path: str) -> tuple[str, ...]:
    """The parts of a path in an archive, none for the root. Raises PreconditionFailed for one that leads out."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise PreconditionFailed(f"the image holds the path {path[:200]!r}, which leads out of it")
    if len(parts) > _DEEPEST or len(path) > _LONGEST_PATH:
        raise PreconditionFailed(f"the image holds a path of {len(parts)} directories, {len(path)} characters long")
    return parts


def _remove(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


class _Gunzip:
    """Decompresses gzip in pieces of bounded size; several members are one stream."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._member = zlib.decompressobj(31)
        self._pending = b""

    def read(self, size: int) -> bytes:
        while True:
            if self._member.eof:
                # After a member there is another one, zeros, or nothing.
                rest = self._member.unused_data.lstrip(b"\0")
                while not rest:
                    if not (more := self._file.read(CHUNK)):
                        return b""
                    rest = more.lstrip(b"\0")
                self._member, self._pending = zlib.decompressobj(31), rest
            self._pending = self._pending or self._file.read(CHUNK)
            if not self._pending:
                raise EOFError("it ends too early")
            data = self._member.decompress(self._pending, size)
            self._pending = self._member.unconsumed_tail
            if data:
                return data


class _Counted:
    """Reads the uncompressed bytes of a layer, counting and hashing them."""

    def __init__(self, file: IO[bytes], count: Callable[[int], None]) -> None:
        start = file.read(4)
        file.seek(0)
        if start.startswith(_ZSTD):
            raise PreconditionFailed("a layer of the image is compressed with zstd", hint="make it with gzip layers")
        self._stream = _Gunzip(file) if start.startswith(_GZIP) else file
        self._count = count
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        self._count(len(data))
        return data

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
