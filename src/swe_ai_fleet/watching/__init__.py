from swe_ai_fleet.watching.text import clean, command_line, one_line, visible

__all__ = ["clean", "command_line", "one_line", "visible"]
