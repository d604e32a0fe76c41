"""Learning from experience: stored outcomes, and recommendations with their uncertainty.

Callers import its modules: `outcomes` makes outcomes, `tracker` stores them, `recommending` weighs them.
"""
