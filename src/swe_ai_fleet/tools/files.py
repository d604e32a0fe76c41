"""Reading, writing, editing and finding files of a workspace."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

from pydantic import Field

from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools import search
from swe_ai_fleet.tools.directory import as_workspace
from swe_ai_fleet.tools.edits import Replacement, replace_passage
from swe_ai_fleet.tools.excerpt import numbered, regions
from swe_ai_fleet.tools.operation import ToolFailure, Toolkit, operation
from swe_ai_fleet.tools.paths import MissingPath, Tree, shown
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.syntax import syntax_error
from swe_ai_fleet.tools.text import Text, decode, rewritten

P = ParamSpec("P")
T = TypeVar("T")
_HEAVY_BYTES = 128 * 1024
_NOTE_CHARS = 300

FilePath = Annotated[str, Field(description="File, relative to the root of the workspace.")]
Directory = Annotated[str, Field(description="Directory (or one file), relative to the root of the workspace.")]
Glob = Annotated[
    str | None, Field(description="Only these files, as '*.py' (at any depth) or 'tests/**/*.py'; '!*.md' leaves out.")
]


class FileTool(Toolkit):
    """The files of one workspace. Nothing outside of it and nothing in `.git` can be reached.

    Args:
        workspace: An open workspace, or the path of a directory. Searching and listing run programs in its sandbox.
        pipeline: The way every call goes; without one, its own.
    """

    name = "files"

    def __init__(self, workspace: Workspace | Path | str, pipeline: Pipeline | None = None) -> None:
        super().__init__(as_workspace(workspace), pipeline)
        self._tree = Tree(self.workspace.root, self.workspace.mount)

    @operation(read_only=True)
    async def read_file(
        self,
        path: FilePath,
        start_line: Annotated[int, Field(description="First line to show, from 1.", ge=1)] = 1,
        end_line: Annotated[int | None, Field(description="Last line to show; all that fit if left out.", ge=1)] = None,
    ) -> ToolResult:
        """Show a text file, each line with its number and a tab before it; a long file in parts."""
        return await self._maybe_in_thread(self._tree.size(path), self._read_file, path, start_line, end_line)

    @operation()
    async def write_file(
        self, path: FilePath, content: Annotated[str, Field(description="The whole new content.")]
    ) -> ToolResult:
        """Create a file (and its directories) or replace one whole. To change a part, use files_edit_file."""
        size = max(len(content), self._tree.size(path))
        return await self._maybe_in_thread(size, self._write_file, path, content)

    @operation()
    async def append_file(
        self, path: FilePath, content: Annotated[str, Field(description="Text to add; it starts on a line of its own.")]
    ) -> ToolResult:
        """Add text at the end of a file; creates the file if there is none."""
        size = len(content) + self._tree.size(path)
        return await self._maybe_in_thread(size, self._append_file, path, content)

    @operation()
    async def edit_file(
        self,
        path: FilePath,
        old: Annotated[str, Field(description="The passage to replace, exactly as in the file, without line numbers.")],
        new: Annotated[str, Field(description="What to put in its place; empty deletes the passage.")],
        replace_all: Annotated[
            bool, Field(description="Replace every occurrence, not just one that is unique.")
        ] = False,
        expected_sha256: Annotated[
            str | None, Field(description="Refuse if the file no longer has this SHA-256.")
        ] = None,
    ) -> ToolResult:
        """Replace one passage of a file. It must occur exactly once: give a few lines around the change."""
        size = self._tree.size(path) + len(old) + len(new)
        return await self._maybe_in_thread(size, self._edit_file, path, old, new, replace_all, expected_sha256)

    @operation(read_only=True)
    async def search_in_files(
        self,
        pattern: Annotated[str, Field(description="Regular expression, matched against each line.", min_length=1)],
        path: Directory = ".",
        glob: Glob = None,
        ignore_case: bool = False,
        max_results: Annotated[int, Field(ge=1, le=2000)] = 200,
    ) -> ToolResult:
        """Find lines that match a regular expression; gives path:line:text. Skips what .gitignore names."""
        scope = self._scope(path, glob)
        found = await search.find_matches(self.workspace, scope, pattern, ignore_case=ignore_case, limit=max_results)
        files = {match.path for match in found.items}
        lines = [f"{match.path}:{match.line}:{match.text}" for match in found.items]
        if not lines:
            lines.append(f"No line matches {pattern!r} in {_words(path, glob)}.")
        elif found.complete:
            lines.append(f"[{_count(lines, 'match')} in {_count(files, 'file')}]")
        else:
            lines.append(
                f"[the first {_count(lines, 'match')}; there are more: narrow the pattern, the path or the glob]"
            )
        metadata = {"matches": len(found.items), "files": len(files), "complete": found.complete}
        return _done("search_in_files", "\n".join(lines), metadata)

    @operation(read_only=True)
    async def list_files(
        self, path: Directory = ".", glob: Glob = None, max_results: Annotated[int, Field(ge=1, le=10_000)] = 1000
    ) -> ToolResult:
        """List the files below a directory, all levels, in order of path. Skips what .gitignore names."""
        found = await search.find_files(self.workspace, self._scope(path, glob), limit=max_results)
        lines = list(found.items)
        if not lines:
            lines.append(f"There are no files in {_words(path, glob)}.")
        elif found.complete:
            lines.append(f"[{_count(lines, 'file')}]")
        else:
            lines.append(f"[the first {_count(lines, 'file')}; there are more: give a path below {path!r} or a glob]")
        return _done("list_files", "\n".join(lines), {"files": len(found.items), "complete": found.complete})

    @operation(risk=Risk.MEDIUM)
    async def delete_file(self, path: FilePath) -> ToolResult:
        """Delete a file or an empty directory."""
        kind = self._tree.remove(path)
        return _done("delete_file", f"Deleted the {kind} {path}.", {"path": path, "kind": kind})

    @operation()
    async def mkdir(
        self, path: Annotated[str, Field(description="Directory, relative to the workspace.")]
    ) -> ToolResult:
        """Create a directory and its parents. Writing a file creates its directories by itself."""
        created = self._tree.make_directory(path)
        said = f"Created the directory {path}." if created else f"The directory {path} exists already."
        return _done("mkdir", said, {"path": path, "created": created})

    @operation(read_only=True)
    async def file_info(self, path: Annotated[str, Field(description="File or directory.")]) -> ToolResult:
        """Say what a path is: type, size, mode, and for a text file its lines, encoding, line ends and SHA-256."""
        return await self._maybe_in_thread(self._tree.size(path), self._file_info, path)

    async def _maybe_in_thread(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # A hop to a thread costs more than reading a small file; a large one would hold up every other agent here.
        if size > _HEAVY_BYTES:
            return await asyncio.to_thread(work, *args, **kwargs)
        return work(*args, **kwargs)

    def _read(self, path: str) -> tuple[str, bytes, Text]:
        content = self._tree.read(path, limit=self.pipeline.limits.max_file_bytes)
        return content.path, content.data, decode(path, content.data)

    def _read_file(self, path: str, start_line: int, end_line: int | None) -> ToolResult:
        real, data, text = self._read(path)
        lines = text.lines
        if lines and start_line > len(lines):
            raise ToolFailure(f"{shown(path)} has {len(lines)} lines; start_line is {start_line}")
        if end_line is not None and end_line < start_line:
            raise ToolFailure(f"end_line {end_line} lies before start_line {start_line}")
        last = min(end_line or len(lines), len(lines))
        body, end = numbered(
            lines, start_line, last, room=self.pipeline.limits.observation_chars - _NOTE_CHARS - len(path)
        )
        content = f"{body}\n{_closing_note(path, start_line, end, len(lines))}" if lines else "[the file is empty]"
        metadata: dict[str, object] = {
            "path": real,
            "lines": len(lines),
            "start_line": start_line,
            "end_line": end,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        return _done("read_file", content, metadata)

    def _write_file(self, path: str, content: str) -> ToolResult:
        try:
            old = self._read(path)[2]
        except MissingPath:
            old = None
        except ToolFailure:  # no text, or too large: nothing of it has to be kept
            old = Text(content="")
        text, data = rewritten(old, content, path)
        real = self._tree.write(path, data, limit=self.pipeline.limits.max_file_bytes)
        said = f"{'Replaced' if old else 'Created'} {real}: {_count(text.lines, 'line')}, {len(data)} bytes."
        return self._written("write_file", real, said, data, text, before=old.content if old else "")

    def _append_file(self, path: str, content: str) -> ToolResult:
        try:
            old = self._read(path)[2]
        except MissingPath:
            old = Text(content="")
        joint = "\n" if old.content and not old.content.endswith("\n") else ""
        text = old.with_content(old.content + joint + content)
        data = text.encode(path)
        real = self._tree.write(path, data, limit=self.pipeline.limits.max_file_bytes)
        said = f"Appended to {real}: now {_count(text.lines, 'line')}, {len(data)} bytes."
        return self._written("append_file", real, said, data, text, before=old.content)

    def _edit_file(self, path: str, old: str, new: str, replace_all: bool, expected_sha256: str | None) -> ToolResult:
        real, data, text = self._read(path)
        digest = hashlib.sha256(data).hexdigest()
        if expected_sha256 is not None and expected_sha256.lower() != digest:
            raise ToolFailure(f"{shown(path)} has changed: its SHA-256 is {digest}; read it again before editing")
        if text.newline == "\r\n":
            old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
        try:
            replacement = replace_passage(text.content, old, new, replace_all=replace_all)
        except ToolFailure as failure:
            raise ToolFailure(f"{shown(path)}: {failure.message}") from None
        edited = text.with_content(replacement.text)
        fresh = edited.encode(path)
        self._tree.write(real, fresh, limit=self.pipeline.limits.max_file_bytes)
        said = _said(real, replacement, edited.lines)
        passage = replacement.changed[0] if replacement.count == 1 else None
        result = self._written("edit_file", real, said, fresh, edited, before=text.content, changed=passage)
        return replace(result, metadata={**result.metadata, "count": replacement.count})

    def _written(
        self,
        name: str,
        path: str,
        said: str,
        data: bytes,
        text: Text,
        *,
        before: str,
        changed: tuple[int, int] | None = None,
    ) -> ToolResult:
        """The result of a change, with the syntax error that it brought in, if it did."""
        error = syntax_error(path, text.content, changed=changed)
        if error and before and syntax_error(path, before):
            error = ""  # it was there before
        if error:
            said += f"\nWarning: {path} does not parse{' any more' if before else ''}: {error}"
        metadata = {
            "path": path,
            "lines": len(text.lines),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "syntax_error": error,
        }
        return _done(name, said, metadata)

    def _file_info(self, path: str) -> ToolResult:
        kind, info, target = self._tree.info(path)
        facts: dict[str, object] = {"path": path, "type": kind, "mode": f"{info.st_mode & 0o7777:04o}"}
        if kind == "directory":
            facts["entries"] = self._tree.count(path)
        elif kind == "symbolic link":
            facts["target"] = target
        else:
            facts["size"] = info.st_size
        if kind == "file" and info.st_size <= self.pipeline.limits.max_file_bytes:
            data = self._tree.read(path, limit=self.pipeline.limits.max_file_bytes).data
            facts["sha256"] = hashlib.sha256(data).hexdigest()
            try:
                text = decode(path, data)
            except ToolFailure:
                facts["encoding"] = "binary"
            else:
                newline = {"\n": "LF", "\r\n": "CRLF"}.get(text.newline, text.newline)
                facts |= {"lines": len(text.lines), "encoding": text.encoding, "newline": newline}
        return _done("file_info", "\n".join(f"{name}: {value}" for name, value in facts.items()), facts)

    def _scope(self, path: str, glob: str | None) -> search.Scope:
        real = self._tree.find(path)
        kind, _, _ = self._tree.info(real)
        if kind == "directory":
            return search.Scope(directory=real, glob=glob or "")
        if kind != "file":
            raise ToolFailure(f"{shown(path)} is a {kind}; give a directory or a file")
        parent, _, name = real.rpartition("/")
        return search.Scope(directory=parent or ".", file=f"./{name}", glob=glob or "")


def _done(name: str, content: str, metadata: Mapping[str, object]) -> ToolResult:
    return ToolResult(success=True, operation=f"{FileTool.name}_{name}", content=content, metadata=metadata)


def _closing_note(path: str, start: int, end: int, total: int) -> str:
    if start == 1 and end == total:
        return "[the only line]" if total == 1 else f"[all {total} lines]"
    note = f"[lines {start}-{end} of {total}"
    if end < total:
        note += f"; files_read_file(path={path!r}, start_line={end + 1}) shows what follows"
    return note + "]"


def _said(path: str, replacement: Replacement, lines: list[str]) -> str:
    times = "" if replacement.count == 1 else f" in {replacement.count} places"
    how = ", found by overlooking white space at line ends" if replacement.tolerant else ""
    return f"Edited {path}{times}{how}. Now it reads:\n{regions(lines, replacement.changed)}"


def _count(things: Collection[object], noun: str) -> str:
    ending = "" if len(things) == 1 else "es" if noun.endswith("ch") else "s"
    return f"{len(things)} {noun}{ending}"


def _words(path: str, glob: str | None) -> str:
    return f"{path!r}" + (f" among files like {glob!r}" if glob else "")
