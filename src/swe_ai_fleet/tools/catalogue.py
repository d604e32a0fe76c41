"""The toolkits there are, and those an agent run holds."""

from __future__ import annotations

from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.db import DatabaseTool
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.http import HttpTool
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

TOOLKITS: tuple[type[Toolkit], ...] = (FileTool, GitTool, TestTool, ShellTool, HttpTool, DatabaseTool)
"""Every toolkit of the catalogue; all can be made from a workspace and a pipeline alone."""


def coding_toolkits(workspace: Workspace, pipeline: Pipeline) -> dict[str, Toolkit]:
    """Everything a coding agent works with, over one workspace and one pipeline."""
    kinds: tuple[type[Toolkit], ...] = (FileTool, GitTool, TestTool, ShellTool)
    return {kind.name: kind(workspace, pipeline) for kind in kinds}
