"""Files of the workspace: reading, editing, searching, and never a way out of it."""

from swe_ai_fleet.tools.files.tool import FileTool

__all__ = ["FileTool"]
