"""E14: the names of the tools there are."""

from swe_ai_fleet.tools import ToolRegistry; print(ToolRegistry._tools.keys())
