"""Many tasks from a file, one after the other or side by side; studies of what more candidates or retries bring."""

from swe_ai_fleet.extensions import Extension

EXTENSION = Extension(commands="study_command:COMMANDS")
