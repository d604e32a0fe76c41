"""Changes to the files of a workspace by the file tool's operations, and their undo."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.changes import (
    ChangeHistory,
    FileChange,
    FileState,
    PatchedFiles,
    check_expected,
    digest,
    file_state,
    make_changes,
)
from swe_ai_fleet.tools.files.patches import parse_patch
from swe_ai_fleet.tools.files.paths import MissingPath, Tree, outside, quoted, wrong_kind
from swe_ai_fleet.tools.files.text import (
    MAX_LINES,
    DecodedText,
    Replacement,
    border,
    decode,
    replace_passage,
    rewritten,
    syntax_error,
    unified_diff,
)


class Edit(BaseModel):
    """One passage and what replaces it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old: str = Field(description="The passage to replace, exactly as in the file, without line numbers.")
    new: str = Field(description="What to put in its place; empty deletes the passage.")
    replace_all: bool = Field(default=False, description="Replace every occurrence, not just one that is unique.")


class Editor:
    """Changes files below one root and keeps earlier versions for undo.

    Args:
        tree: The files of the workspace.
        limit: The maximum size, in bytes, of a file that is read or written whole.
    """

    def __init__(self, tree: Tree, *, limit: int) -> None:
        self._tree = tree
        self._limit = limit
        self._history = ChangeHistory()

    def write(self, path: str, content: str, *, name: str = "write_file") -> ToolResult:
        """Create or replace a file, as the operation `name`."""
        before = self._replaceable(path)
        old = None
        if before is not None:
            try:
                old = decode(path, before.data)
            except ToolFailure:  # a binary file: there is no encoding to keep
                old = DecodedText(content="")
        elif self._tree.size(path):
            old = DecodedText(content="")  # too large to be read
        text, data = rewritten(old, content, path)
        real = self._write(name, path, before, data)
        sentence = f"{'Replaced' if old else 'Created'} {real}: {count(text.lines, 'line')}, {len(data)} bytes."
        return _result_of(name, real, sentence, data, text, before=old.content if old else "")

    def append(self, path: str, content: str) -> ToolResult:
        before = file_state(self._tree, path, limit=self._limit)
        old = decode(path, before.data) if before is not None else DecodedText(content="")
        joint = "\n" if old.content and not old.content.endswith("\n") else ""
        text = old.with_content(old.content + joint + content)
        data = text.encode(path)
        real = self._write("append_file", path, before, data)
        sentence = f"Appended to {real}: now {count(text.lines, 'line')}, {len(data)} bytes."
        return _result_of("append_file", real, sentence, data, text, before=old.content)

    def edit(self, path: str, edit: Edit, expected_sha256: str | None) -> ToolResult:
        """Replace one passage; an empty passage creates a missing file."""
        if not edit.old and expected_sha256 is None and not self._tree.exists(path):
            return self.write(path, edit.new, name="edit_file")
        real, before = self._read(path, expected_sha256)
        text = decode(path, before.data)
        after, replacement = _edited(path, text, edit)
        data = after.encode(path)
        self._write("edit_file", real, before, data)
        sentence = _edit_text(real, replacement, after.lines)
        result = _result_of("edit_file", real, sentence, data, after, before=text.content)
        return replace(result, metadata={**result.metadata, "count": replacement.count})

    def multi_edit(self, path: str, edits: Sequence[Edit], expected_sha256: str | None) -> ToolResult:
        real, before = self._read(path, expected_sha256)
        first = last = decode(path, before.data)
        replaced = 0
        for number, edit in enumerate(edits, start=1):
            try:
                last, replacement = _edited(path, last, edit)
            except ToolFailure as failure:
                raise ToolFailure(f"edit {number} of {len(edits)}, so none was made: {failure.message}") from None
            replaced += replacement.count
        data = last.encode(path)
        self._write("multi_edit", real, before, data)
        text = f"Edited {real}: {count(edits, 'edit')}, {count(range(replaced), 'replacement')}."
        if max(len(first.lines), len(last.lines)) <= MAX_LINES:
            text += "\n" + unified_diff(first.content, last.content, source=real, target=real).rstrip("\n")
        result = _result_of("multi_edit", real, text, data, last, before=first.content)
        return replace(result, metadata={**result.metadata, "edits": len(edits), "count": replaced})

    def patch(self, patch: str, expected: Mapping[str, str], allowed_paths: tuple[str, ...]) -> ToolResult:
        patched = PatchedFiles(self._tree, limit=self._limit, expected=expected, allowed_paths=allowed_paths)
        for file in parse_patch(patch):
            patched.add(file)
        patched.check_expected_files()
        make_changes(self._tree, patched.changes, limit=self._limit)
        for group in patched.groups:
            self._history.record("apply_patch", group)
        return succeeded("apply_patch", "\n".join([*patched.sentences, *patched.warnings]), patched.metadata)

    def move(self, source: str, destination: str, overwrite: bool, expected_sha256: str | None) -> ToolResult:
        kind, _, _ = self._tree.info(source)
        if kind == "symbolic link":
            self._tree.find(source)  # raises ToolRefusal if the link leads outside
            raise ToolFailure(f"{quoted(source)} is a symbolic link; move the file that it leads to, or use a command")
        real, before = self._read(source, expected_sha256)
        target, replaced = self._destination(real, destination, overwrite)
        changes = (
            FileChange(path=target, before=replaced, after=before),
            FileChange(path=real, before=before, after=None),
        )
        return self._make("move_file", "Moved", real, changes)

    def copy(self, source: str, destination: str, overwrite: bool, expected_sha256: str | None) -> ToolResult:
        real, content = self._read(source, expected_sha256)
        target, replaced = self._destination(real, destination, overwrite)
        after = replace(content, mode=replaced.mode) if replaced else content
        return self._make("copy_file", "Copied", real, (FileChange(path=target, before=replaced, after=after),))

    def delete(self, path: str) -> ToolResult:
        """Delete a file, a link or an empty directory; deleting a file can be undone."""
        kind, info, _ = self._tree.info(path)
        before, real = None, path
        if kind == "file" and info.st_size <= self._limit:
            before, real = file_state(self._tree, path, limit=self._limit), self._tree.find(path)
        kind = self._tree.remove(path)
        if before is not None:
            self._history.record("delete_file", (FileChange(path=real, before=before, after=None),))
        return succeeded("delete_file", f"Deleted the {kind} {path}.", {"path": path, "kind": kind})

    def undo(self, path: str) -> ToolResult:
        try:
            real = self._tree.find(path)
        except MissingPath:
            real = posixpath.normpath(path)
        entry = self._history.last(real)
        if entry is None:
            raise ToolFailure(
                f"no change of {quoted(path)} by the files tool is remembered; git_checkout restores files"
            )
        changes: list[FileChange] = []
        for changed, before, after in entry.versions:
            now = file_state(self._tree, changed, limit=self._limit)
            if digest(now) != after:
                raise ToolFailure(f"{quoted(changed)} was changed by something else since; undoing would lose that")
            changes.append(FileChange(path=changed, before=now, after=before))
        make_changes(self._tree, changes, limit=self._limit)
        self._history.forget(entry)
        sentences = [f"Undid the last files_{entry.operation} of {real}."]
        for change in changes:
            if change.after is None:
                sentences.append(f"Removed {change.path}, which it had created.")
            else:
                sentences.append(f"Put back {change.path} as it was before: {len(change.after.data)} bytes.")
        metadata = {"undone": entry.operation, "paths": [change.path for change in changes]}
        return succeeded("undo_edit", "\n".join(sentences), metadata)

    def _read(self, path: str, expected_sha256: str | None) -> tuple[str, FileState]:
        content = self._tree.read(path, limit=self._limit)
        state = FileState(data=content.data, mode=content.mode)
        check_expected(path, state, expected_sha256)
        return content.path, state

    def _replaceable(self, path: str) -> FileState | None:
        """The file that is to be replaced; None if there is none or it is too large to be read."""
        if self._tree.size(path) > self._limit:
            return None
        return file_state(self._tree, path, limit=self._limit)

    def _write(self, operation: str, path: str, before: FileState | None, data: bytes) -> str:
        unknown = before is None and self._tree.size(path) > 0
        real = self._tree.write(path, data, limit=self._limit)
        if not unknown:
            self._history.record(operation, (FileChange(path=real, before=before, after=FileState(data=data)),))
        return real

    def _make(self, operation: str, verb: str, source: str, changes: tuple[FileChange, ...]) -> ToolResult:
        """Make the changes of a move or a copy; the first one is the change at the destination."""
        make_changes(self._tree, changes, limit=self._limit)
        self._history.record(operation, changes)
        target, replaced = changes[0].path, changes[0].before is not None
        sentence = f"{verb} {source} to {target}{', replacing what was there' if replaced else ''}."
        return succeeded(operation, sentence, {"source": source, "path": target, "replaced": replaced})

    def _destination(self, source: str, path: str, overwrite: bool) -> tuple[str, FileState | None]:
        """The real path of a destination, and the file that is replaced there."""
        if not self._tree.exists(path):
            return self._new(path), None
        kind, _, _ = self._tree.info(path)
        real = self._tree.find(path)
        if kind != "file":
            hint = f"; name the file, as {posixpath.join(real, posixpath.basename(source))!r}"
            raise wrong_kind(kind)(f"{quoted(path)} is a {kind}{hint if kind == 'directory' else ''}")
        if real == source:
            raise ToolFailure("source and destination are the same file")
        if not overwrite:
            raise ToolFailure(f"{quoted(path)} already exists; overwrite=true replaces it")
        return real, file_state(self._tree, path, limit=self._limit)

    def _new(self, path: str) -> str:
        """The real path of a file that does not exist, from the real path of its deepest existing directory."""
        normal = posixpath.normpath(path)
        above, name = posixpath.split(normal)
        if normal.startswith("../"):
            raise outside(path)
        if path.endswith("/") or not name:
            raise ToolFailure(f"{quoted(path)} names no file")
        missing = [name]
        while above not in ("", "/"):
            try:
                real = self._tree.find(above)
            except MissingPath:
                above, name = posixpath.split(above)
                missing.insert(0, name)
                continue
            return "/".join((real, *missing)) if real != "." else "/".join(missing)
        return "/".join(missing)


def succeeded(name: str, content: str, metadata: Mapping[str, object]) -> ToolResult:
    """The result of a successful operation of the file tool."""
    return ToolResult(success=True, operation=f"files_{name}", content=content, metadata=metadata)


def count(items: Collection[object], noun: str) -> str:
    """The number of items with their noun: "1 match", "2 matches"."""
    ending = "" if len(items) == 1 else "es" if noun.endswith("ch") else "s"
    return f"{len(items)} {noun}{ending}"


def _edited(path: str, text: DecodedText, edit: Edit) -> tuple[DecodedText, Replacement]:
    old, new = edit.old, edit.new
    if text.newline == "\r\n":
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    try:
        replacement = replace_passage(text.content, old, new, replace_all=edit.replace_all)
    except ToolFailure as failure:
        raise ToolFailure(f"{quoted(path)}: {failure.message}") from None
    return text.with_content(replacement.text), replacement


def _result_of(name: str, path: str, sentence: str, data: bytes, text: DecodedText, *, before: str) -> ToolResult:
    """The result of a change, with a warning if the change introduced a syntax error."""
    error = syntax_error(path, text.content)
    if error and before and syntax_error(path, before):
        error = ""  # the file had one before
    if error:
        sentence += f"\nWarning: {path} does not parse{' any more' if before else ''}: {error}"
    metadata = {
        "path": path,
        "lines": len(text.lines),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "syntax_error": error,
    }
    return succeeded(name, sentence, metadata)


def _edit_text(path: str, replacement: Replacement, lines: list[str]) -> str:
    places = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in replacement.changed)
    unnamed = replacement.count - len(replacement.changed)
    more = f" and {unnamed} more" if unnamed else ""
    noun = "line" if places.isdigit() else "lines"
    how = "; found by overlooking white space at line ends" if replacement.tolerant else ""
    sentence = f"Edited {path}, now {noun} {places}{more}{how}."
    return f"{sentence}\n{border(lines, *replacement.changed[0])}" if replacement.count == 1 else sentence
