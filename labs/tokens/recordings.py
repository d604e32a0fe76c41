"""Recorded trajectories: a task on an example repository, and all that a strong model replied to what it was shown.

`recordings/NAME.toml` has the repository's name, the task's words and the replies: what each says, its calls, and a
regular expression that the observation of a call has to match (`shows`), so that no figure is of a run in which the
model would have gone another way. `hidden` are those of its tests that any right solution passes.
`repositories/NAME.mbox` is a repository's history as `git format-patch` writes it.
"""

from __future__ import annotations

import json
import tempfile
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
    """A task and all replies to it; `hidden` are the files of tests that judge other solutions."""

    name: str
    repository: str
    task: str
    hidden: Sequence[str]
    replies: Sequence[Reply]

    def edit(self, root: Path) -> None:
        """Makes all edits of the replies in a tree. Raises ValueError where a passage does not occur exactly once."""
        edits = [call.arguments for reply in self.replies for call in reply.calls if call.tool == "files_edit_file"]
        for edit in edits:
            text = (root / edit["path"]).read_text()
            if text.count(edit["old"]) != 1:
                raise ValueError(f"{self.name}: {edit['path']} has {text.count(edit['old'])} times {edit['old']!r}")
            (root / edit["path"]).write_text(text.replace(edit["old"], edit["new"]))


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


def write_study(directory: Path) -> Path:
    """Writes the example repositories, and the tasks with their hidden tests as `fleet study` takes them.

    Returns the file, `directory/tasks.jsonl`.
    """
    roots: dict[str, Path] = {}
    records: list[str] = []
    for recording in recordings():
        name = recording.repository
        root = roots.get(name) or roots.setdefault(name, make_example(name, directory / name))
        with tempfile.TemporaryDirectory() as place:
            solved = make_example(name, Path(place) / name)
            recording.edit(solved)
            hidden = git(solved, "diff", "--", *recording.hidden) + "\n"
        runner = "node --test" if recording.hidden[0].endswith(".js") else "python3 -m pytest -q"
        record = {
            "instance_id": recording.name,
            "repo": name,
            "base_commit": git(root, "rev-parse", "HEAD").strip(),
            "task": recording.task,
            "test_patch": hidden,
            "evaluation": [f"{runner} {' '.join(recording.hidden)}"],
        }
        records.append(json.dumps(record) + "\n")
    (directory / "tasks.jsonl").write_text("".join(records))
    return directory / "tasks.jsonl"


def _read(path: Path) -> Recording:
    written = tomllib.loads(path.read_text())
    replies = [
        Reply(text=reply.get("text", ""), calls=tuple(_call(call) for call in reply["calls"]))
        for reply in written["replies"]
    ]
    return Recording(
        name=path.stem,
        repository=written["repository"],
        task=written["task"].strip(),
        hidden=written["hidden"],
        replies=tuple(replies),
    )


def _call(written: Mapping[str, Any]) -> Call:
    arguments = {name: value for name, value in written.items() if name not in ("tool", "shows")}
    return Call(tool=written["tool"], arguments=arguments, shows=written.get("shows", ""))
