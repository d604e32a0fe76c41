"""Access to files by paths from a model, confined to the workspace; no other module opens such paths.

A path is walked one component at a time from a descriptor of the root. The kernel never follows a symbolic link
(O_NOFOLLOW): links are read here and walked below the same root, and `..` returns to the directory that was really
passed. The checked directories stay open, so swapping a link in between has no effect. `.git` belongs to the git tool.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

MAX_LINKS = 40
MAX_PATH_BYTES = 4096
_MAX_SIBLINGS = 500
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_IGNORABLE = dict.fromkeys([0x00AD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Code points that some file systems ignore when they compare names."""

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


class MissingPath(ToolFailure):
    """The path does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPath:
    """A resolved path: a name in an open directory. `info` is None if the name does not exist.

    `path` is the real path below the root, without links and `..`; the root itself is `.`. Its context closes the
    directory.
    """

    directory: int
    name: str
    path: str
    info: os.stat_result | None

    @property
    def kind(self) -> str:
        """`file`, `directory`, `fifo` and so on; empty if the name does not exist."""
        return KINDS.get(stat.S_IFMT(self.info.st_mode), "special file") if self.info else ""

    def __enter__(self) -> ResolvedPath:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A file that was read: its real path below the root, its bytes, its permission bits."""

    path: str
    data: bytes
    mode: int


class Tree:
    """The files below one root, by unchecked paths.

    Args:
        root: The directory on this host, itself trusted.
        mount: The same directory as commands see it; absolute paths below it are accepted as relative ones.

    Every method raises ToolFailure naming the path and its problem. It raises ToolRefusal for paths that lead outside
    or into `.git`, for devices and pipes, and for deleting the root.
    """

    def __init__(self, root: Path, mount: str = "/workspace") -> None:
        self._root = root
        self._prefixes = tuple(prefix for prefix in (mount.rstrip("/"), str(root).rstrip("/")) if prefix)

    def read(self, path: str, *, limit: int) -> Content:
        """Read a regular file of at most `limit` bytes."""
        with _path_errors(path), self._open_file(path) as (handle, entry):
            info = os.fstat(handle)
            if info.st_size > limit:
                raise ToolFailure(_too_large(path, info.st_size, limit))
            data = bytearray()
            while chunk := os.read(handle, min(limit + 1 - len(data), 1 << 20)):
                data += chunk
                if len(data) > limit:
                    raise ToolFailure(_too_large(path, len(data), limit))
            return Content(path=entry.path, data=bytes(data), mode=stat.S_IMODE(info.st_mode))

    def write(self, path: str, data: bytes, *, limit: int, mode: int | None = None) -> str:
        """Replace a file atomically, or create it with its parent directories; the real path written.

        An existing file keeps its owner, and its permission bits unless `mode` is given. For a link inside the
        workspace, its target is written.
        """
        if len(data) > limit:
            raise ToolFailure(_too_large(path, len(data), limit))
        with _path_errors(path), self._walk(path, create=True) as entry:
            if entry.info is not None and not stat.S_ISREG(entry.info.st_mode):
                raise wrong_kind(entry.kind)(f"{quoted(path)} is a {entry.kind}: only regular files can be written")
            _replace(entry, data, mode)
            return entry.path

    def size(self, path: str) -> int:
        """The size of the file at the path in bytes, 0 if there is none; cheap."""
        try:
            with self._walk(path) as entry:
                return entry.info.st_size if entry.info else 0
        except (ToolFailure, OSError):
            return 0

    def find(self, path: str) -> str:
        """The real path, below the root, of an existing path; it is safe as a command's argument."""
        with _path_errors(path), self._walk(path) as entry:
            if entry.info is None:
                raise _missing(path, entry)
            return entry.path

    def info(self, path: str) -> tuple[str, os.stat_result, str]:
        """(kind, stat, target) of a path; a link is not followed, and only a link has a target."""
        with _path_errors(path), self._walk(path, follow=False) as entry:
            if entry.info is None:
                raise _missing(path, entry)
            target = os.readlink(entry.name, dir_fd=entry.directory) if stat.S_ISLNK(entry.info.st_mode) else ""
            return entry.kind, entry.info, target

    def exists(self, path: str) -> bool:
        """Whether the path exists, a dangling link included."""
        try:
            self.info(path)
        except MissingPath:
            return False
        return True

    def count(self, path: str) -> int:
        with _path_errors(path), self._walk(path) as entry:
            return len(_names(entry.directory, entry.name))

    def make_directory(self, path: str) -> bool:
        """Create a directory and its parents; False if it already exists."""
        with _path_errors(path), self._walk(path, create=True) as entry:
            if entry.info is None:
                _make_directory(entry.directory, entry.name)
                return True
            if not stat.S_ISDIR(entry.info.st_mode):
                raise ToolFailure(f"{quoted(path)} exists and is a {entry.kind}")
            return False

    def remove(self, path: str) -> str:
        """Remove a file, a link (not its target) or an empty directory; its kind."""
        with _path_errors(path), self._walk(path, follow=False) as entry:
            if entry.name == ".":
                raise ToolRefusal(f"{quoted(path)} is the workspace itself or ends in '..'; name what to delete")
            if entry.info is None:
                raise _missing(path, entry)
            if not stat.S_ISDIR(entry.info.st_mode):
                os.unlink(entry.name, dir_fd=entry.directory)
            elif _names(entry.directory, entry.name):
                raise ToolFailure(f"{quoted(path)} is a directory that is not empty; delete its files first")
            else:
                os.rmdir(entry.name, dir_fd=entry.directory)
            return entry.kind

    @contextmanager
    def _open_file(self, path: str) -> Generator[tuple[int, ResolvedPath]]:
        with self._walk(path) as entry:
            if entry.info is None:
                raise _missing(path, entry)
            _refuse_special(path, entry.info, entry.kind)
            try:
                handle = os.open(entry.name, _FILE, dir_fd=entry.directory)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise ToolRefusal(f"{quoted(path)} became a symbolic link while it was being opened") from None
            try:
                # The file may have been replaced since it was checked: the open file's type counts.
                info = os.fstat(handle)
                _refuse_special(path, info, KINDS.get(stat.S_IFMT(info.st_mode), "special file"))
                yield handle, entry
            finally:
                os.close(handle)

    def _walk(self, path: str, *, create: bool = False, follow: bool = True) -> ResolvedPath:
        """Resolve a path. With `create`, make missing parents; `follow` applies to the last component only."""
        pending = self._components(path)[::-1]
        handles, names, links = [os.open(self._root, _DIRECTORY & ~os.O_NOFOLLOW)], list[str](), 0
        try:
            while pending:
                if links > MAX_LINKS:
                    raise ToolFailure(f"{quoted(path)} leads through more than {MAX_LINKS} symbolic links")
                name = pending.pop()
                if name == "..":
                    if not names:
                        raise outside(path)
                    os.close(handles.pop())
                    names.pop()
                    continue
                if is_git_directory(name):
                    raise _inside_git(path)
                info = _lstat(name, handles[-1])
                if info is not None and stat.S_ISLNK(info.st_mode) and (pending or follow):
                    links += 1
                    target = _readlink(name, handles[-1])
                    if target is None:
                        pending.append(name)
                        continue
                    if target.startswith("/"):
                        while names:
                            os.close(handles.pop())
                            names.pop()
                    pending.extend(self._components(target, through=path)[::-1])
                    continue
                if not pending:
                    return ResolvedPath(
                        directory=os.dup(handles[-1]), name=name, path="/".join((*names, name)), info=info
                    )
                if info is None:
                    self._check_unmade(path, len(names) + 1, pending[::-1])
                    if not create:
                        raise MissingPath(f"{quoted(path)}: there is no directory {quoted('/'.join((*names, name)))}")
                    _make_directory(handles[-1], name)
                elif not stat.S_ISDIR(info.st_mode):
                    raise ToolFailure(f"{quoted(path)}: {quoted('/'.join((*names, name)))} is not a directory")
                try:
                    handles.append(os.open(name, _DIRECTORY, dir_fd=handles[-1]))
                except OSError as error:
                    if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                        raise
                    links += 1  # it became a link since it was checked: check again
                    pending.append(name)
                    continue
                names.append(name)
            return ResolvedPath(
                directory=os.dup(handles[-1]), name=".", path="/".join(names) or ".", info=os.fstat(handles[-1])
            )
        finally:
            for handle in handles:
                os.close(handle)

    def _check_unmade(self, path: str, depth: int, rest: list[str]) -> None:
        """Refuse a path that leads outside or into `.git` through missing directories, before they are made."""
        for name in rest:
            depth += -1 if name == ".." else 1
            if depth < 0:
                raise outside(path)
            if is_git_directory(name):
                raise _inside_git(path)

    def _components(self, path: str, *, through: str = "") -> list[str]:
        if "\0" in path:
            raise ToolFailure(f"{quoted(path)} contains a NUL character")
        try:
            size = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise ToolFailure(f"{quoted(path)} contains characters that no file name can have") from None
        if size > MAX_PATH_BYTES:
            raise ToolFailure(f"{quoted(path)} has {size} bytes; a path has at most {MAX_PATH_BYTES}")
        if path.startswith("/"):
            inside = next((prefix for prefix in self._prefixes if (path + "/").startswith(prefix + "/")), None)
            if inside is None:
                raise outside(through or path)
            path = path[len(inside) :]
        return [part for part in path.split("/") if part not in ("", ".")]


def is_git_directory(name: str) -> bool:
    """Whether some file system treats a name as `.git`."""
    plain = name.translate(_IGNORABLE).rstrip(" .").casefold().partition(":")[0]
    return plain in (".git", "git~1")


def quoted(path: str) -> str:
    """A path for error messages: quoted, of bounded length."""
    return repr(path) if len(path) <= 200 else f"{path[:100]!r}...{path[-60:]!r}"


def outside(path: str) -> ToolRefusal:
    """The error for a path that leaves the workspace."""
    return ToolRefusal(
        f"{quoted(path)} leads outside the workspace; give a path relative to its root, as 'src/main.py'"
    )


def wrong_kind(kind: str) -> type[ToolFailure]:
    """The error type for a kind that is not a file: ToolRefusal for devices, pipes and sockets."""
    return ToolFailure if kind in ("directory", "symbolic link") else ToolRefusal


@contextmanager
def _path_errors(path: str) -> Generator[None]:
    """Turn an OSError into a ToolFailure that names the path as the model gave it."""
    try:
        yield
    except OSError as error:
        raise ToolFailure(f"{quoted(path)}: {error.strerror or error}") from error


def _inside_git(path: str) -> ToolRefusal:
    return ToolRefusal(f"{quoted(path)} lies in .git, which only the git tool may touch")


def _too_large(path: str, size: int, limit: int) -> str:
    return (
        f"{quoted(path)} has {size} bytes; files of at most {limit} bytes are handled whole. "
        "Search it, or print a part of it with a command"
    )


def _missing(path: str, entry: ResolvedPath) -> MissingPath:
    siblings = _names(entry.directory, ".")[:_MAX_SIBLINGS]
    prefix = entry.path[: -len(entry.name)]
    close = [quoted(prefix + name) for name in get_close_matches(entry.name[:100], siblings, n=3, cutoff=0.7)]
    return MissingPath(f"there is no {quoted(path)}" + (f"; did you mean {' or '.join(close)}?" if close else ""))


def _refuse_special(path: str, info: os.stat_result, kind: str) -> None:
    if not stat.S_ISREG(info.st_mode):
        hint = "; files_list_files shows what is in it" if stat.S_ISDIR(info.st_mode) else ""
        raise wrong_kind(kind)(f"{quoted(path)} is a {kind}, not a file{hint}")


def _lstat(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _readlink(name: str, directory: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:  # it is no longer a link
        return None


def _names(directory: int, name: str) -> list[str]:
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.listdir(handle)  # noqa: PTH208 (an open directory, not a path)
    finally:
        os.close(handle)


def _make_directory(directory: int, name: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        _own(handle, os.fstat(directory))
    finally:
        os.close(handle)


def _replace(entry: ResolvedPath, data: bytes, mode: int | None) -> None:
    """Write a temporary file and rename it: a reader sees the old content or the new one, never a part."""
    temporary = f".fleet-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o666, dir_fd=entry.directory)
    try:
        try:
            _own(handle, entry.info or os.fstat(entry.directory))
            if mode is None and entry.info is not None:
                mode = entry.info.st_mode
            if mode is not None:
                os.fchmod(handle, mode & 0o777)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)
        os.rename(temporary, entry.name, src_dir_fd=entry.directory, dst_dir_fd=entry.directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=entry.directory)
        raise


def _own(handle: int, like: os.stat_result) -> None:
    """Give a new file the owner of the file it replaces: sandboxes of a fleet that is root may run as another user."""
    if os.geteuid() == 0 and (like.st_uid, like.st_gid) != (0, 0):
        os.fchown(handle, like.st_uid, like.st_gid)
