"""What was written of projects must be readable for ever: a golden payload of every kind of change.

A file that is there is never rewritten: it is what some log out there holds. A new kind of change needs a file of its
own, with every field of it.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.context import Change, ChangeBody

GOLDEN = Path(__file__).parent / "golden_changes"
KINDS = {kind.__dataclass_fields__["type"].default: kind for kind in get_args(ChangeBody)}


def test_every_kind_of_change_has_a_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_golden_changes_are_read_and_still_written_as_they_were(name: str) -> None:
    stored = (GOLDEN / f"{name}.json").read_bytes()
    change = from_json(Change, stored)
    assert type(change.body) is KINDS[name]
    # Fields may have been added since: what was written then is still written.
    assert _within(json.loads(stored), json.loads(to_json(change)))
    assert {one.name for one in fields(change.body)} & set(json.loads(stored)["body"])


def _within(old: object, new: object) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and _within(value, new[key]) for key, value in old.items())
    return old == new
