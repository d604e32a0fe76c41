"""Which tools a run holds and which its model is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.adapters.openai_model import WireWriter
from swe_ai_fleet.domain.task import Constraints, Role
from tests.tool_doubles import TASK, offered, shown


async def test_a_developer_is_shown_eight_functions_of_few_characters(tmp_path: Path) -> None:
    box = await offered(tmp_path)
    assert shown(box) == [
        "files_read_file", "files_edit_file", "files_search_in_files", "git_diff", "tests_run", "shell_run_command",
        "request_tools", "final_answer",
    ]  # fmt: skip
    # As they go out; what is for programs, or null where it is left out, is in the catalogue alone.
    writer = WireWriter()
    sent = writer.native(writer.conversation(()), box.specs, head=b"", strict=False).decode().partition('"tools":')[2]
    assert len(sent) <= 3_500
    assert not [
        word for word in ("anyOf", "expected_sha256", "idle_timeout", "max_results", "deselect") if word in sent
    ]


async def test_each_role_is_shown_what_it_needs(tmp_path: Path) -> None:
    by_role = {role: shown(await offered(tmp_path, task=replace(TASK, role=role))) for role in Role}
    assert not {"shell_run_command", "files_edit_file", "git_commit"} & set(by_role[Role.ARCHITECT])
    assert {"files_read_file", "files_repo_map", "git_log"} <= set(by_role[Role.ARCHITECT])
    assert "tests_lint" in by_role[Role.QA]
    without = replace(TASK, constraints=Constraints(denied_tools=("shell",)))
    assert "shell_run_command" not in shown(await offered(tmp_path, task=without))
    assert not {name for name in by_role[Role.DEV] if name.startswith("http_")}
    assert all(len(shown) <= 18 for shown in by_role.values())
