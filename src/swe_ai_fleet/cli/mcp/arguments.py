"""Kinds of arguments that several tools take, as their schemas show them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

MAX_DIFF_CHARS = 200_000
Id = Annotated[str, Field(description="An execution id, or a task id for its newest execution.", max_length=200)]
Role = Literal["DEV", "QA", "ARCHITECT", "DEVOPS", "DATA"]
Policy = Literal["", "none", "plan", "risky", "every"]
Decision = Literal["approved", "rejected", "adjusted"]
StatusWord = Literal[
    "pending",
    "in_progress",
    "awaiting_approval",
    "completed",
    "no_winner",
    "failed",
    "timeout",
    "cancelled",
    "rejected",
]
