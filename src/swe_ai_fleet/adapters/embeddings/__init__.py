"""Embeddings without a server."""

from swe_ai_fleet.adapters.embeddings.local import LocalEmbedder, is_installed

__all__ = ["LocalEmbedder", "is_installed"]
