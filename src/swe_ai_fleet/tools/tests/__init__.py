"""The repository's tests and linters, with reports that a model can act on."""

from swe_ai_fleet.tools.tests.tool import TestTool

__all__ = ["TestTool"]
