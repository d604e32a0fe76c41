"""The rules of the fleet under every kind of bad luck: as state machines, and at scale on virtual time."""
