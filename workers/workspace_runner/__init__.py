"""The workspace runner: takes jobs from NATS, starts a container for each, and sees each to its end."""
