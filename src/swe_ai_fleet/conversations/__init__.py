"""Chat sessions over the fleet."""
