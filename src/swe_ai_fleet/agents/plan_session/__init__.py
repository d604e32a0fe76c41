"""Planning with a person: memory first, a proposal, a decision, and only then what has an effect."""
