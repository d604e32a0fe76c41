"""A batch at work against a server whose agents are scripted: what its tests share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_ai_fleet.domain.task import Task
from tests.environments import home_at
from tests.fleet_command import Ran, Shell
from tests.orchestrator_service import Service
from tests.scripted_fleet import PROVEN, ScriptedRun


@dataclass(kw_only=True)
class Desk:
    """A batch file, what is made of it, and the fleet that it goes to."""

    shell: Shell
    service: Service = field(default_factory=Service)

    def __post_init__(self) -> None:
        self.service.fleet.default = ScriptedRun(checks=(PROVEN,))
        self.clone.mkdir(parents=True)
        home_at(self.shell.home)

    @property
    def directory(self) -> Path:
        return self.shell.home.parent

    @property
    def clone(self) -> Path:
        return self.directory / "clones/acme__widgets"

    def write(self, *records: object, **fields: object) -> None:
        """Records, names of records, or bytes as they are."""
        lines: list[bytes] = []
        for one in records:
            if isinstance(one, str):
                one = {"instance_id": one, "task": "Greet", "repo": "./clones/acme__widgets", **fields}
            lines.append(one if isinstance(one, bytes) else json.dumps(one).encode())
        (self.directory / "set.jsonl").write_bytes(b"\n".join((*lines, b"")))

    def words(self, *more: str, command: str = "batch") -> tuple[str, ...]:
        place = () if "--server" in more else ("--server", self.service.address or "127.0.0.1:9")
        return (command, "set.jsonl", "--stagger", "0", "--repo-root", "clones", *place, *more)

    async def fleet(self, *more: str, command: str = "batch") -> Ran:
        return await self.shell.fleet(*self.words(*more, command=command))

    async def tasks(self, *more: str) -> Mapping[str, Task]:
        """Run the batch on a fleet of its own: what agents were shown, by the task's id."""
        async with self.service.running():
            ran = await self.fleet("--agents", "1", *more)
        assert ran.code == 0, ran.err
        return {one.task.task_id: one.task for one in self.service.fleet.begun}

    def rows(self, name: str = "set.results.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / name).read_text().splitlines() if line.endswith("}")]

    @property
    def patches(self) -> Mapping[str, str]:
        kept = json.loads((self.directory / "set.preds.json").read_text())
        assert {one["model_name_or_path"] for one in kept} <= {"swe-ai-fleet"}
        return {one["instance_id"]: one["model_patch"] for one in kept}
