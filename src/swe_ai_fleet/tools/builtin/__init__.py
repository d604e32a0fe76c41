"""The built-in tools: arithmetic, code, files, the web, questions to the user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from swe_ai_fleet.domain.json_values import items, mapping
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.base_tool import BaseTool, LocalTool, ToolParameter, presented
from swe_ai_fleet.tools.builtin.calculator import Calculator
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.builtin.python_executor import PythonExecutor
from swe_ai_fleet.tools.builtin.web import ReadWebpage, SearchWikipedia, WebSearch
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.files.text import decode
from swe_ai_fleet.tools.http_transport import HttpPolicy
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry import RegisteredTools

Answerer = Callable[[str], Awaitable[str]]
"""Asks the user a question and returns the answer."""
ANSWER_KEYS = ("result", "reason", "answer", "response", "output", "reply")
"""The keys under which models write their final answer, by precedence."""
ASK, PROPOSE = "ask_user", "propose_approach"


class AskUser(LocalTool):
    """`ask_user(question) -> {question, answer}`.

    Args:
        answerer: Asks the user; None: the tool fails with a message that nobody can be asked.
    """

    name = ASK
    description = "Ask the user a question and wait for the answer. Only for what cannot be found out otherwise."
    parameters = (ToolParameter("question", "string", "The question, complete in itself."),)
    locks = frozenset({"user"})
    time_limit_seconds = 600.0
    late_note = "nobody answered; continue with your best judgement and say so"

    def __init__(self, answerer: Answerer | None = None) -> None:
        self._answerer = answerer
        self._one_at_a_time = asyncio.Lock()

    async def execute(self, question: str) -> dict[str, object]:
        if self._answerer is None:
            raise ToolFailure("nobody can be asked here; continue with your best judgement and say what you assumed")
        if not question.strip():
            raise ToolFailure("the question is empty")
        async with self._one_at_a_time:
            answer = await self._answerer(question)
        return {"question": question, "answer": answer}

    def present(self, value: object) -> ToolResult:
        answer = str(mapping(value)["answer"]).strip()
        return replace(presented(self.name, value), content=answer or "The user gave an empty answer.")


class ProposeApproach(LocalTool):
    """`propose_approach(approach, reasoning) -> {approach, reasoning, status: "proposed"}`."""

    name = PROPOSE
    description = "Propose how you would go about the task, before doing anything with a side effect."
    parameters = (
        ToolParameter("approach", "string", "The steps, in order."),
        ToolParameter("reasoning", "string", "Why this way."),
    )
    locks = frozenset({"proposal"})

    async def execute(self, approach: str, reasoning: str) -> dict[str, object]:
        """Return the proposal as the result. Raises ToolFailure for an empty one."""
        if not approach.strip():
            raise ToolFailure("the approach is empty; say what you would do, step by step")
        return {"approach": approach, "reasoning": reasoning, "status": "proposed"}


class FinalAnswer(LocalTool):
    """`final_answer(result) -> {result}`; accepts the other keys that models use, and dicts and lists as values."""

    name = "final_answer"
    description = "Give the final answer to the task. Call it once, when the work is done or cannot be done."
    parameters = (ToolParameter("result", "string", "The answer."),)

    async def execute(self, result: str) -> dict[str, object]:
        return {"result": result}

    def checked(self, arguments: Mapping[str, object], spec: OperationSpec) -> dict[str, object]:
        value = next((arguments[key] for key in ANSWER_KEYS if arguments.get(key) is not None), None)
        if value is None:
            raise ToolFailure("final_answer needs its text. Signature: final_answer(result: string)")
        return {"result": answer_text(value)}

    def present(self, value: object) -> ToolResult:
        return replace(presented(self.name, value), content=str(mapping(value)["result"]))


def answer_text(value: object) -> str:
    """An answer as text: the values of a dict and the items of a list as paragraphs."""
    parts = (*mapping(value).values(), *items(value))
    return "\n\n".join(map(answer_text, parts)) if isinstance(value, dict | list) else str(value)


WIKIPEDIA = "https://en.wikipedia.org/w/api.php"
MAX_LINES = 10_000
MAX_CHARS = 200_000
_MAX_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinSettings:
    """Endpoints and limits of the built-in tools; the defaults work without set-up, except for searching.

    Attributes:
        search_url: A SearXNG-compatible server, such as `http://localhost:8888`; empty: `web_search` fails with a
            message. Like `wikipedia_url` it may have a private address: only that server is allowed, no redirects.
        wikipedia_url: The `api.php` of a MediaWiki.
        pages: The servers that `read_webpage` may reach; by default all public ones.
        file_root: The directory that `file_reader` reads when there is no workspace; None: none.
        code_seconds: The time limit of one `python_executor` call.
        code_memory_bytes: The memory of one process of such a call.
        code_output_chars: The characters of its output, and of its result, that are kept.
    """

    search_url: str = ""
    wikipedia_url: str = WIKIPEDIA
    pages: HttpPolicy = field(default_factory=HttpPolicy)
    file_root: Path | None = None
    code_seconds: float = 30.0
    code_memory_bytes: int = 1024**3
    code_output_chars: int = 20_000


class FileReader(LocalTool):
    """`file_reader(file_path, max_lines=100) -> {content, lines_read}`; also `total_lines` if the file has more.

    Args:
        root: The directory that it reads, without `.git`; None: it fails with a message.
        mount: The same directory as commands see it; absolute paths below either are accepted.
    """

    name = "file_reader"
    description = "Read the first lines of a text file."
    parameters = (
        ToolParameter("file_path", "string", "File, relative to the root of the workspace."),
        ToolParameter(
            "max_lines", "integer", f"How many lines to read, at most {MAX_LINES}.", required=False, default=100
        ),
    )
    locks = frozenset({"workspace"})

    def __init__(self, root: Path | None = None, *, mount: str = "/workspace") -> None:
        self._root = root
        self._mount = mount

    async def execute(self, file_path: str, max_lines: int = 100) -> dict[str, object]:
        """Read the first lines. Raises ToolFailure naming the path and its problem."""
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
    """New instances of all built-in tools; a tool that is not configured fails with a message when it is called.

    Args:
        settings: The operator's settings; by default the defaults.
        workspace: For reading files and running code; None: `file_root`, and a private directory for each run.
        answerer: Asks the user, for `ask_user`.
        network: Opens connections; by default the real network.
    """
    chosen = settings or BuiltinSettings()
    reader = FileReader(workspace.root, mount=workspace.mount) if workspace else FileReader(chosen.file_root)
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
        ReadWebpage(chosen.pages, network=network),
        SearchWikipedia(chosen.wikipedia_url, network=network),
        AskUser(answerer),
        ProposeApproach(),
        FinalAnswer(),
    )


class BuiltinTools(RegisteredTools):
    """The built-in tools as operations of an agent, without `final_answer`, which the agent's loop has.

    Args:
        workspace, settings, answerer, network: See `builtin_tools`.
        names: The names of the tools; None: all.
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
