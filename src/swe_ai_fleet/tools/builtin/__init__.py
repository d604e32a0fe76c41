"""The tools that are always there: arithmetic, code, files, the web, questions to the user."""

from swe_ai_fleet.tools.builtin.calculator import Calculator
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.builtin.python_executor import PythonExecutor
from swe_ai_fleet.tools.builtin.toolkit import (
    Answerer,
    AskUser,
    BuiltinSettings,
    BuiltinTools,
    FileReader,
    FinalAnswer,
    ProposeApproach,
    builtin_tools,
)
from swe_ai_fleet.tools.builtin.web import ReadWebpage, SearchWikipedia, WebSearch

__all__ = [
    "Answerer",
    "AskUser",
    "BuiltinSettings",
    "BuiltinTools",
    "Calculator",
    "FileReader",
    "FinalAnswer",
    "Network",
    "ProposeApproach",
    "PythonExecutor",
    "ReadWebpage",
    "SearchWikipedia",
    "WebSearch",
    "builtin_tools",
]
