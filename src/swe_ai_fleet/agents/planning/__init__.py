"""Plans: made by the model as a whole, checked against the real tools, carried out step by step, verified."""
