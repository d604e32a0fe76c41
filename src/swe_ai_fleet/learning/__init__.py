"""What experience says: outcomes kept, and what to try next recommended with its uncertainty.

Its modules are what others import: `outcomes` makes outcomes, `tracker` keeps them, `recommending` weighs them.
"""
