"""What those who watch an execution are told: its events off the wire, in words, as progress, as audit chains."""

from swe_ai_fleet.watching.text import clean, command_line, one_line, visible

__all__ = ["clean", "command_line", "one_line", "visible"]
