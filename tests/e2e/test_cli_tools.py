"""`fleet tools` as its users run it: processes of its own over a directory, without a running fleet."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.catalogue import operations
from tests.environments import home_at
from tests.fleet_command import Ran, Shell

SECRET = "sk-of-the-model-server-1234"
NAMES = [*operations(), *SubAgentTools.definitions]
needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap (bwrap) on PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools(Shell):
    """Runs `fleet tools` with one home over one directory."""

    @property
    def audit(self) -> Path:
        return self.home / "audit" / "tools.jsonl"

    @property
    def entries(self) -> list[AuditEntry]:
        return [from_json(AuditEntry, line) for line in self.audit.read_bytes().splitlines()]

    async def run(self, operation: str, *arguments: str) -> Ran:
        return await self.fleet("tools", "run", operation, *arguments)


@pytest.fixture
def shell(tmp_path: Path, warm: str) -> Tools:
    root = tmp_path / "project"
    root.mkdir()
    (root / "app.py").write_text(f"x = 1\nkey = '{SECRET}'\n")
    return Tools(home=home_at(tmp_path / "home"), directory=root, warm=warm, more={"FLEET_MODEL_API_KEY": SECRET})


class TestList:
    async def test_the_catalogue_with_its_traits(self, shell: Tools) -> None:
        asked = ((), ("--json",), ("--role", "qa", "--read-only", "--json"), ("--role", "pilot"))
        ran = await asyncio.gather(*(shell.fleet("tools", "list", *options) for options in asked))
        listed, told, reading, wrong = ran
        lines = listed.out.splitlines()
        assert [name for line in lines for name in line.split()[:1] if name in NAMES] == NAMES
        (row,) = (line for line in lines if line.strip().startswith("shell_run_command"))
        assert row.split()[1:5] == ["-", "high", "-", "yes"]
        tools = {tool["name"]: tool for tool in told.document["tools"]}
        assert list(tools) == NAMES
        read = tools["files_read_file"]
        assert (read["read_only"], read["risk"], read["locks"]) == (True, "low", ["workspace"])
        assert (read["roles"], read["parameters"]["required"]) == ([role.value for role in Role], ["path"])
        assert wrong.code == 2
        of_qa = reading.document["tools"]
        assert {"files_read_file", "git_diff"} <= {tool["name"] for tool in of_qa} < set(NAMES)
        assert all(tool["read_only"] and not tool["network"] for tool in of_qa)


class TestRun:
    async def test_an_operation_and_its_audit(self, shell: Tools) -> None:
        ran = await shell.run("files_read_file", "path=app.py", "start_line=2")
        assert ran.code == 0
        assert "key = '[masked]'" in ran.out and "x = 1" not in ran.out
        (entry,) = shell.entries
        assert (entry.tool, entry.operation, entry.outcome) == ("files", "read_file", Outcome.SUCCESS)
        assert entry.arguments == {"path": "app.py", "start_line": 2}
        assert str(shell.audit) in ran.err and entry.hash in ran.err
        assert shell.audit.stat().st_mode & 0o077 == 0

    async def test_what_does_not_work_is_said_and_audited(self, shell: Tools) -> None:
        for arguments, code, said, outcome in (
            (("files_read_file", "path=../home"), 1, "outside", Outcome.REFUSED),
            (("files_write_file", "--read-only", "path=a", "content=b"), 1, "may only read", Outcome.REFUSED),
            (("files_read_file", "pth=a"), 2, "Signature: files_read_file(", Outcome.INVALID),
        ):
            ran = await shell.run(*arguments)
            assert (ran.code, ran.out.startswith("Error: "), said in ran.out) == (code, True, True), ran
            assert shell.entries[-1].outcome is outcome

    @needs_sandbox
    async def test_what_agents_have_beside_the_catalogue(self, shell: Tools) -> None:
        plan = Turn(content='{"plan": ["Look", "Change"], "reasoning": "In this order."}')
        clone = make_repository(shell.home.parent / "clone", {"README.md": "# Rounding\n\nHalf up, to whole cents.\n"})
        asked = ("search_memory", 'entities=["Stripe"]', 'queries=["rounding"]', "--workspace", str(clone), "--json")
        async with ScriptedModelServer(Script.of(plan)) as server:
            with_model = replace(shell, model_url=server.url)
            found, planned = await asyncio.gather(
                shell.run(*asked), with_model.run("call_planner", "goal=Greet", "--json")
            )
        known = found.document["metadata"]
        assert (known["coverage"], known["gaps"], known["sources"]) == (50.0, ["Stripe"], ["README.md#Rounding"])
        assert planned.document["metadata"]["plan"] == ["Look", "Change"]
        assert {entry.operation for entry in shell.entries} == {"search_memory", "call_planner"}

    async def test_bad_usage(self, shell: Tools) -> None:
        calls = {
            ("files_raed_file",): "did you mean 'files_read_file'",
            ("files_read_file", "--args", "{"): "JSON",
        }
        for ran, said in zip(await asyncio.gather(*(shell.run(*call) for call in calls)), calls.values(), strict=True):
            assert (ran.code, ran.out, said in ran.err) == (2, "", True), ran
        assert not shell.audit.exists()

    @needs_sandbox
    async def test_commands_run_in_the_sandbox(self, shell: Tools) -> None:
        command = f"pwd; cat {shell.home}/audit/tools.jsonl; exit 3"
        ran = await shell.run("shell_run_command", f"command={command}")
        assert ran.code == 1
        assert "Error: exit code 3" in ran.out and "/workspace" in ran.out
        assert "No such file" in ran.out
        slow = await shell.run("shell_run_command", "command=sleep 600", "timeout_seconds=0.3", "--json")
        assert (slow.code, slow.document["outcome"]) == (4, "timeout")
        assert [entry.outcome for entry in shell.entries] == ["started", "error", "started", "timeout"]
