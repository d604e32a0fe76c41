"""All built-in tools, for a registry and for an agent."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.builtin.calculator import Calculator
from swe_ai_fleet.tools.builtin.dialogue import Answerer, AskUser, FinalAnswer, ProposeApproach
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.builtin.file_reader import FileReader
from swe_ai_fleet.tools.builtin.python_executor import PythonExecutor
from swe_ai_fleet.tools.builtin.settings import BuiltinSettings
from swe_ai_fleet.tools.builtin.web import ReadWebpage, SearchWikipedia, WebSearch
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry.base_tool import BaseTool
from swe_ai_fleet.tools.registry.toolkit import RegisteredTools


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
