"""HTTP to servers outside, at checked addresses only."""

from swe_ai_fleet.tools.http.tool import HttpTool

__all__ = ["HttpTool"]
