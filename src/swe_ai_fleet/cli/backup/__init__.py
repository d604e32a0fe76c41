"""Everything that a fleet keeps in NATS, in a directory and back: online, whole, checked."""
