"""Files of the workspace: reading, editing and searching them; nothing outside can be reached."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, TypeVar

from pydantic import Field

from swe_ai_fleet.domain.tool import FOR_PROGRAMS, Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.editor import Edit, Editor, count, succeeded
from swe_ai_fleet.tools.files.paths import Tree, quoted, wrong_kind
from swe_ai_fleet.tools.files.search import SearchScope, excerpts, find_files, find_matches
from swe_ai_fleet.tools.files.text import DecodedText, decode, numbered, unified_diff
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.repo_map.mapper import CHARS_PER_TOKEN, MAX_FOCUS_CHARS, described, draw_map

P = ParamSpec("P")
T = TypeVar("T")


_HEAVY_BYTES = 128 * 1024
_NOTE_CHARS = 300
_RANGE = re.compile(r"(\d{1,9})\s*(?:(-|:|\.\.)\s*(\d{0,9}))?")

FilePath = Annotated[str, Field(description="Relative to the repository.")]
NewPath = Annotated[str, Field(description="The new file, relative to the repository.")]
Overwrite = Annotated[bool, Field(description="Replace a file that already exists.")]
Sha256 = Annotated[
    str | None,
    Field(description="Refuse if the file no longer has this SHA-256.", json_schema_extra={FOR_PROGRAMS: True}),
]
Directory = Annotated[str, Field(description="Directory or file.")]
Glob = Annotated[str | None, Field(description="Only these: '*.py', 'tests/**'; '!*.md' leaves out.")]


class FileTool(Toolkit):
    """The files of one workspace. Files outside it or in `.git` cannot be reached.

    Args:
        workspace: An open workspace, or the path of a directory. Searching and listing run programs in its sandbox.
    """

    name = "files"

    def __init__(self, workspace: Workspace | Path | str, pipeline: Pipeline | None = None) -> None:
        super().__init__(workspace, pipeline)
        self._tree = Tree(self.workspace.root, self.workspace.mount)
        self._editor = Editor(self._tree, limit=self.pipeline.limits.max_file_bytes)

    @operation(read_only=True)
    async def read_file(
        self,
        path: FilePath,
        lines: Annotated[str, Field(description="Such as '1-40, 200-'; as much as fits if left out.")] = "",
        start_line: Annotated[
            int, Field(description="First line to show, from 1.", ge=1, json_schema_extra={FOR_PROGRAMS: True})
        ] = 1,
        end_line: Annotated[
            int | None, Field(description="Last line to show.", ge=1, json_schema_extra={FOR_PROGRAMS: True})
        ] = None,
    ) -> ToolResult:
        """Show a text file, or parts of it, with line numbers."""
        ranges = _ranges(lines) if lines.strip() else [(start_line, end_line)]
        return await self._work(self._read_file, path, ranges)

    @operation()
    async def write_file(
        self, path: FilePath, content: Annotated[str, Field(description="The whole new content.")]
    ) -> ToolResult:
        """Create a file (and its directories) or replace one whole. To change a part, use files_edit_file."""
        return await self._work(self._editor.write, path, content)

    @operation()
    async def append_file(
        self, path: FilePath, content: Annotated[str, Field(description="Text to add; it starts on a line of its own.")]
    ) -> ToolResult:
        """Add text at the end of a file; creates the file if there is none."""
        return await self._work(self._editor.append, path, content)

    @operation()
    async def edit_file(
        self,
        path: FilePath,
        old: Annotated[str, Field(description="The passage exactly as in the file, without line numbers.")],
        new: Annotated[str, Field(description="What takes its place.")],
        replace_all: Annotated[bool, Field(description="Replace every occurrence.")] = False,
        expected_sha256: Sha256 = None,
    ) -> ToolResult:
        """Replace a passage that occurs exactly once in a file; where `old` is empty, create the file."""
        edit = Edit(old=old, new=new, replace_all=replace_all)
        return await self._work(self._editor.edit, path, edit, expected_sha256)

    @operation()
    async def multi_edit(
        self,
        path: FilePath,
        edits: Annotated[list[Edit], Field(description="In order; each sees what those before it made.", min_length=1)],
        expected_sha256: Sha256 = None,
    ) -> ToolResult:
        """Replace several passages of one file, all of them or, where one does not fit, none."""
        return await self._work(self._editor.multi_edit, path, edits, expected_sha256)

    @operation()
    async def apply_patch(
        self,
        patch: Annotated[str, Field(description="Unified diff, plain or git's, with exact line counts.", min_length=1)],
        expected_sha256: Annotated[
            dict[str, str] | None,
            Field(
                description="Refuse if a file of these no longer has its SHA-256.",
                json_schema_extra={FOR_PROGRAMS: True},
            ),
        ] = None,
    ) -> ToolResult:
        """Change, create, delete and rename files by a unified diff: all of it or, if a part does not fit, nothing."""
        # In a thread: the sizes of the files in the patch are not known yet.
        return await asyncio.to_thread(
            self._editor.patch, patch, expected_sha256 or {}, self.pipeline.policy.allowed_paths
        )

    @operation()
    async def move_file(
        self, source: FilePath, destination: NewPath, overwrite: Overwrite = False, expected_sha256: Sha256 = None
    ) -> ToolResult:
        """Move or rename one file; creates the directories that it goes to."""
        return await self._work(self._editor.move, source, destination, overwrite, expected_sha256)

    @operation()
    async def copy_file(
        self, source: FilePath, destination: NewPath, overwrite: Overwrite = False, expected_sha256: Sha256 = None
    ) -> ToolResult:
        """Copy one file with its permission bits; creates the directories that it goes to."""
        return await self._work(self._editor.copy, source, destination, overwrite, expected_sha256)

    @operation()
    async def undo_edit(self, path: FilePath) -> ToolResult:
        """Put a file back as it was before the last change that a files operation made to it; call again to go on."""
        return await self._work(self._editor.undo, path)

    @operation(read_only=True)
    async def diff_files(self, path_a: FilePath, path_b: FilePath) -> ToolResult:
        """Show how two text files differ, as a unified diff from the first to the second."""
        return await asyncio.to_thread(self._diff_files, path_a, path_b)

    @operation(read_only=True)
    async def search_in_files(
        self,
        pattern: Annotated[str, Field(description="Regular expression for a line.", min_length=1)],
        path: Directory = ".",
        glob: Glob = None,
        ignore_case: Annotated[bool, Field(description="aB matches Ab.")] = False,
        context: Annotated[int, Field(description="Lines to show around each match.", ge=0, le=20)] = 0,
        max_results: Annotated[
            int, Field(description="Lines to show at most.", ge=1, le=2000, json_schema_extra={FOR_PROGRAMS: True})
        ] = 200,
    ) -> ToolResult:
        """Find lines of files; what .gitignore names is skipped."""
        scope = self._scope(path, glob)
        lines_found, complete = await find_matches(
            self.workspace, scope, pattern, ignore_case=ignore_case, limit=max_results, context=context
        )
        matches = [line for line in lines_found if line.matched]
        files = {match.path for match in matches}
        lines = excerpts(lines_found)
        if sum(map(len, lines)) + len(lines) > self.pipeline.limits.observation_chars - _NOTE_CHARS:
            # The output will be cut: each line keeps its path.
            lines = [f"{line.path}:{line.line}:{line.text}" for line in lines_found]
        if not lines:
            lines.append(f"No line matches {pattern!r} in {_words(path, glob)}.")
        elif complete:
            lines.append(f"[{count(matches, 'match')} in {count(files, 'file')}]")
        else:
            lines.append(
                f"[the first {count(matches, 'match')}; there are more: narrow the pattern, the path or the glob]"
            )
        metadata = {"matches": len(matches), "files": len(files), "complete": complete}
        return succeeded("search_in_files", "\n".join(lines), metadata)

    @operation(read_only=True)
    async def list_files(
        self,
        path: Directory = ".",
        glob: Glob = None,
        max_results: Annotated[
            int, Field(description="Files to show at most.", ge=1, le=10_000, json_schema_extra={FOR_PROGRAMS: True})
        ] = 1000,
    ) -> ToolResult:
        """List the files below a directory, all levels, in order of path. Skips what .gitignore names."""
        files, complete = await find_files(self.workspace, self._scope(path, glob), limit=max_results)
        lines = list(files)
        if not lines:
            lines.append(f"There are no files in {_words(path, glob)}.")
        elif complete:
            lines.append(f"[{count(lines, 'file')}]")
        else:
            lines.append(f"[the first {count(lines, 'file')}; there are more: give a path below {path!r} or a glob]")
        return succeeded("list_files", "\n".join(lines), {"files": len(files), "complete": complete})

    @operation(read_only=True, time_limit_seconds=180.0)
    async def repo_map(
        self,
        focus: Annotated[
            list[str] | str, Field(description="Words of the task, names or paths that matter most; empty for none.")
        ] = "",
        path: Directory = ".",
        max_tokens: Annotated[int, Field(description="Length of the map.", ge=64, le=8192)] = 1024,
    ) -> ToolResult:
        """Show the code's most important definitions with their lines, by file: a start in an unknown repository."""
        texts = [focus] if isinstance(focus, str) else focus
        if sum(map(len, texts)) > MAX_FOCUS_CHARS:
            raise ToolFailure(f"focus has more than {MAX_FOCUS_CHARS} characters; give the words that matter")
        room = (self.pipeline.limits.observation_chars - _NOTE_CHARS) // CHARS_PER_TOKEN
        real = self._tree.find(path)
        drawn = await draw_map(self.workspace, real, texts, max_tokens=max(1, min(max_tokens, room)))
        return succeeded("repo_map", described(drawn, path), drawn.model_dump(exclude={"text"}))

    @operation(risk=Risk.MEDIUM)
    async def delete_file(self, path: FilePath) -> ToolResult:
        """Delete a file or an empty directory."""
        return await self._work(self._editor.delete, path)

    @operation()
    async def mkdir(
        self, path: Annotated[str, Field(description="Directory, relative to the workspace.")]
    ) -> ToolResult:
        """Create a directory and its parents. Writing a file creates its directories by itself."""
        created = self._tree.make_directory(path)
        sentence = f"Created the directory {path}." if created else f"The directory {path} already exists."
        return succeeded("mkdir", sentence, {"path": path, "created": created})

    @operation(read_only=True)
    async def file_info(self, path: Annotated[str, Field(description="File or directory.")]) -> ToolResult:
        """Say what a path is: type, size, mode, and for a text file its lines, encoding, line ends and SHA-256."""
        return await self._work(self._file_info, path)

    async def _work(self, work: Callable[Concatenate[str, P], T], path: str, *args: P.args, **kwargs: P.kwargs) -> T:
        # A switch to a thread costs more than reading a small file; a large one would block the other agents here.
        if self._tree.size(path) + sum(len(text) for text in args if isinstance(text, str)) > _HEAVY_BYTES:
            return await asyncio.to_thread(work, path, *args, **kwargs)
        return work(path, *args, **kwargs)

    def _read(self, path: str) -> tuple[str, bytes, DecodedText]:
        content = self._tree.read(path, limit=self.pipeline.limits.max_file_bytes)
        return content.path, content.data, decode(path, content.data)

    def _read_file(self, path: str, ranges: Sequence[tuple[int, int | None]]) -> ToolResult:
        real, data, text = self._read(path)
        lines, parts, shown_ranges = text.lines, list[str](), list[str]()
        room = self.pipeline.limits.observation_chars - _NOTE_CHARS - len(path)
        first, end = ranges[0][0], 0
        for start, stop in ranges:
            if lines and start > len(lines):
                raise ToolFailure(f"{quoted(path)} has {len(lines)} lines; start_line is {start}")
            if stop is not None and stop < start:
                raise ToolFailure(f"end_line {stop} lies before start_line {start}")
            last = min(stop or len(lines), len(lines))
            body, end = numbered(lines, start, last, room=room)
            parts.append(body)
            shown_ranges.append(f"{start}-{end}")
            room -= len(body)
            if end < last or room <= 0:
                break
        content = "[the file is empty]"
        if lines:
            content = "\n  ...\n".join(parts) + f"\n{_closing_note(shown_ranges, first, end, len(lines))}"
        metadata: dict[str, object] = {
            "path": real,
            "lines": len(lines),
            "start_line": first,
            "end_line": end,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        return succeeded("read_file", content, metadata)

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
        return succeeded("file_info", "\n".join(f"{name}: {value}" for name, value in facts.items()), facts)

    def _diff_files(self, path_a: str, path_b: str) -> ToolResult:
        (real_a, data_a, a), (real_b, data_b, b) = self._read(path_a), self._read(path_b)
        diff = unified_diff(a.raw, b.raw, source=real_a, target=real_b)
        content = diff.rstrip("\n") or f"{real_a} and {real_b} are the same."
        if not diff and data_a != data_b:
            content = f"{real_a} is {a.encoding} and {real_b} is {b.encoding}; their text is the same."
        return succeeded("diff_files", content, {"same": data_a == data_b})

    def _scope(self, path: str, glob: str | None) -> SearchScope:
        real = self._tree.find(path)
        kind, _, _ = self._tree.info(real)
        if kind == "directory":
            return SearchScope(directory=real, glob=glob or "")
        if kind != "file":
            raise wrong_kind(kind)(f"{quoted(path)} is a {kind}; give a directory or a file")
        parent, _, name = real.rpartition("/")
        return SearchScope(directory=parent or ".", file=f"./{name}", glob=glob or "")


def _ranges(text: str) -> list[tuple[int, int | None]]:
    """Parse ranges of lines such as '1-40, 200-': (first, last) from 1, None for the file's end. Raises ToolFailure."""
    ranges: list[tuple[int, int | None]] = []
    for part in re.split(r"[,;\s]+(?!-)", text.strip(" ,;[]")):
        match = _RANGE.fullmatch(part)
        if match is None or not int(match[1]):
            raise ToolFailure(f"{part[:40]!r} is not a range of lines; write them as '1-40, 200-'")
        stop = match[1] if match[2] is None else match[3]
        ranges.append((int(match[1]), int(stop) if stop else None))
    return ranges


def _closing_note(ranges: Sequence[str], start: int, end: int, total: int) -> str:
    if len(ranges) == 1 and start == 1 and end == total:
        return "[the only line]" if total == 1 else f"[all {total} lines]"
    rest = f"; more: lines='{end + 1}-'" if len(ranges) == 1 and end < total else ""
    return f"[lines {', '.join(ranges)} of {total}{rest}]"


def _words(path: str, glob: str | None) -> str:
    return f"{path!r}" + (f" among files like {glob!r}" if glob else "")
