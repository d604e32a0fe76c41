"""The context service as its clients see it, over gRPC."""

from swe_ai_fleet.adapters.context_service.client import ContextServiceClient

__all__ = ["ContextServiceClient"]
