"""Reading the first lines of a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from swe_ai_fleet.domain.tool import Risk
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.files.text import decode
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter

MAX_LINES = 10_000
MAX_CHARS = 200_000
_MAX_BYTES = 10 * 1024 * 1024


class FileReader(BaseTool):
    """`file_reader(file_path, max_lines=100) -> {content, lines_read}`; `total_lines` too where the file has more.

    Args:
        root: The only directory it reads in, `.git` aside; None: it says that there is none.
        mount: The same directory as commands see it; absolute paths below either are taken.
    """

    name = "file_reader"
    description = "Read the first lines of a text file."
    parameters = (
        ToolParameter("file_path", "string", "File, relative to the root of the workspace."),
        ToolParameter(
            "max_lines", "integer", f"How many lines to read, at most {MAX_LINES}.", required=False, default=100
        ),
    )
    read_only = True
    risk = Risk.LOW
    network = False

    def __init__(self, root: Path | None = None, *, mount: str = "/workspace") -> None:
        self._root = root
        self._mount = mount

    async def execute(self, file_path: str, max_lines: int = 100) -> dict[str, object]:
        """Its first lines as text. Raises ToolFailure naming the path and what is wrong with it."""
        if self._root is None:
            raise ToolFailure("no directory may be read here: there is no workspace, and no file_root is set")
        if not 1 <= max_lines <= MAX_LINES:
            raise ToolFailure(f"max_lines is {max_lines}; it goes from 1 to {MAX_LINES}")
        return await asyncio.to_thread(_read, self._root, self._mount, file_path, max_lines)


def _read(root: Path, mount: str, path: str, max_lines: int) -> dict[str, object]:
    lines = decode(path, Tree(root.resolve(), mount).read(path, limit=_MAX_BYTES).data).lines
    content = "\n".join(lines[:max_lines])
    read = min(len(lines), max_lines)
    if len(content) > MAX_CHARS:
        content = content[:MAX_CHARS]
        read = content.count("\n") + 1
    found: dict[str, object] = {"content": content, "lines_read": read}
    return found if read == len(lines) else {**found, "total_lines": len(lines)}
