"""Agents that another agent calls as tools: each with a prompt, a history and a part of the budget of its own."""

from swe_ai_fleet.agents.sub_agents.exploring import sub_agents_used
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch, RepositoryMemory
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits, SubAgentTools, idle_sub_agents

__all__ = [
    "MemoryResults",
    "MemorySearch",
    "RepositoryMemory",
    "SubAgentLimits",
    "SubAgentTools",
    "idle_sub_agents",
    "sub_agents_used",
]
