"""How text can be marked."""

from __future__ import annotations

from enum import StrEnum


class Mark(StrEnum):
    """What a piece of text is shown as; code is nothing else besides."""

    BOLD = "bold"
    ITALIC = "italic"
    STRIKE = "strike"
    CODE = "code"
