"""Views of an execution for its watchers: events from the wire, in words, as progress, and as audit chains."""

from swe_ai_fleet.watching.text import clean, command_line, one_line, visible

__all__ = ["clean", "command_line", "one_line", "visible"]
