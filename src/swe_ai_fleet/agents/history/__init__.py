"""The conversation of a run, and what keeps it in the model's context."""

from swe_ai_fleet.agents.history.history import History, Pins, Summarise, summariser

__all__ = ["History", "Pins", "Summarise", "summariser"]
