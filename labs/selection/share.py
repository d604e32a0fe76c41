"""How much of what models are sent is opinion: the same recorded replies, by the fleet of whichever commit.

`python -m labs.selection.share` runs three agents with one round of review through `fleet run`, against a model server
that replies the same to both fleets, and prints the characters of all requests (messages and tools) and those of
reviews, of revisions that they ask for, and of votes. BEFORE is the interpreter of a built copy of the other commit.

One of three candidates is right. Reviewers look twice, ask for changes of what is wrong, and put the right one first;
authors who are asked mend. Nobody brings a test in the recording `opinion`, so that opinion decides; each brings one
in `tests`, which decide what they can. In `strict` nobody brings one either, and reviewers ask for changes of
everything at their first look.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labs.selection.judging import REFERENCE
from swe_ai_fleet.testing import Conversation, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.testing.script import ScriptRequest

SECONDS = 300.0
_REVIEWS = ("You review another agent's candidate", "You review candidates of other agents")
_JUDGES = "You choose between candidates"
_PROBER = "The question is the statement of a task"
_REVISES = "# Your second go"
_AGAIN = "# Your second look"
_TASK = (
    "merge(intervals) in intervals.py takes a list of (start, end) pairs and is to give the merged ones in order: "
    "pairs that overlap or touch become one, whatever order they come in; a pair whose end lies before its start is "
    "turned round. The list that is given stays as it is."
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
    """Stands where a `Script` does: what agents, reviewers and judges reply.

    Attributes:
        tests: Whether candidates bring tests.
        strict: Whether reviewers ask for changes of the right candidate too.
    """

    tests: bool = False
    strict: bool = False

    def choose(self, request: ScriptRequest) -> Conversation:
        """The turns of the conversation that a request belongs to."""
        opening = request.opening
        if opening.startswith(_REVIEWS):
            return self._reviewer(opening)
        if opening.startswith(_JUDGES):
            best = next((letter for letter, said in _candidates(opening).items() if _kind(said) == "as asked"), "A")
            return Conversation(turns=(Turn(content=json.dumps({"reason": "It does all.", "choice": best})),))
        if _PROBER in opening:
            # No probe: it would decide what is left to opinion here.
            checklist = {"requirements": [{"quote": "pairs that overlap or touch become one"}]}
            turns = (_call("files_read_file", path="intervals.py"), _call("final_answer", result=json.dumps(checklist)))
            return Conversation(turns=turns)
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

    def _reviewer(self, opening: str) -> Conversation:
        said = {letter: _kind(text) for letter, text in _candidates(opening).items()}
        pleased = not self.strict or _AGAIN in opening
        fine = {letter: kind == "as asked" and pleased for letter, kind in said.items()}
        reviews = {letter: _review(right=right) for letter, right in fine.items()}
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


async def shares(interpreter: Path, recording: Recording) -> Shares:
    """What the fleet of an interpreter sends in a recording. Raises RuntimeError with what it printed at its end."""
    with tempfile.TemporaryDirectory(prefix="fleet-share-") as name:
        directory = Path(name)
        repository = make_repository(directory / "repository", _FILES)
        async with ScriptedModelServer(recording, keep=1_000) as server:
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


async def measured(before: str) -> dict[str, Any]:
    """What `figures` gives for this tree and, with the suffix `_before`, for the commit that it is compared with.

    Without the interpreter of a built copy of that commit its figures are `REFERENCE`'s, if these are of the same
    recordings; with one they are written there.
    """
    known: dict[str, Any] = json.loads(REFERENCE.read_text())
    recordings = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if before:
        known["opinion"] = {"recordings": recordings, "figures": await figures(Path(before))}
        REFERENCE.write_text(json.dumps(known, indent=1) + "\n")
    told = known.get("opinion", {})
    earlier: dict[str, Any] = told["figures"] if told.get("recordings") == recordings else {}
    return await figures(Path(sys.executable)) | {f"{name}_before": value for name, value in earlier.items()}


async def figures(interpreter: Path) -> dict[str, Any]:
    """`opinion_share`, opinion's part of all characters over the recordings, and what it is made of."""
    recordings = {"opinion": Recording(), "tests": Recording(tests=True), "strict": Recording(strict=True)}
    told = {name: await shares(interpreter, recording) for name, recording in recordings.items()}
    every, opinion = sum(one.everything for one in told.values()), sum(one.opinion for one in told.values())
    return {
        "opinion_share": round(opinion / every, 4),
        "opinion_characters": opinion,
        "recordings": {name: asdict(one) for name, one in told.items()},
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measured(os.environ.get("BEFORE", ""))), indent=1))
