"""A chat model behind an OpenAI-compatible server."""

from swe_ai_fleet.adapters.openai_model.client import OpenAIChatModel

__all__ = ["OpenAIChatModel"]
