"""Values and rules of the fleet: frozen dataclasses and pure functions, standard library only."""
