"""`fleet batch`: many tasks from a file."""
