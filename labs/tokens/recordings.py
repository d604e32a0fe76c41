"""Recorded trajectories: a task on an example repository, and all that a strong model replied to what it was shown.

`recordings/NAME.toml` has the repository's name, the task's words and the replies: what each says, its calls, and a
regular expression that the observation of a call has to match (`shows`), so that no figure is of a run in which the
model would have gone another way. `repositories/NAME.mbox` is a repository's history as `git format-patch` writes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_ai_fleet.testing.repositories import git, make_repository

PLACE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call, and what its observation has to show."""

    tool: str
    arguments: Mapping[str, Any]
    shows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply of the model; the last has one call, `final_answer`."""

    text: str
    calls: Sequence[Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A task and all replies to it."""

    name: str
    repository: str
    task: str
    replies: Sequence[Reply]


def recordings(only: Sequence[str] = ()) -> list[Recording]:
    """All recordings by name, or those that are named. Raises ValueError for a name that no recording has."""
    known = {path.stem: path for path in sorted((PLACE / "recordings").glob("*.toml"))}
    if unknown := [name for name in only if name not in known]:
        raise ValueError(f"no recording is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [_read(known[name]) for name in only or known]


def make_example(name: str, path: Path) -> Path:
    """Makes an example repository with its history; its commits have the same ids each time."""
    root = make_repository(path)
    git(root, "am", "--quiet", "--committer-date-is-author-date", str(PLACE / "repositories" / f"{name}.mbox"))
    return root


def _read(path: Path) -> Recording:
    written = tomllib.loads(path.read_text())
    replies = [
        Reply(text=reply.get("text", ""), calls=tuple(_call(call) for call in reply["calls"]))
        for reply in written["replies"]
    ]
    return Recording(
        name=path.stem, repository=written["repository"], task=written["task"].strip(), replies=tuple(replies)
    )


def _call(written: Mapping[str, Any]) -> Call:
    arguments = {name: value for name, value in written.items() if name not in ("tool", "shows")}
    return Call(tool=written["tool"], arguments=arguments, shows=written.get("shows", ""))
