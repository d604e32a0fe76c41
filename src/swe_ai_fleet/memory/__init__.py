"""What is remembered: kept, found again, put into prompts as what it is.

`MemoryManager`, which users make by name, is put together further out, and looked up there when first asked for; its
type stands in `__init__.pyi`, since nothing here may import what lies further out.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["MemoryManager"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("swe_ai_fleet"), name)
