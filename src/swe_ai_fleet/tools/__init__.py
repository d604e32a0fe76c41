"""Tools: what agents can do, each operation validated, checked, audited and bounded in one way."""

from swe_ai_fleet.tools.db import DatabaseTool
from swe_ai_fleet.tools.failure import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.http import HttpPolicy, HttpTool
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

__all__ = [
    "DatabaseTool",
    "FileTool",
    "GitTool",
    "HttpPolicy",
    "HttpTool",
    "Pipeline",
    "ShellTool",
    "TestTool",
    "ToolFailure",
    "ToolLimits",
    "ToolRefusal",
    "Toolkit",
    "operation",
]
