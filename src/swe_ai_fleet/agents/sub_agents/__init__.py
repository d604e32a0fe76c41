"""Agents that another agent calls as tools: each with a prompt, a history and a part of the budget of its own."""

from swe_ai_fleet.agents.sub_agents.memory import MemoryResults as MemoryResults
from swe_ai_fleet.agents.sub_agents.memory import RepositoryMemory as RepositoryMemory
