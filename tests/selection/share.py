"""How much of what models are sent is opinion: the same recorded replies, by the fleet of whichever commit.

`python -m tests.selection.share [INTERPRETER]` runs three agents with one round of review through `fleet run`, against a
model server that replies the same to both fleets, and prints the characters of all requests (messages and tools) and
those of reviews, of revisions that they ask for, and of votes. INTERPRETER is that of a built copy of another commit.

One of three candidates is right. In the first recording nobody brings a test, so that opinion decides; in the second
each brings one, and tests decide what they can. Reviewers look twice, ask for changes of what is wrong, and put the
right one first; authors who are asked mend.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_ai_fleet.testing import Conversation, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.testing.script import ScriptRequest

SECONDS = 300.0
_REVIEWS = ("You review another agent's candidate", "You review candidates of other agents")
_JUDGES = "You choose between candidates"
_REVISES = "# Your second go"
_OPENING = 400
_TASK = (
    "merge(intervals) in intervals.py takes a list of (start, end) pairs and is to give the merged ones in order: pairs "
    "that overlap or touch become one, whatever order they come in; a pair whose end lies before its start is turned "
    "round. The list that is given stays as it is."
)
_HELPERS = "\n\n".join(
    f'def {name}(pair):\n    """The {name} of a pair."""\n    start, end = pair\n    return {value}\n'
    for name, value in (
        ("length", "end - start"),
        ("middle", "(start + end) / 2"),
        ("doubled", "(2 * start, 2 * end)"),
        ("shifted", "(start + 1, end + 1)"),
        ("mirrored", "(-end, -start)"),
        ("rounded", "(round(start), round(end))"),
    )
)
_OLD = '"""Intervals on a line."""\n\n\n' + _HELPERS + "\n\ndef merge(intervals):\n    return intervals\n"
_RIGHT = """def merge(intervals):
    # {remark}
    merged = []
    for start, end in sorted((min(pair), max(pair)) for pair in intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
"""
_BODIES = {
    "as asked": _RIGHT,
    "half": _RIGHT.replace("sorted((min(pair), max(pair)) for pair in intervals)", "sorted(intervals)"),
    "clumsy": _RIGHT.replace("start <= merged", "start < merged"),
}
_TESTS = {
    "as asked": "assert merge([(5, 3), (1, 2), (2, 4)]) == [(1, 5)]",
    "half": "assert merge([(4, 5), (1, 2), (2, 3)]) == [(1, 3), (4, 5)]",
    "clumsy": "assert merge([(1, 3), (2, 5)]) == [(1, 5)]",
}
_FILES = {
    "intervals.py": _OLD,
    "tests/test_intervals.py": "from intervals import length, middle\n\n\ndef test_length():\n"
    "    assert length((1, 4)) == 3\n\n\ndef test_middle():\n    assert middle((1, 3)) == 2\n",
    "README.md": "# Intervals\n\nPairs of numbers, and what can be done with them.\n",
}
_FAULT = "python3 -c 'from intervals import merge; assert merge([(5, 3), (1, 2), (2, 4)]) == [(1, 5)]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The characters of the requests of one recording."""

    everything: int
    reviews: int
    revisions: int
    votes: int

    @property
    def opinion(self) -> int:
        return self.reviews + self.revisions + self.votes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Stands where a `Script` does: what agents, reviewers and judges reply, with or without tests of their own."""

    tests: bool

    def choose(self, request: ScriptRequest) -> Conversation:
        """The turns of the conversation that a request belongs to."""
        opening = request.opening
        if opening.startswith(_REVIEWS):
            return _reviewer(opening)
        if opening.startswith(_JUDGES):
            best = next((letter for letter, said in _candidates(opening).items() if _kind(said) == "as asked"), "A")
            return Conversation(turns=(Turn(content=json.dumps({"reason": "It does all.", "choice": best})),))
        kind = list(_BODIES)[(request.seed or 0) % len(_BODIES)]
        return self._author(kind, mends=_REVISES in opening)

    def _author(self, kind: str, *, mends: bool) -> Conversation:
        body = (_RIGHT if mends else _BODIES[kind]).format(remark=f"{'as asked: ' if mends else ''}{kind}")
        tested = [
            _call("files_write_file", path=f"tests/test_{kind.split()[0]}.py", content=_test(kind)),
            _call("tests_run"),
        ]
        return Conversation(
            turns=(
                _call("files_read_file", path="intervals.py"),
                _call("files_search_in_files", pattern="merge"),
                _call("files_read_file", path="tests/test_intervals.py"),
                _call("files_write_file", path="intervals.py", content=_OLD.rpartition("def merge")[0] + body),
                *(tested if self.tests and not mends else [_call("tests_run")]),
                _call("git_diff"),
                _call("final_answer", result="merge does what the task asks."),
            )
        )


def _test(kind: str) -> str:
    return f"from intervals import merge\n\n\ndef test_{kind.split()[0]}():\n    {_TESTS[kind]}\n"


def _call(name: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=((name, arguments),))


def _kind(said: str) -> str:
    found = re.search(r"# (as asked|half|clumsy)\b", said)
    return found[1] if found else "nothing"


def _candidates(opening: str) -> Mapping[str, str]:
    """What is said of each candidate, by its letter; one alone is `A`."""
    parts = re.split(r"^# Candidate ([A-Z])$", opening, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)) or {"A": opening}


def _reviewer(opening: str) -> Conversation:
    said = {letter: _kind(text) for letter, text in _candidates(opening).items()}
    reviews = {letter: _review(right=kind == "as asked") for letter, kind in said.items()}
    order = sorted(said, key=lambda letter: said[letter] != "as asked")
    answer = {
        **next(iter(reviews.values())),
        "reviews": [{"candidate": letter, **review} for letter, review in reviews.items()],
        "reason": "It does all that the task asks.",
        "order": order,
    }
    return Conversation(
        turns=(
            _call("files_read_file", path="intervals.py"),
            _call("files_read_file", path="tests/test_intervals.py"),
            _call("final_answer", result=json.dumps(answer)),
        )
    )


def _review(*, right: bool) -> dict[str, Any]:
    if right:
        return {"verdict": "accept", "score": 0.9, "content": "It does all that the task asks.", "findings": []}
    fault = {
        "text": "Pairs that touch, or whose end lies before the start, are not merged as the task asks.",
        "file": "intervals.py",
        "must_fix": True,
        "command": _FAULT,
        "expected": "nothing is printed",
    }
    return {"verdict": "revise", "score": 0.4, "content": "Part of the task is missing.", "findings": [fault]}


async def shares(interpreter: Path, *, tests: bool) -> Shares:
    """What the fleet of an interpreter sends in a recording. Raises RuntimeError with what it printed at its end."""
    with tempfile.TemporaryDirectory(prefix="fleet-share-") as name:
        directory = Path(name)
        repository = make_repository(directory / "repository", _FILES)
        async with ScriptedModelServer(Recording(tests=tests), keep=1_000) as server:  # pyright: ignore[reportArgumentType]
            variables = {
                name: value for name, value in os.environ.items() if not name.startswith("FLEET_") or "HOSTS" in name
            }
            variables |= {"FLEET_HOME": str(directory / "home"), "FLEET_MODEL_URL": server.url}
            command = ("run", _TASK, "--local", "--repo", str(repository), "--agents", "3", "--rounds", "1")
            process = await asyncio.create_subprocess_exec(
                str(interpreter.parent / "fleet"),
                *command,
                env=variables,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            async with asyncio.timeout(SECONDS):
                printed, _ = await process.communicate()
            sizes = [_sized(body) for body in server.bodies]
        if process.returncode not in (0, 6):  # 6: delivered, and nothing has shown it
            raise RuntimeError(f"fleet run ended with {process.returncode}: {printed.decode()[-4_000:]}")
    return Shares(
        everything=sum(size for _, size in sizes),
        reviews=sum(size for kind, size in sizes if kind == "review"),
        revisions=sum(size for kind, size in sizes if kind == "revision"),
        votes=sum(size for kind, size in sizes if kind == "vote"),
    )


def _sized(body: Mapping[str, Any]) -> tuple[str, int]:
    """What a request is for, and its characters."""
    opening = "\n".join(str(message.get("content") or "") for message in body["messages"][:2])
    kind = "draft"
    if opening.startswith(_REVIEWS):
        kind = "review"
    elif opening.startswith(_JUDGES):
        kind = "vote"
    elif _REVISES in opening:
        kind = "revision"
    sent = {"messages": body["messages"], "tools": body.get("tools", [])}
    return kind, len(json.dumps(sent, ensure_ascii=False))


async def measured(interpreters: Mapping[str, Path]) -> dict[str, Any]:
    """`opinion_share` with each suffix, opinion's part of all characters over both recordings, and what makes it."""
    found: dict[str, Any] = {}
    for suffix, interpreter in interpreters.items():
        told = {name: await shares(interpreter, tests=name == "tests") for name in ("opinion", "tests")}
        every, opinion = sum(one.everything for one in told.values()), sum(one.opinion for one in told.values())
        found[f"opinion_share{suffix}"] = round(opinion / every, 4)
        found[f"opinion_characters{suffix}"] = opinion
        found[f"recordings{suffix}"] = {
            name: {"all": one.everything, "reviews": one.reviews, "revisions": one.revisions, "votes": one.votes}
            for name, one in told.items()
        }
    return found


if __name__ == "__main__":
    compared = {"": Path(sys.executable)} | {"_before": Path(name) for name in sys.argv[1:2]}
    print(json.dumps(asyncio.run(measured(compared)), indent=1))
