"""The `fleet` command: `main` has all of it; each other module is a command, a group of them, or what they share."""
