"""Workflows: read, checked, drawn and run."""
