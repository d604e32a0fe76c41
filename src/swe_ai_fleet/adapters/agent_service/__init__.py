"""Agents behind `fleet.agent.v1.AgentService`, over gRPC."""

from swe_ai_fleet.adapters.agent_service.client import AgentServiceClient

__all__ = ["AgentServiceClient"]
