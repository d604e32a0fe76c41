"""What it would cost to mask old observations, against a prefix cache that then misses what lies behind them.

A rule says before each request which observations are masked from then on. What a request has in common with the one
before it, from its beginning on, is cached; the rest is paid in full. Whether a model misses what is masked, and reads
it again, cannot be seen in recorded replies: `eaten_by` says how many requests more would use up what a rule saves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from labs.tokens.parts import parts_of

PRICES = (0.1, 0.25)
"""Of a cached character, where one that is not cached costs 1."""
MASKED = 200
"""Characters of the line in an observation's place; the history's own has about as many."""
WORTH_IT = 400
"""Shorter observations stay, as in the history."""
ROOM = 100_000
"""Characters for which a context of 32,768 tokens has room, at 3.5 characters each."""
_FULL, _GOAL = 0.95, 0.6


@dataclass(frozen=True, slots=True)
class Piece:
    """A message, or what comes before the first reply as a whole; `reply` counts the replies before and with it."""

    characters: int
    reply: int
    observed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of all requests of a conversation, in characters."""

    requests: int
    sent: int
    missed: int

    def at(self, price: float) -> float:
        """What they cost where a cached character costs `price`."""
        return self.missed + price * (self.sent - self.missed)


Masks = set[int]
Rule = Callable[[Sequence[Piece], Masks, int], Masks]
"""Of what a request holds, what is masked of it already, and the number of replies before it: what is masked in it."""


def conversation(bodies: Sequence[Mapping[str, Any]], *, replies: int = 0) -> list[Piece]:
    """The last request of a run as pieces, its first reply the one behind so many `replies`."""
    messages: list[Mapping[str, Any]] = bodies[-1]["messages"]
    first = next(number for number, message in enumerate(messages) if message["role"] == "assistant")
    opening = {**bodies[-1], "messages": messages[:first]}
    pieces = [Piece(sum(parts_of(opening, "").values()), replies, observed=False)]
    for message in messages[first:]:
        replies += message["role"] == "assistant"
        calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
        text = message.get("content") or ""
        size = len(text if isinstance(text, str) else json.dumps(text)) + len(calls)
        pieces.append(Piece(size, replies, observed=message["role"] == "tool"))
    return pieces


def chained(runs: Sequence[Sequence[Mapping[str, Any]]], times: int) -> list[Piece]:
    """One long conversation: the first run's opening, then what followed in all of them, so many times over."""
    pieces: list[Piece] = []
    for bodies in [*runs] * times:
        pieces += conversation(bodies, replies=pieces[-1].reply if pieces else 0)[bool(pieces) :]
    return pieces


def cost(pieces: Sequence[Piece], rule: Rule) -> Cost:
    """What a conversation's requests cost under a rule; there is one before each reply, and one behind the last."""
    requests = sent = missed = 0
    masks: Masks = set()
    before: list[tuple[int, bool]] = []
    for replies in range(pieces[-1].reply + 1):
        held = [piece for piece in pieces if piece.reply <= replies]
        masks = rule(held, masks, replies)
        now = [(number, number in masks) for number in range(len(held))]
        sizes = [MASKED if masked else held[number].characters for number, masked in now]
        same = next((at for at, (old, new) in enumerate(zip(before, now, strict=False)) if old != new), len(before))
        requests, sent, missed = requests + 1, sent + sum(sizes), missed + sum(sizes[same:])
        before = now
    return Cost(requests=requests, sent=sent, missed=missed)


def never(held: Sequence[Piece], masks: Masks, replies: int) -> Masks:
    """Nothing is masked: what the history does as long as the context has room."""
    return masks


def filled(room: int) -> Rule:
    """What the history does where the context has room for so many characters: the oldest go, once it is full."""

    def rule(held: Sequence[Piece], masks: Masks, replies: int) -> Masks:
        size = sum(MASKED if number in masks else piece.characters for number, piece in enumerate(held))
        if size <= _FULL * room:
            return masks
        for number, saved in _old(held, masks, replies, 1).items():
            if size <= _GOAL * room:
                break
            masks, size = masks | {number}, size - saved
        return masks

    return rule


def always(keep: int) -> Rule:
    """All but the observations of the last `keep` replies, each time."""
    return lambda held, masks, replies: masks | _old(held, masks, replies, keep).keys()


def batches(characters: int, keep: int = 3) -> Rule:
    """The same, but only once so many characters have gathered that can be masked."""

    def rule(held: Sequence[Piece], masks: Masks, replies: int) -> Masks:
        old = _old(held, masks, replies, keep)
        return masks | old.keys() if sum(old.values()) >= characters else masks

    return rule


def rented(price: float, keep: int = 3) -> Rule:
    """The same, once what is maskable has cost as much in the cache as it costs to send anew what lies behind it.

    Whoever does not know how long a run goes on pays at most twice what the best choice would have cost.
    """
    rent = 0.0

    def rule(held: Sequence[Piece], masks: Masks, replies: int) -> Masks:
        nonlocal rent
        old = _old(held, masks, replies, keep)
        rent += price * sum(old.values())
        behind = [number for number in range(min(old, default=0), len(held)) if held[number].reply < replies]
        kept = sum(MASKED if number in old or number in masks else held[number].characters for number in behind)
        if not old or rent < (1 - price) * kept:
            return masks
        rent = 0.0
        return masks | old.keys()

    return rule


def _old(held: Sequence[Piece], masks: Masks, replies: int, keep: int) -> dict[int, int]:
    """What can be masked and is not, by its place: the characters that go."""
    return {
        number: piece.characters - MASKED
        for number, piece in enumerate(held)
        if piece.observed and piece.characters > WORTH_IT and piece.reply <= replies - keep and number not in masks
    }


def table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Each rule's cost in the recorded runs, and in long conversations made of them."""
    worlds = {f"{len(runs)} runs": [conversation(bodies) for bodies in runs.values()]}
    worlds |= {f"as one, x {times}": [chained(list(runs.values()), times)] for times in (1, 2, 4)}
    shown = Table("conversation", "masked", "sent", "missed", title="masking old observations, thousands of characters")
    for price in PRICES:
        shown.add_column(f"cost at {price:g}", justify="right")
        shown.add_column("against never, %", justify="right")
        shown.add_column("eaten by", justify="right")
    for world, talks in worlds.items():
        rules: dict[str, Callable[[float], Rule]] = {
            "never (today, with room)": lambda _: never,
            f"today, with room for {ROOM:,}": lambda _: filled(ROOM),
            "all but the last 3 replies'": lambda _: always(3),
            "all but the last 10 replies'": lambda _: always(10),
            "in batches of 10,000": lambda _: batches(10_000),
            "in batches of 30,000": lambda _: batches(30_000),
            "once kept as dear as sent anew": rented,
        }
        base = _together([cost(talk, never) for talk in talks])
        for name, rule in rules.items():
            by_price = [(price, _together([cost(talk, rule(price)) for talk in talks])) for price in PRICES]
            cells = [_columns(base, found, price) for price, found in by_price]
            found = by_price[0][1]
            label = f"{world}: {found.requests} requests" if name is next(iter(rules)) else ""
            sizes = (_thousands(found.sent), _thousands(found.missed))
            shown.add_row(label, name, *sizes, *(cell for three in cells for cell in three))
    return shown


def _columns(base: Cost, found: Cost, price: float) -> tuple[str, str, str]:
    more = found.at(price) - base.at(price)
    request = price * base.sent / base.requests
    return _thousands(found.at(price)), f"{100 * more / base.at(price):+.1f}", f"{max(0.0, -more / request):.1f}"


def _together(costs: Sequence[Cost]) -> Cost:
    return Cost(
        requests=sum(one.requests for one in costs),
        sent=sum(one.sent for one in costs),
        missed=sum(one.missed for one in costs),
    )


def _thousands(characters: float) -> str:
    return f"{characters / 1_000:,.0f}"
