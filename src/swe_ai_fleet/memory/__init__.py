"""Long-term memories: storage, recall, and their presentation in prompts.

`MemoryManager`, which users import from here, is defined in an outer layer and imported from there on first use; its
type stands in `__init__.pyi`, since this package must not import outer layers.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["MemoryManager"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("swe_ai_fleet"), name)
