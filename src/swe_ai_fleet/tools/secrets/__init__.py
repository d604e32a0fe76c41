"""Masking of secrets by value, in every form in which they leak."""

from swe_ai_fleet.tools.secrets.secrets import MASK, Secrets, SecretStream

__all__ = ["MASK", "SecretStream", "Secrets"]
