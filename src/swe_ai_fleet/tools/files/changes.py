"""Changes of files that are made together or not at all, and a bounded history for undoing them.

A patch is checked against all files of the workspace that it changes before any of them is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.patches import FileEdit, apply_hunks
from swe_ai_fleet.tools.files.paths import MissingPath, Tree, quoted
from swe_ai_fleet.tools.files.text import DecodedText, decode, syntax_error
from swe_ai_fleet.tools.policy import path_allowed

MAX_VERSIONS = 20
MAX_BYTES = 10 * 1024 * 1024
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file's content. A `mode` of None keeps its permission bits, or gives a new file the default ones."""

    data: bytes
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file before and after, by its real path; None if there is no file."""

    path: str
    before: FileState | None
    after: FileState | None


def file_state(tree: Tree, path: str, *, limit: int) -> FileState | None:
    """The file at a path; None if there is none. Raises ToolFailure if it is not a file or exceeds `limit` bytes."""
    try:
        content = tree.read(path, limit=limit)
    except MissingPath:
        return None
    return FileState(data=content.data, mode=content.mode)


def make_changes(tree: Tree, changes: Sequence[FileChange], *, limit: int) -> None:
    """Make all changes, in order.

    Raises:
        ToolFailure: A change failed. The changes before it are undone, and directories made for them are removed; the
            message names files that could not be restored.
    """
    for change in changes:
        if change.after is not None and len(change.after.data) > limit:
            raise ToolFailure(
                f"{change.path} would have {len(change.after.data)} bytes; {limit} is the limit of a file"
            )
    fresh = (PurePosixPath(change.path) for change in changes if change.before is None)
    above = [str(directory) for path in fresh for directory in path.parents[:-1]]
    absent = {directory for directory in above if not tree.exists(directory)}
    changes_made: list[FileChange] = []
    try:
        for change in changes:
            _write_state(tree, change.path, change.after, limit)
            changes_made.append(change)
    except BaseException as error:
        stuck: list[str] = []
        for change in reversed(changes_made):
            try:
                _write_state(tree, change.path, change.before, limit)
            except ToolFailure:
                stuck.append(change.path)
        for directory in sorted(absent, key=len, reverse=True):
            with suppress(ToolFailure):  # the directory was not made yet, or a command has written into it
                tree.remove(directory)
        if stuck:
            raise ToolFailure(f"{error}; what had been written could not be put back: {', '.join(stuck)}") from error
        raise


def _write_state(tree: Tree, path: str, state: FileState | None, limit: int) -> None:
    if state is not None:
        tree.write(path, state.data, limit=limit, mode=state.mode)
    else:
        tree.remove(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoable:
    """One change that is undone as a whole; it has one version per path (a moved file has two paths).

    A version is a path, the file before the change, and the digest of the file after it (None: no file).
    """

    operation: str
    versions: tuple[tuple[str, FileState | None, str | None], ...]

    @property
    def size(self) -> int:
        return sum(len(before.data) for _, before, _ in self.versions if before)


class ChangeHistory:
    """The last changes, newest last; drops the oldest beyond MAX_VERSIONS or MAX_BYTES."""

    def __init__(self) -> None:
        self._entries: list[Undoable] = []

    def record(self, operation: str, changes: Sequence[FileChange]) -> None:
        versions = tuple((change.path, change.before, digest(change.after)) for change in changes)
        self._entries.append(Undoable(operation=operation, versions=versions))
        while self._entries and self._is_full():
            self._entries.pop(0)

    def last(self, path: str) -> Undoable | None:
        entries = reversed(self._entries)
        return next((entry for entry in entries if any(changed == path for changed, _, _ in entry.versions)), None)

    def forget(self, entry: Undoable) -> None:
        self._entries.remove(entry)

    def _is_full(self) -> bool:
        versions = sum(len(entry.versions) for entry in self._entries)
        return versions > MAX_VERSIONS or sum(entry.size for entry in self._entries) > MAX_BYTES


def digest(state: FileState | None) -> str | None:
    """The SHA-256 of a file's content, None if there is no file."""
    return hashlib.sha256(state.data).hexdigest() if state is not None else None


def check_expected(path: str, state: FileState, expected_sha256: str | None) -> None:
    """Raise ToolFailure if a file no longer has the SHA-256 that the caller expects."""
    actual = digest(state)
    if expected_sha256 is not None and expected_sha256.lower() != actual:
        raise ToolFailure(f"{quoted(path)} has changed: its SHA-256 is {actual}; read it again before editing")


class PatchedFiles:
    """Collects the changes of a patch, applying each of its parts to the file in the workspace.

    Args:
        tree: The files of the workspace.
        limit: The maximum size of a file in bytes.
        expected: SHA-256 by path of files that must not have changed.
        allowed_paths: Globs that every changed path must match; empty allows all.
    """

    def __init__(self, tree: Tree, *, limit: int, expected: Mapping[str, str], allowed_paths: tuple[str, ...]) -> None:
        self._tree = tree
        self._limit = limit
        self._expected = dict(expected)
        self._allowed_paths = allowed_paths
        self._touched: set[str] = set()
        self.groups: list[tuple[FileChange, ...]] = []
        self.sentences: list[str] = []
        self.warnings: list[str] = []
        self._added = self._removed = 0

    @property
    def changes(self) -> tuple[FileChange, ...]:
        """The changes to make, in order."""
        return tuple(change for group in self.groups for change in group)

    @property
    def metadata(self) -> dict[str, object]:
        paths = [change.path for change in self.changes]
        return {"paths": paths, "added": self._added, "removed": self._removed, "syntax_errors": len(self.warnings)}

    def add(self, file: FileEdit) -> None:
        """Add one file of the patch. Raises ToolFailure if its hunks do not fit or the file may not be changed."""
        name = file.target or file.source or ""
        try:
            self._add(file)
        except ToolFailure as failure:
            named = failure.message.startswith(quoted(name))
            kind = ToolRefusal if isinstance(failure, ToolRefusal) else ToolFailure
            raise kind(f"{'' if named else quoted(name) + ': '}{failure.message}. Nothing was changed.") from None
        self._added += file.added
        self._removed += file.removed

    def check_expected_files(self) -> None:
        """Raise ToolFailure for an expected file that the patch does not read. Call it after all files are added."""
        for path in self._expected:
            raise ToolFailure(f"expected_sha256 names {quoted(path)}, which the patch does not read")

    def _add(self, file: FileEdit) -> None:
        before = self._before(file)
        after, offsets = self._after(file, before)
        moved = file.source is not None and file.target is not None and file.source != file.target
        changes: list[FileChange] = []
        if file.target is not None:
            replaced = None if moved else before
            changes.append(FileChange(path=file.target, before=replaced, after=after))
        if file.source is not None and (file.target is None or (moved and not file.copy)):
            changes.append(FileChange(path=file.source, before=before, after=None))
        for change in changes:
            self._touch(change.path)
        self.groups.append(tuple(changes))
        self.sentences.append(_change_text(file, created=before is None, offsets=offsets))
        if file.target is not None and after is not None:
            self._parse(file.target, before, after)

    def _touch(self, path: str) -> None:
        if path in self._touched:
            raise ToolFailure("the patch changes it twice; put its hunks into one part")
        if self._allowed_paths and not path_allowed(path, self._allowed_paths):
            raise ToolRefusal(f"it lies outside the paths allowed for this task: {', '.join(self._allowed_paths)}")
        self._touched.add(path)

    def _before(self, file: FileEdit) -> FileState | None:
        for path in {file.source, file.target} - {None}:
            self._refuse_links(str(path))
        if file.target is not None and file.source != file.target and self._tree.exists(file.target):
            raise ToolFailure("it already exists; the patch would create it")
        if file.source is None:
            return None
        state = file_state(self._tree, file.source, limit=self._limit)
        if state is None:
            if file.source == file.target and file.hunks and not any(hunk.old for hunk in file.hunks):
                return None  # a new file in a diff that does not write /dev/null for it
            raise ToolFailure(f"there is no {quoted(file.source)}; a new file has '--- /dev/null' above its '+++' line")
        check_expected(file.source, state, self._expected.pop(file.source, None))
        return state

    def _after(self, file: FileEdit, before: FileState | None) -> tuple[FileState | None, tuple[int, ...]]:
        if not file.hunks:
            data, offsets = before.data if before else b"", ()
        else:
            text = _as_patched(decode(file.source or "", before.data) if before else DecodedText(content=""), file)
            content, offsets = apply_hunks(text.content, file.hunks)
            data = text.with_content(content).encode(file.target or "")
        if file.target is None:
            if data and file.hunks:
                raise ToolFailure("the patch deletes it, but it holds more lines than the patch takes away")
            if data:
                raise ToolFailure("the patch deletes it without its lines; files_delete_file deletes a file")
            return None, offsets
        mode = before.mode if before else None
        if file.executable:
            mode = (0o755 if mode is None else mode) | 0o111
        elif file.executable is False and mode is not None:
            mode &= ~0o111
        return FileState(data=data, mode=mode), offsets

    def _refuse_links(self, path: str) -> None:
        """Refuse paths through links: a reader of the patch could not tell which file it changes."""
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            part = "/".join(parts[:end])
            try:
                kind, _, _ = self._tree.info(part)
            except MissingPath:
                return
            if kind == "symbolic link":
                raise ToolRefusal(f"{quoted(part)} is a symbolic link; patches do not go through links")
            if end < len(parts) and kind != "directory":
                raise ToolFailure(f"{quoted(part)} is a {kind}, not a directory")

    def _parse(self, path: str, before: FileState | None, after: FileState) -> None:
        try:
            now = decode(path, after.data).content
            old = decode(path, before.data).content if before else ""
        except ToolFailure:  # a binary file that was only renamed
            return
        error = syntax_error(path, now)
        if error and not (old and syntax_error(path, old)):
            self.warnings.append(f"Warning: {path} does not parse{' any more' if old else ''}: {error}")


def _as_patched(text: DecodedText, file: FileEdit) -> DecodedText:
    """The text with the line ends and byte order mark that the patch expects.

    A patch made from the files has their carriage returns and byte order mark. A patch by a model that was shown
    neither lacks both, and the file keeps its own.
    """
    lines = [line for hunk in file.hunks for line in (*hunk.old, *hunk.new)]
    if any(line.startswith(_BOM) for hunk in file.hunks for line in hunk.old) and text.encoding == "utf-8-sig":
        text = replace(text, content=_BOM + text.content, encoding="utf-8")
    if text.newline == "\r\n" and any(line.endswith(("\r\n", "\r")) for line in lines):
        text = replace(text, content=text.raw, newline="mixed")
    return text


def _change_text(file: FileEdit, *, created: bool, offsets: tuple[int, ...]) -> str:
    counts = f"+{file.added} -{file.removed}"
    if file.target is None:
        return f"Deleted {file.source}."
    if created:
        return f"Created {file.target} ({counts})."
    if file.source != file.target:
        return f"{'Copied' if file.copy else 'Renamed'} {file.source} to {file.target} ({counts})."
    moved = [f"hunk {number} {offset:+} lines" for number, offset in enumerate(offsets, start=1) if offset]
    elsewhere = f"; found elsewhere: {', '.join(moved)}" if moved else ""
    mode = "" if file.executable is None else f", now {'' if file.executable else 'not '}executable"
    return f"Changed {file.target} ({counts}{mode}{elsewhere})."
