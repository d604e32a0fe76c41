"""What git operations tell a model, apart from what git itself printed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from swe_ai_fleet.domain.command import CommandResult
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.tools.git.remotes import Fetched, Pushed
from swe_ai_fleet.tools.git.repository import MAX_FILES_LISTED

Done = TypeVar("Done")
_SHORT = 10
_IDS = re.compile(r"^(?:diff --git .*\n)?index [0-9a-f]+\.\.[0-9a-f]+.*\n(?=--- )", re.MULTILINE)


def conflict(operation_name: str, result: CommandResult, files: list[str], ending: str) -> ToolResult:
    """A merge that stopped: which files to look into, and how to go on."""
    shown = "\n".join(files[:MAX_FILES_LISTED])
    return ToolResult(
        success=False,
        operation=operation_name,
        outcome=Outcome.ERROR,
        error=(
            f"conflicts in {len(files)} file{'' if len(files) == 1 else 's'}:\n{shown}\n"
            f"Edit them until no <<<<<<< marker is left, stage them with git_add; {ending}."
        ),
        exit_code=result.exit_code,
        metadata={"conflicts": files[:MAX_FILES_LISTED]},
    )


def no_difference(staged: bool, base: str | None) -> str:
    """A diff that is empty, and what it was between."""
    if staged:
        return "No differences: nothing is staged."
    against = f" with {base}" if base else " with the index (staged=true shows what is staged)"
    return f"No differences{against}. Untracked files are not compared; git_status lists them."


def without_untouched(text: str) -> str:
    """A diff without the binary files in it that are as they were.

    Git counts one as changed whose time is another than in the index, which reading must not write; no part of the
    patch is about it.
    """
    if not text.startswith("-\t-\t") and "\n-\t-\t" not in text:
        return text
    counts, gap, patch = text.partition("\n\n")
    kept = [
        line
        for line in counts.split("\n")
        if not (file := line.removeprefix("-\t-\t")) or file == line or "=>" in file or f" b/{file}\n" in patch
    ]
    return "\n".join(kept) + gap + patch if kept else ""


def without_ids(text: str) -> str:
    """A diff without the lines before a file's `---` that say nothing more: its name twice, ids of blobs."""
    return _IDS.sub("", text)


def numstat(text: str) -> dict[str, object]:
    """Files and line counts from the lines `added<TAB>deleted<TAB>file` before the patch."""
    files: list[str] = []
    insertions = deletions = 0
    for line in text.splitlines():
        added, _, rest = line.partition("\t")
        deleted, _, file = rest.partition("\t")
        if not file:
            break
        files.append(file)
        insertions += int(added) if added.isdecimal() else 0
        deletions += int(deleted) if deleted.isdecimal() else 0
    return {"files": files[:MAX_FILES_LISTED], "insertions": insertions, "deletions": deletions}


async def reported(operation_name: str, work: Awaitable[Done], tell: Callable[[Done], ToolResult]) -> ToolResult:
    """What work at a remote came to, as a result, also where timed out."""
    try:
        return tell(await work)
    except TimeoutError as late:
        error = str(late) or "timed out"
        return ToolResult(success=False, operation=operation_name, outcome=Outcome.TIMEOUT, error=error)


def cloned(done: Fetched, directory: str) -> ToolResult:
    """What a clone brought, and where it is."""
    result = fetched("git_clone", done)
    into = f"Cloned into {directory}, on branch {done.branch}" if done.changes else "The remote has no branch yet"
    return replace(
        result,
        content=f"{into}\n{result.content}" if done.changes else into,
        metadata={**result.metadata, "path": directory, "branch": done.branch},
    )


def fetched(operation_name: str, done: Fetched) -> ToolResult:
    """What a fetch brought: each ref that is new or has moved."""
    lines = [
        f"{old[:_SHORT]}..{new[:_SHORT]} {_short(name)}" if old else f"[new] {_short(name)} at {new[:_SHORT]}"
        for name, (old, new) in done.changes.items()
    ]
    shown = lines[:MAX_FILES_LISTED]
    if len(lines) > len(shown):
        shown.append(f"[... {len(lines) - len(shown)} more refs ...]")
    changes = list(done.changes.items())[:MAX_FILES_LISTED]
    return ToolResult(
        success=True,
        operation=operation_name,
        content="\n".join([f"From {done.target.url}", *(shown or ["everything is up to date"])]),
        exit_code=0,
        metadata={
            "remote": done.target.name,
            "url": done.target.url,
            "refs": {_short(name): {"old": old, "new": new} for name, (old, new) in changes},
            "received_bytes": done.received,
        },
    )


def pushed(done: Pushed) -> ToolResult:
    """What a push changed at the remote."""
    where = f"{done.target.name}/{done.branch}"
    if done.old == done.new:
        text = f"{where} is at {done.new[:_SHORT]} already; there was nothing to push"
    elif done.old:
        forced = " (forced: commits that stood there are gone)" if done.forced else ""
        text = f"{done.old[:_SHORT]}..{done.new[:_SHORT]} -> {where}{forced}"
    else:
        text = f"[new branch] {done.new[:_SHORT]} -> {where}"
    return ToolResult(
        success=True,
        operation="git_push",
        content=f"To {done.target.url}\n{text}",
        exit_code=0,
        metadata={
            "remote": done.target.name,
            "branch": done.branch,
            "old": done.old,
            "new": done.new,
            "forced": done.forced,
        },
    )


def _short(ref: str) -> str:
    for prefix in ("refs/remotes/", "refs/"):
        if ref.startswith(prefix):
            return ref.removeprefix(prefix)
    return ref
