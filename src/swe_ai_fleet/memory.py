"""Memories of the library: `MemoryManager`, under the name that users know.

Where the extension is not there, it cannot be imported from here.
"""

from __future__ import annotations

from importlib import import_module


def __getattr__(name: str) -> object:
    if name != "MemoryManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("swe_ai_fleet.extensions.knowledge.manager").MemoryManager
