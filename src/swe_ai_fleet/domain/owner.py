"""Whose commands a workspace runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The tenant and the execution that something is done for; both empty where nobody said."""

    tenant: str = ""
    execution_id: str = ""


NOBODY = Owner()
