"""A chat model, and embeddings, behind an OpenAI-compatible server."""

from swe_ai_fleet.adapters.openai_model.client import OpenAIChatModel
from swe_ai_fleet.adapters.openai_model.embeddings import OpenAIEmbedder

__all__ = ["OpenAIChatModel", "OpenAIEmbedder"]
