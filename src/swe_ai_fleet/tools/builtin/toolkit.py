"""All built-in tools, for a registry and for an agent; the operator's settings of them; and the reader of files."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from swe_ai_fleet.domain.tool import Risk
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.builtin.calculator import Calculator
from swe_ai_fleet.tools.builtin.dialogue import Answerer, AskUser, FinalAnswer, ProposeApproach
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.builtin.python_executor import PythonExecutor
from swe_ai_fleet.tools.builtin.web import ReadWebpage, SearchWikipedia, WebSearch
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.files.text import decode
from swe_ai_fleet.tools.http.transport import HttpPolicy
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.registry.toolkit import RegisteredTools

WIKIPEDIA = "https://en.wikipedia.org/w/api.php"
MAX_LINES = 10_000
MAX_CHARS = 200_000
_MAX_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinSettings:
    """Endpoints and limits of the built-in tools; the defaults work without any set-up, searching aside.

    Attributes:
        search_url: A SearXNG-compatible server, as `http://localhost:8888`; empty: `web_search` says that there is
            none. Like `wikipedia_url` it may have a private address: exactly that server is allowed, and no redirect.
        wikipedia_url: The `api.php` of a MediaWiki.
        pages: Which servers `read_webpage` may speak to; by default any that is public.
        page_chars: Characters of a page's text that are kept.
        file_root: Where `file_reader` reads when there is no workspace; None: nowhere.
        code_seconds: Time limit of one `python_executor` call.
        code_memory_bytes: Memory of one process of such a call.
        code_output_chars: Characters of its output, and of its result, that are kept.
    """

    search_url: str = ""
    wikipedia_url: str = WIKIPEDIA
    pages: HttpPolicy = field(default_factory=HttpPolicy)
    page_chars: int = 20_000
    file_root: Path | None = None
    code_seconds: float = 30.0
    code_memory_bytes: int = 1024**3
    code_output_chars: int = 20_000


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
    fields: dict[str, object] = {"content": content, "lines_read": read}
    return fields if read == len(lines) else {**fields, "total_lines": len(lines)}


def builtin_tools(
    settings: BuiltinSettings | None = None,
    *,
    workspace: Workspace | None = None,
    answerer: Answerer | None = None,
    network: Network | None = None,
) -> tuple[BaseTool, ...]:
    """Every built-in tool, made anew; those that lack what they need say so when they are called.

    Args:
        settings: What the operator decided; without any, the defaults.
        workspace: Where files are read and code is run; None: `file_root`, and a private directory for each run.
        answerer: Who answers `ask_user`.
        network: Where connections go; without one, the real network.
    """
    chosen = settings or BuiltinSettings()
    if workspace is not None:
        reader = FileReader(workspace.root, mount=workspace.mount)
    else:
        reader = FileReader(chosen.file_root)
    return (
        Calculator(),
        PythonExecutor(
            workspace,
            seconds=chosen.code_seconds,
            memory_bytes=chosen.code_memory_bytes,
            max_chars=chosen.code_output_chars,
        ),
        reader,
        WebSearch(chosen.search_url, network=network),
        ReadWebpage(chosen.pages, max_chars=chosen.page_chars, network=network),
        SearchWikipedia(chosen.wikipedia_url, network=network),
        AskUser(answerer),
        ProposeApproach(),
        FinalAnswer(),
    )


class BuiltinTools(RegisteredTools):
    """The built-in tools as operations of an agent, `final_answer` aside, which its loop has.

    Args:
        workspace: Where files are read and code is run; None: as `builtin_tools` says.
        pipeline: The way every call goes; without one, its own.
        settings: What the operator decided.
        answerer: Who answers `ask_user`.
        network: Where connections go; without one, the real network.
        names: Which of them; None: all.
    """

    name: ClassVar[str] = "builtin"

    def __init__(
        self,
        workspace: Workspace | None = None,
        pipeline: Pipeline | None = None,
        *,
        settings: BuiltinSettings | None = None,
        answerer: Answerer | None = None,
        network: Network | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        tools = builtin_tools(settings, workspace=workspace, answerer=answerer, network=network)
        super().__init__([tool for tool in tools if names is None or tool.name in names], workspace, pipeline)
