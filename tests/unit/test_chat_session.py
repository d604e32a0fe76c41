"""What a chat keeps of a turn: enough to show it again, and no more."""

from __future__ import annotations

import json

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.conversations.formatting.tables import Table
from swe_ai_fleet.conversations.named_things import NamedThing, ThingKind
from swe_ai_fleet.conversations.references import Reference, Standing
from swe_ai_fleet.conversations.session import Session, Turn, shown_again

AT = "2026-11-22T13:55:00+00:00"


def thing(number: int, *, label: str = "") -> NamedThing:
    return NamedThing(kind=ThingKind.FILE, name=f"src/{number}.py", turn=1, source="answer", label=label)


def reference(*things: NamedThing, phrase: str = "that file") -> Reference:
    return Reference(phrase=phrase, standing=Standing.AMBIGUOUS, things=things, turns_ago=2)


def session(turn: Turn) -> Session:
    return Session(session_id="s", started_at=AT, nonce="n").with_turn(turn, (), None)


def test_a_turn_is_read_back_with_its_tables_and_references() -> None:
    turn = Turn(
        number=1,
        text="Show that file",
        answer="Which?",
        at=AT,
        tables=(Table(columns=("a",), rows=(("1",),), title="T"),),
        references=shown_again([reference(thing(1), thing(2, label="what it is about"))]),
    )
    kept = from_json(Session, to_json(session(turn)))
    assert kept == session(turn)
    assert [one.name for one in kept.turns[0].references[0].things] == ["src/1.py", "src/2.py"]
    assert kept.card.turns[0].references == kept.card.turns[0].tables == ()


def test_sessions_kept_before_turns_had_references_still_load() -> None:
    old = json.loads(to_json(session(Turn(number=1, text="Hello", answer="Hi.", at=AT))))
    del old["turns"][0]["references"]
    kept = from_json(Session, json.dumps(old).encode())
    assert (kept.turns[0].answer, kept.turns[0].references) == ("Hi.", ())
