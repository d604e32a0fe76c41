"""All that NATS keeps for a fleet, written to files and read back."""

from swe_ai_fleet.extensions import Extension

EXTENSION = Extension(commands="commands:COMMANDS")
