"""Every operation of the catalogue, with arguments that are valid for each, and a repository for some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from swe_ai_fleet.tools import Toolkit
from swe_ai_fleet.tools.builtin import BuiltinTools
from swe_ai_fleet.tools.catalogue import toolkits

ARGUMENTS: Mapping[str, Mapping[str, object]] = {
    "files_read_file": {"path": "app.py"},
    "files_multi_edit": {"path": "app.py", "edits": [{"old": "x = 1", "new": "x = 2"}]},
    "files_diff_files": {"path_a": "app.py", "path_b": "test_app.py"},
    "files_file_info": {"path": "app.py"},
    "git_show": {"ref": "HEAD"},
    "git_blame": {"path": "app.py"},
    "calculator": {"expression": "6 * 7"},
    "file_reader": {"file_path": "app.py"},
}
"""Arguments that mean something in the repository below, or that the type of a schema does not tell."""


def taken_by(schema: Mapping[str, Any]) -> Any:
    """The least that a schema takes."""
    match schema["type"]:
        case "string":
            return "x"
        case "integer":
            return 1
        case "array":
            return [taken_by(schema["items"])]
        case _:
            return {name: taken_by(schema["properties"][name]) for name in schema.get("required", ())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the catalogue."""

    kit: type[Toolkit]
    method: str

    @property
    def definition(self) -> Any:
        return definitions_of(self.kit)[self.method]

    @property
    def spec(self) -> OperationSpec:
        return self.definition.spec

    @property
    def arguments(self) -> dict[str, object]:
        return dict(ARGUMENTS.get(self.spec.name) or taken_by(self.spec.parameters))

    def __str__(self) -> str:
        return self.spec.name


def definitions_of(kit: type[Toolkit]) -> Mapping[str, Any]:
    """What a toolkit offers; the built-in tools are known only once they are made."""
    return BuiltinTools().definitions if kit is BuiltinTools else kit.definitions


OPERATIONS = tuple(Operation(kit=kit, method=method) for kit in toolkits() for method in definitions_of(kit))


def make_workspace(path: Path) -> Path:
    """A repository in which the arguments above mean something, with changes of every kind in it."""
    files = {"app.py": "x = 1\n", "test_app.py": "import app\n\n\ndef test_it():\n    assert app.x\n"}
    make_repository(path, files)
    commit_files(path, {"README": "About it.\n"}, message="Second commit")
    git(path, "branch", "other")
    (path / "untracked.txt").write_text("new\n")
    (path / "README").write_text("About it, changed.\n")
    return path
