"""The needs of a repository's commands, read from its files. Nothing of the repository is executed here."""
