"""Git in the workspace's clone, and its way to remotes that were granted."""

from swe_ai_fleet.tools.git.tool import GitTool

__all__ = ["GitTool"]
