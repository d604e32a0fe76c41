"""Third-party harnesses as agents, over the Agent Client Protocol: programs that the fleet runs in the workspace."""

from swe_ai_fleet.extension_registry import Extension

EXTENSION = Extension(harnesses="harness:harness_agents", doctor="harness:examine")
