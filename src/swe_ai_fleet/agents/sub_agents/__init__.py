"""Agents that another agent calls as tools: each with a prompt, a history and a part of the budget of its own."""

from swe_ai_fleet.agents.sub_agents.limits import SubAgentLimits
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch
from swe_ai_fleet.agents.sub_agents.profiles import idle_sub_agents
from swe_ai_fleet.agents.sub_agents.repository_memory import RepositoryMemory
from swe_ai_fleet.agents.sub_agents.results import sub_agents_used
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools

__all__ = [
    "MemoryResults",
    "MemorySearch",
    "RepositoryMemory",
    "SubAgentLimits",
    "SubAgentTools",
    "idle_sub_agents",
    "sub_agents_used",
]
