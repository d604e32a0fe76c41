"""Databases for agents: a caller says the name of a connection, never its URL."""

from swe_ai_fleet.tools.db.tool import DatabaseTool, secret_values

__all__ = ["DatabaseTool", "secret_values"]
