"""Real processes, killed at moments that a seed decides; every accepted execution must end right all the same."""
