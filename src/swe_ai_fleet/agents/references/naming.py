"""Names in one turn of a conversation: what the person, calls and the answer named, by itself and in lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swe_ai_fleet.agents.references.phrases import ANSWER, MAX_LIST, MAX_PER_TURN, PERSON, NamedThing, ThingKind
from swe_ai_fleet.agents.references.records import Member, entry, named_by
from swe_ai_fleet.agents.references.wording import MAX_TEXT_CHARS, as_name, exact, in_words, last_list
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import ToolResult

_LEAST_LABEL_CHARS = 6
_MAX_CHOSEN = 8


class Naming:
    """Collects what one turn names.

    Args:
        turn: Its number.
        first_group: The number of the first list that comes up in it.
    """

    def __init__(self, turn: int, *, first_group: int = 1) -> None:
        self._turn = turn
        self._group = first_group
        self.things: list[NamedThing] = []

    def person(self, text: str, known: Sequence[NamedThing] = ()) -> None:
        """What the person's own words name: files, addresses, ids, and what was named before under a noun."""
        for kind, name in in_words(text):
            self._alone(Member(kind, name), PERSON)
        for thing in _mentioned(text, known)[:_MAX_CHOSEN]:
            self._alone(Member.of(thing), PERSON)

    def chosen(self, things: Sequence[NamedThing]) -> None:
        """What the person singled out of what was named before."""
        if len(things) == 1:
            self._alone(Member.of(things[0]), PERSON)
        elif things:
            self._list([Member.of(thing) for thing in things], PERSON)

    def started(self, execution_id: str, description: str) -> None:
        """An execution that was started for the person."""
        self._alone(Member(ThingKind.EXECUTION, execution_id, description), ANSWER)

    def call(self, call: ToolCall, result: ToolResult) -> None:
        """What a call that succeeded was about, and what it gave."""
        if not result.success:
            return
        named = named_by(call, result)
        for member in named.single:
            self._alone(member, call.name)
        for members in named.lists:
            self._list(members, call.name)

    def answer(self, text: str) -> None:
        """The list that an answer shows, if it shows one; what it lists of this turn's things is known for them."""
        entries = last_list(text)
        members: list[Member] = []
        for line in entries:
            meant = self._thing_meant(line)
            if meant is None:
                members.append(entry(line))
            else:
                label = meant.label if meant.noun and meant.label else line
                members.append(Member(meant.kind, meant.name, label, meant.nouns))
        self._list(members, ANSWER)
        if not entries:
            for kind, name in in_words(text):
                if not any(thing.name == name for thing in self.things):
                    self._alone(Member(kind, name), ANSWER)
            if len(mentioned := _mentioned(text, self.things)) == 1:
                self._alone(Member.of(mentioned[0]), ANSWER)

    def _thing_meant(self, entry: str) -> NamedThing | None:
        """The one thing of this turn that an entry is about: by its name, the beginning of its id, its label."""
        known = {thing.name: thing for thing in self.things if thing.kind is not ThingKind.ITEM}
        for alias in (_name, _beginning, _label):
            meant = [thing for thing in known.values() if _mentions(entry, alias(thing))]
            # The longest one is meant where one is a part of another.
            longest = max((len(alias(thing)) for thing in meant), default=0)
            meant = [thing for thing in meant if len(alias(thing)) == longest]
            if len(meant) == 1:
                return meant[0]
        return None

    def _alone(self, member: Member, source: str) -> None:
        name = exact(member.kind, member.name)
        thing = NamedThing(
            kind=member.kind, name=name, turn=self._turn, source=source, label=as_name(member.label), nouns=member.nouns
        )
        same = any(
            replace(thing_known, label=thing.label if not thing_known.noun else thing_known.label) == thing
            for thing_known in self.things
        )
        if name and not same and len(self.things) < MAX_PER_TURN - 2 * MAX_LIST:
            self.things.append(thing)

    def _list(self, members: Sequence[Member], source: str) -> None:
        named = [
            member._replace(name=shown, label=as_name(member.label))
            for member in members[:MAX_LIST]
            if (shown := exact(member.kind, member.name))
        ]
        # What the person sees or chooses has its room whatever tools said.
        room = MAX_PER_TURN if source in (ANSWER, PERSON) else MAX_PER_TURN - 2 * MAX_LIST
        if not named or len(self.things) + len(named) > room:
            return
        for position, (kind, name, label, nouns) in enumerate(named, start=1):
            self.things.append(
                NamedThing(
                    kind=kind, name=name, turn=self._turn, source=source, group=self._group, position=position,
                    size=max(len(named), len(members)), label=label if label != name else "",
                    nouns=nouns,
                )
            )  # fmt: skip
        self._group += 1


def _name(thing: NamedThing) -> str:
    return thing.name


def _beginning(thing: NamedThing) -> str:
    return thing.name[:8] if thing.kind is ThingKind.EXECUTION and len(thing.name) > 8 else ""


def _label(thing: NamedThing) -> str:
    return thing.label if len(thing.label) >= _LEAST_LABEL_CHARS else ""


def _mentions(text: str, name: str) -> bool:
    """Whether a name stands in a text as a whole."""
    start = text.find(name) if name else -1
    if start < 0:
        return False
    before, after = text[start - 1 : start] if start else "", text[start + len(name) : start + len(name) + 1]
    return not (before.isalnum() and name[0].isalnum()) and not (after.isalnum() and name[-1].isalnum())


def _mentioned(text: str, things: Sequence[NamedThing]) -> list[NamedThing]:
    """Those with a noun whose name stands in a text; a name of two different things is nobody's."""
    text, mentioned = text[:MAX_TEXT_CHARS].casefold(), dict[tuple[str, str], dict[str, NamedThing]]()
    for thing in things:
        if thing.noun and len(thing.name) > 1 and _mentions(text, thing.name.casefold()):
            mentioned.setdefault((thing.noun, thing.name), {})[thing.label] = thing
    return [thing for same in mentioned.values() if len(same) == 1 for thing in same.values()]
