"""What a repository's commands need, read off its files. Nothing of the repository is executed here."""
