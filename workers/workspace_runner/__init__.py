"""The workspace runner: takes jobs from NATS, starts a container for each, and follows it to its end."""
