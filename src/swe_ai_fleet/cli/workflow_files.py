"""Workflow files on this machine: read, checked and drawn; and what a fleet has of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.workflow import Workflow
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.watching.text import one_line
from swe_ai_fleet.workflows.documents import MAX_BYTES
from swe_ai_fleet.workflows.drawing import mermaid
from swe_ai_fleet.workflows.faults import InvalidWorkflow, WorkflowFault
from swe_ai_fleet.workflows.reading import read_workflow
from swe_ai_fleet.workflows.shelf import SUFFIXES, Shelf, read_shelf


def is_file(text: str) -> bool:
    """Whether the text names a file rather than a workflow that a fleet knows."""
    return text.endswith(SUFFIXES) or "/" in text


def file_text(path: Path) -> str:
    """A workflow file's text; too long a one is cut where its reader refuses it. Raises CommandFault."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise CommandFault(f"{path} cannot be read: {error.strerror}", exit_code=Exit.USAGE) from None


async def validate(screen: Screen, settings: Settings, paths: Sequence[Path]) -> Exit:
    """Print what is wrong with files, a fault a line; exit code 2 where anything is."""
    shelf = await _shelf(settings)
    faults: list[WorkflowFault] = []
    for path in paths:
        try:
            await asyncio.to_thread(_read, path, shelf)
        except InvalidWorkflow as error:
            faults.extend(error.faults)
    if screen.json:
        told = [
            {"file": one.file, "line": one.line, "node": one.node, "message": one.message, "hint": one.hint}
            for one in faults
        ]
        screen.document({"faults": told, "files": len(paths)})
    else:
        for fault in faults:
            screen.line(one_line(str(fault), 2000))
        if not faults:
            screen.note(f"{len(paths)} file{'' if len(paths) == 1 else 's'}: nothing is wrong", style="green")
    return Exit.USAGE if faults else Exit.ACCEPTED


async def draw(screen: Screen, settings: Settings, name: str, *, output: Path | None) -> Exit:
    """Print or write a workflow's picture."""
    workflow = await known(settings, name)
    picture = mermaid(workflow)
    if output is not None:
        await asyncio.to_thread(output.write_text, picture, encoding="utf-8")
        screen.note(f"written to {output}")
        return Exit.ACCEPTED
    if screen.json:
        screen.document({"name": workflow.name, "format": "mermaid", "picture": picture})
        return Exit.ACCEPTED
    screen.content(f"{picture.rstrip()}\n".encode())
    return Exit.ACCEPTED


async def known(settings: Settings, name: str) -> Workflow:
    """The workflow of a file, or one that is known here by name. Raises CommandFault, InvalidWorkflow."""
    shelf = await _shelf(settings)
    if is_file(name):
        return await asyncio.to_thread(_read, Path(name), shelf)
    try:
        return shelf.get(name).workflow
    except NotFound as error:
        raise CommandFault(error.message, exit_code=Exit.USAGE, hint=error.hint) from None


def _read(path: Path, shelf: Shelf) -> Workflow:
    # Servers and plug-ins may bring further tools, of which only a fleet knows.
    return read_workflow(file_text(path), file=str(path), workflows=shelf.named, tools=None)


async def _shelf(settings: Settings) -> Shelf:
    directories = tuple(Path(name) for name in listed(settings.workflows))
    return await asyncio.to_thread(read_shelf, directories)
