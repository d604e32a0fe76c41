"""Changes of files that are made together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import MissingPath, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """What a file holds. A `mode` of None stands for the permission bits it has, or those a new file gets."""

    data: bytes
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file before and after, by its real path; None where there is no file."""

    path: str
    before: FileState | None
    after: FileState | None


def file_state(tree: Tree, path: str, *, limit: int) -> FileState | None:
    """What lies at the path, None where nothing does. Raises ToolFailure for what is no file of `limit` bytes."""
    try:
        content = tree.read(path, limit=limit)
    except MissingPath:
        return None
    return FileState(data=content.data, mode=content.mode)


def make_changes(tree: Tree, changes: Sequence[Change], *, limit: int) -> None:
    """Make all changes, in order.

    Raises:
        ToolFailure: One failed; those before it are put back, and directories made for them are removed. The message
            names what could not be put back.
    """
    for change in changes:
        if change.after is not None and len(change.after.data) > limit:
            raise ToolFailure(
                f"{change.path} would have {len(change.after.data)} bytes; {limit} is the limit of a file"
            )
    absent = [directory for change in changes if change.before is None for directory in _absent(tree, change.path)]
    made: list[Change] = []
    try:
        for change in changes:
            _put(tree, change.path, change.after, limit)
            made.append(change)
    except BaseException as error:
        stuck: list[str] = []
        for change in reversed(made):
            try:
                _put(tree, change.path, change.before, limit)
            except ToolFailure:
                stuck.append(change.path)
        for directory in sorted(set(absent), key=len, reverse=True):
            with suppress(ToolFailure):  # it was not made yet, or a command has put something into it
                tree.remove(directory)
        if stuck:
            raise ToolFailure(f"{error}; what had been written could not be put back: {', '.join(stuck)}") from error
        raise


def _put(tree: Tree, path: str, state: FileState | None, limit: int) -> None:
    if state is not None:
        tree.write(path, state.data, limit=limit, mode=state.mode)
    else:
        tree.remove(path)


def _absent(tree: Tree, path: str) -> list[str]:
    """The directories above a path that do not exist yet."""
    parts = path.split("/")[:-1]
    above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    absent: list[str] = []
    for directory in above:
        try:
            tree.info(directory)
        except MissingPath:
            absent.append(directory)
    return absent
