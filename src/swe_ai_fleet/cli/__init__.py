"""The `fleet` command: `main` assembles it; each other module is a command, a group of commands, or shared by them."""
