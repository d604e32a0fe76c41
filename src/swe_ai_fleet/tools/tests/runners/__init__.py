"""Test runners and linters: how each is started on a selection, and what its reports say."""
