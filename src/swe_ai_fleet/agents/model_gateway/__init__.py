"""The model of one run as a server for an agent of somebody else, which has neither a network nor a key."""

from swe_ai_fleet.agents.model_gateway.server import ModelGateway

__all__ = ["ModelGateway"]
