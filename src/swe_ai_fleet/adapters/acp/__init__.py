"""Harnesses of others in the workspace, over the Agent Client Protocol (version 1, client side, stdio)."""

from swe_ai_fleet.adapters.acp.agents import HarnessAgents
from swe_ai_fleet.adapters.acp.harness import Harness

__all__ = ["Harness", "HarnessAgents"]
