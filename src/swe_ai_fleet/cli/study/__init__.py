"""`fleet study`: what more candidates and rounds of review are worth, measured."""
