"""Workflows of the library: what users name of the extension, under the name that they know.

Where the extension is not there, nothing can be imported from here.
"""

from __future__ import annotations

from importlib import import_module


def __getattr__(name: str) -> object:
    return getattr(import_module("swe_ai_fleet.extensions.workflows"), name)
