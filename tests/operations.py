"""Every operation of the catalogue, with arguments that are valid for each in the repository below."""

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

PATCH = "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
SQL = "SELECT 1"

ARGUMENTS: Mapping[str, Mapping[str, object]] = {
    "files_read_file": {"path": "app.py"},
    "files_write_file": {"path": "new.py", "content": "y = 1\n"},
    "files_append_file": {"path": "app.py", "content": "y = 1\n"},
    "files_edit_file": {"path": "app.py", "old": "x = 1", "new": "x = 2"},
    "files_multi_edit": {"path": "app.py", "edits": [{"old": "x = 1", "new": "x = 2"}]},
    "files_apply_patch": {"patch": PATCH},
    "files_move_file": {"source": "app.py", "destination": "moved.py"},
    "files_copy_file": {"source": "app.py", "destination": "copied.py"},
    "files_undo_edit": {"path": "app.py"},
    "files_diff_files": {"path_a": "app.py", "path_b": "test_app.py"},
    "files_search_in_files": {"pattern": "x"},
    "files_list_files": {},
    "files_repo_map": {},
    "files_delete_file": {"path": "app.py"},
    "files_mkdir": {"path": "directory"},
    "files_file_info": {"path": "app.py"},
    "git_status": {},
    "git_add": {"paths": ["."]},
    "git_commit": {"message": "A change"},
    "git_diff": {},
    "git_log": {},
    "git_show": {"ref": "HEAD"},
    "git_checkout": {"ref": "other"},
    "git_branch": {"name": "third"},
    "git_blame": {"path": "app.py"},
    "git_stash": {},
    "git_merge": {"ref": "other"},
    "git_revert": {"ref": "HEAD"},
    "git_clone": {"url": "https://example.org/a.git", "directory": "clone"},
    "git_fetch": {},
    "git_pull": {},
    "git_push": {},
    "tests_run": {},
    "tests_pytest": {},
    "tests_unittest": {},
    "tests_go_test": {},
    "tests_npm_test": {},
    "tests_cargo_test": {},
    "tests_make_test": {},
    "tests_lint": {},
    "shell_run_command": {"command": "true"},
    "docker_build": {"tag": "image:1"},
    "docker_run": {"image": "image:1"},
    "docker_exec": {"container": "box", "command": ["true"]},
    "docker_ps": {},
    "docker_logs": {"container": "box"},
    "docker_stop": {"container": "box"},
    "docker_rm": {"name": "box"},
    "docker_inspect": {"name": "box"},
    "docker_images": {},
    "http_get": {"url": "http://127.0.0.1/"},
    "http_head": {"url": "http://127.0.0.1/"},
    "http_post": {"url": "http://127.0.0.1/"},
    "http_put": {"url": "http://127.0.0.1/"},
    "http_patch": {"url": "http://127.0.0.1/"},
    "http_delete": {"url": "http://127.0.0.1/"},
    "db_postgresql_query": {"connection": "main", "sql": SQL},
    "db_redis_command": {"connection": "main", "command": "PING"},
    "db_neo4j_query": {"connection": "main", "cypher": "RETURN 1"},
    "db_sqlite_query": {"path": "data.sqlite", "sql": SQL},
    "db_describe_schema": {"path": "data.sqlite"},
    "db_explain": {"path": "data.sqlite", "sql": SQL},
    "calculator": {"expression": "6 * 7"},
    "python_executor": {"code": "result = 42"},
    "file_reader": {"file_path": "app.py"},
    "web_search": {"query": "tests"},
    "read_webpage": {"url": "http://127.0.0.1/"},
    "search_wikipedia": {"query": "tests"},
    "ask_user": {"question": "Which one?"},
    "propose_approach": {"approach": "Small steps.", "reasoning": "They are small."},
}
"""Arguments that are enough for one call. A new operation gets a row here, or the tests of every operation fail."""


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
        assert self.spec.name in ARGUMENTS, f"tests/operations.py has no arguments for {self.spec.name}"
        return dict(ARGUMENTS[self.spec.name])

    def __str__(self) -> str:
        return self.spec.name


def definitions_of(kit: type[Toolkit]) -> Mapping[str, Any]:
    """What a toolkit offers; the built-in tools are known only once they are made."""
    return BuiltinTools().definitions if kit is BuiltinTools else kit.definitions


OPERATIONS = tuple(Operation(kit=kit, method=method) for kit in toolkits() for method in definitions_of(kit))


def make_workspace(path: Path) -> Path:
    """A repository in which all of the arguments above mean something, with changes of every kind in it."""
    files = {"app.py": "x = 1\n", "test_app.py": "import app\n\n\ndef test_it():\n    assert app.x\n"}
    make_repository(path, files)
    commit_files(path, {"README": "About it.\n"}, message="Second commit")
    git(path, "branch", "other")
    (path / "untracked.txt").write_text("new\n")
    (path / "README").write_text("About it, changed.\n")
    return path
