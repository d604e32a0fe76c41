"""Agents that another agent calls as tools: each with its own prompt, history and part of the budget."""
