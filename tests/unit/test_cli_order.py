"""From the command line to the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.domain.task import UncommittedChanges, check_identifier
from tests.tables import table


def test_every_option_reaches_the_request_and_what_is_not_given_is_left_to_the_server(tmp_path: Path) -> None:
    repo = str(tmp_path)
    order = Order(
        description="Fix it",
        repo=repo,
        ref="main",
        agents=5,
        rounds=2,
        role="qa",
        checks=("make test", "make lint"),
        setup=("pip install x",),
        variables=("A=1", "B=x=y"),
        path=("bin",),
        network=("example.org", "*.example.net:8443"),
        branch="work/1",
        uncommitted=UncommittedChanges.INCLUDE,
        task_id="t-1",
        timeout_seconds=90,
        approve="Risky",
        attempt=2,
        max_tokens=5_000,
    )
    asked = order.request().orchestrate
    assert asked.role.upper() == "QA"
    asked.ClearField("role")
    assert asked == pb.OrchestrateRequest(
        task_id="t-1",
        task_description="Fix it",
        repo=pb.RepoRef(path=repo, ref="main", uncommitted=pb.UNCOMMITTED_CHANGES_INCLUDE),
        options=pb.OrchestratorOptions(num_agents=5, deliberation_rounds=2, enable_peer_review=True),
        constraints=pb.TaskConstraints(
            checks=asked.constraints.checks,
            timeout_seconds=90,
            max_tokens=5_000,
            network=pb.NetworkPolicy(allowed_hosts=["example.org", "*.example.net:8443"]),
        ),
        environment=pb.EnvironmentSpec(
            setup_commands=["pip install x"], variables={"A": "1", "B": "x=y"}, path_directories=["bin"]
        ),
        delivery=asked.delivery,
        approval=pb.APPROVAL_POLICY_RISKY,
        attempt=2,
        memory=pb.MemoryOptions(),
    )
    assert [check.command for check in asked.constraints.checks] == ["make test", "make lint"]
    assert asked.delivery.branch == "work/1"
    plain = Order(description="Fix it", repo=repo).request().orchestrate
    assert (plain.options.num_agents, plain.constraints.max_tokens, plain.attempt) == (0, 0, 0)
    assert not plain.HasField("environment") and not plain.constraints.HasField("network")
    assert not Order(description="x", repo=repo, rounds=0).request().orchestrate.options.enable_peer_review
    alone = Order(description="x", repo=repo, deliberate_only=True, agents=2, rounds=3).request().deliberate
    assert (alone.num_agents, alone.rounds) == (2, 3)
    for url in ("https://example.org/a.git", "ssh://git@example.org/a", "git@example.org:a/b.git", "host:path"):
        repo_of = Order(description="x", repo=url, ref="v1").request().orchestrate.repo
        assert (repo_of.url, repo_of.path, repo_of.ref) == (url, "", "v1")


@pytest.mark.parametrize("description", ["Füge etwas hinzu!", "日本", "../../etc", "a" * 500, "x.lock"])
def test_a_made_up_id_is_valid_and_another_one_each_time(tmp_path: Path, description: str) -> None:
    ids = {Order(description=description, repo=str(tmp_path)).request().orchestrate.task_id for _ in range(5)}
    assert len(ids) == 5
    for task_id in ids:
        check_identifier(task_id, field="task_id")


@table(
    ("order", "says"),
    [
        (Order(description="  "), "empty"),
        (Order(description="x", task_id="a/b"), "not a valid id"),
        (Order(description="x", role="CHEF"), "unknown role"),
        (Order(description="x", variables=("NOPE",)), "K=V"),
        (Order(description="x", variables=("=x",)), "K=V"),
        (Order(description="x", approve="maybe"), "maybe"),
        *(
            (Order(description="x", repo=place), "neither a directory nor a URL")
            for place in ("/does/not/exist", "~no-such-user-here/app", "a\0b", "x" * 5_000)
        ),
        (Order(description="x", branch="b", deliberate_only=True), "exclude"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(order: Order, says: str) -> None:
    with pytest.raises(CommandFault, match=says) as caught:
        order.request()
    assert caught.value.exit_code is Exit.USAGE
