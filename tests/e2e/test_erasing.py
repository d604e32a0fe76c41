"""A secret that leaked into a whole fleet, erased as the runbook says."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.erasure import everywhere
from tests.fleet_command import Shell
from tests.memory_script import RECALLS
from tests.scripts import HELLO_FILES


@pytest.mark.slow  # quick: integration/test_erasure.py
async def test_a_leaked_secret_is_erased_from_a_fleet_at_work(
    fleet: FleetUnderTest, shell: Shell, tmp_path: Path
) -> None:
    marker, home = f"leak-{uuid.uuid4().hex[:10]}", fleet.settings.home
    name = f"e-{uuid.uuid4().hex[:8]}"
    files = HELLO_FILES | {"utils.py": f"{HELLO_FILES['utils.py']}\n# {marker}\n"}
    where = make_repository(tmp_path / "repository", files)
    ran = await shell.fleet(
        *("run", "--json", "--repo", str(where), "--agents", "1", "--rounds", "0", "--task-id", name, "--remember"),
        *("--namespace", f"repository:{name}", f"Say hello to the world, {marker} {RECALLS}"),
    )
    execution = ran.document["execution_id"]
    running = fleet.running
    settings = fleet.settings.model_copy(update={"nats_url": running.nats_url, "nats_token": running.nats_token})
    async with connect_log(settings, name="scan") as log:
        # It is recorded a moment after its end, the work last.
        while not [one async for one in log.changes().read() if one and execution in str(one.change)]:
            pass
        assert len(await everywhere(log, marker, home)) > 5
        before = await shell.fleet("audit", "verify", name, "--json")
        dry = await shell.fleet("erase", "execution", name, "--reason", "a key", "--dry-run")
        assert (
            dry.code == 0
            and "AGENT_EVENTS" in dry.out
            and "OBJ_agent-blobs" in dry.out
            and "would be erased" in dry.out
        )
        erased = await shell.fleet("erase", "execution", name, "--reason", "a key was printed", "--json")
        assert (erased.code, erased.document["record_id"]) == (0, execution), erased.err
        assert not (left := await everywhere(log, marker, home)), left
    shown, again = (
        await shell.fleet("show", execution),
        await shell.fleet("run", "--repo", str(where), "--task-id", name, "x"),
    )
    assert shown.code and "was erased on" in shown.err and "a key was printed" in shown.err
    assert again.code and "was erased on" in again.err and "--attempt 2" in again.err
    after = await shell.fleet("audit", "verify", execution, "--json")
    chains = [
        {key: chain[key] for key in ("agent_id", "entries", "head", "recorded_head", "intact", "signed_entries")}
        for document in (before.document, after.document)
        for chain in document["chains"]
    ]
    half = len(chains) // 2
    assert after.code == 0 and half and chains[:half] == chains[half:]
    assert all(chain["redacted"] for chain in after.document["chains"])
