"""Agents: the loop that turns a task, a model and a toolbox into a trajectory."""
