"""The fleet as tools for editors and other agents, over the Model Context Protocol."""

from swe_ai_fleet.extensions import Extension

EXTENSION = Extension(commands="commands:COMMANDS")
