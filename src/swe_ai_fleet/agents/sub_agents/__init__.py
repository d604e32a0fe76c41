"""Agents that another agent calls as tools: each with a prompt, a history and a part of the budget of its own."""
