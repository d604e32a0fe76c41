"""Workflows by name: those that come with the fleet, and those in an operator's directories."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.workflow import Workflow
from swe_ai_fleet.extensions.workflows.documents import MAX_BYTES, InvalidWorkflow, WorkflowFault
from swe_ai_fleet.extensions.workflows.reading import read_workflow

SUFFIXES = (".yaml", ".yml")
MAX_FILES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A workflow that can run, its sub-workflows resolved, and the text of its file."""

    workflow: Workflow
    text: str
    file: str
    built_in: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCatalog:
    """The workflows by name. `broken` is the first fault of each file that cannot run."""

    workflows: Mapping[str, CatalogEntry] = field(default_factory=dict[str, CatalogEntry])
    broken: tuple[WorkflowFault, ...] = ()

    @property
    def by_name(self) -> Mapping[str, Workflow]:
        """What files may name as their sub-workflows."""
        return {name: entry.workflow for name, entry in self.workflows.items()}

    def get(self, name: str) -> CatalogEntry:
        """The workflow of that name. Raises NotFound."""
        if name not in self.workflows:
            names = ", ".join(sorted(self.workflows)) or "there are none"
            raise NotFound(f"there is no workflow {name[:64]!r}", field="name", hint=names)
        return self.workflows[name]


def read_catalog(directories: Sequence[Path] = (), *, tools: Collection[str] | None = None) -> WorkflowCatalog:
    """Read all files; one in a later directory takes the place of an earlier one of the same name.

    Blocking: call it in a thread. `tools` None: names of tools are not checked.
    """
    sources = [*_built_in(), *(source for directory in directories for source in _in(directory))]
    named: dict[str, Workflow] = {}
    broken: list[WorkflowFault] = []
    sound: list[tuple[str, str, bool]] = []
    for file, text, built_in in sources:
        try:
            workflow = read_workflow(text, file=file, tools=tools)
        except InvalidWorkflow as error:
            broken.append(error.faults[0])
        else:
            named[workflow.name] = workflow
            sound.append((file, text, built_in))
    entries: dict[str, CatalogEntry] = {}
    for file, text, built_in in sound:
        try:
            workflow = read_workflow(text, file=file, tools=tools, workflows=named)
        except InvalidWorkflow as error:
            broken.append(error.faults[0])
        else:
            entries[workflow.name] = CatalogEntry(workflow=workflow, text=text, file=file, built_in=built_in)
    return WorkflowCatalog(workflows=dict(sorted(entries.items())), broken=tuple(broken))


def _built_in() -> Iterator[tuple[str, str, bool]]:
    for file in sorted(files(__package__ or "").joinpath("templates").iterdir(), key=lambda file: file.name):
        if file.name.endswith(SUFFIXES):
            yield file.name, file.read_text("utf-8"), True


def _in(directory: Path) -> Iterator[tuple[str, str, bool]]:
    """The workflow files of a directory; none where it does not exist."""
    if not directory.is_dir():
        return
    names = sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES and path.is_file())
    for path in names[:MAX_FILES]:
        # One byte more than the reader accepts, so that it reports the size itself.
        with path.open("rb") as file:
            yield str(path), file.read(MAX_BYTES + 1).decode("utf-8", "replace"), False
