"""A task handed to a running fleet as a library call."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import nats
import pytest

from swe_ai_fleet import DeliberateAsync
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, Unavailable
from swe_ai_fleet.settings import Settings
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO

SECONDS = 120


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEET_SERVER", "FLEET_TOKEN"):
        monkeypatch.delenv(name, raising=False)


async def test_it_answers_at_once_and_the_result_comes_by_itself(fleet: FleetUnderTest, repository: Path) -> None:
    task_id = f"async-{uuid.uuid4().hex[:8]}"
    listening = await nats.connect(fleet.running.nats_url, token=fleet.running.nats_token)
    results = await listening.subscribe(f"agent.results.{task_id}")
    await listening.flush()
    library = DeliberateAsync(repo=str(repository), settings=fleet.settings)

    accepted = await library.execute(task_id, HELLO, "Keep it short.", {"max_iterations": 20}, num_agents=1)

    assert accepted == {"task_id": task_id, "execution_id": accepted["execution_id"], "status": "PENDING"}
    told = json.loads((await results.next_msg(SECONDS)).data)
    await listening.close()
    assert (told["execution_id"], told["status"], told["winner"]) == (
        accepted["execution_id"],
        "completed",
        "agent-dev-1",
    )
    again = await library.execute(task_id, HELLO, "Keep it short.", {"max_iterations": 20}, num_agents=1)
    assert again == {**accepted, "status": "COMPLETED"}
    with pytest.raises(AlreadyExists) as refusal:
        await library.execute(task_id, "Something else", num_agents=1)
    assert refusal.value.field == "task_id"


async def test_what_is_malformed_names_its_field(fleet: FleetUnderTest, repository: Path, tmp_path: Path) -> None:
    library = DeliberateAsync(repo=str(repository), settings=fleet.settings)
    for field, changes in (
        ("task_id", {"task_id": "no spaces"}),
        ("constraints", {"constraints": {"max_iterations": "many"}}),
        ("constraints.max_iteration", {"constraints": {"max_iteration": 40}}),
        ("constraints.allowed_tools[0]", {"constraints": {"allowed_tools": ["read_file"]}}),
        ("constraints.timeout_seconds", {"constraints": {"timeout_seconds": 10**8}}),
        ("repo", {"constraints": {"repo_url": "no/such/place"}}),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            await library.execute(**{"task_id": "t", "task": HELLO, **changes})
        assert refusal.value.field == field
        if meant := {"max_iteration": "'max_iterations'", "allowed_tools[0]": "'files_read_file'"}.get(field[12:]):
            assert meant in str(refusal.value)
    nowhere = Settings(home=tmp_path / "home")
    with pytest.raises(Unavailable) as unreached:
        await DeliberateAsync("127.0.0.1:9", repo=str(repository), settings=nowhere).execute("t", HELLO)
    assert unreached.value.field == "server"
    with pytest.raises(InvalidRequest, match="FLEET_DEFAULT_REPOSITORY"):
        await DeliberateAsync(settings=fleet.settings).execute("t", HELLO)
