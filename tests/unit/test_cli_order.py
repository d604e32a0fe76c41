"""From the command line to the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.order import Order, repo_ref
from swe_ai_fleet.domain.task import UncommittedChanges, check_identifier


def test_every_option_reaches_the_request_and_what_is_not_given_is_left_to_the_server(tmp_path: Path) -> None:
    order = Order(
        description="Fix it",
        repo=str(tmp_path),
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
    )
    assert order.request() == order.request()
    asked = order.request().orchestrate
    repo = pb.RepoRef(path=str(tmp_path), ref="main", uncommitted=pb.UNCOMMITTED_CHANGES_INCLUDE)
    assert (asked.task_id, asked.task_description, asked.role.upper(), asked.repo) == ("t-1", "Fix it", "QA", repo)
    options = asked.options
    assert (options.num_agents, options.deliberation_rounds, options.enable_peer_review) == (5, 2, True)
    assert [check.command for check in asked.constraints.checks] == ["make test", "make lint"]
    assert asked.constraints.timeout_seconds == 90
    assert list(asked.constraints.network.allowed_hosts) == ["example.org", "*.example.net:8443"]
    variables = {"A": "1", "B": "x=y"}
    assert asked.environment == pb.EnvironmentSpec(
        setup_commands=["pip install x"], variables=variables, path_directories=["bin"]
    )
    assert asked.delivery.branch == "work/1"
    plain = Order(description="Fix it", repo=str(tmp_path)).request().orchestrate
    assert plain.options.num_agents == 0
    assert not plain.HasField("environment") and not plain.constraints.HasField("network")
    assert not Order(description="x", repo=str(tmp_path), rounds=0).request().orchestrate.options.enable_peer_review
    alone = Order(description="x", repo=str(tmp_path), deliberate_only=True, agents=2, rounds=3).request().deliberate
    assert (alone.num_agents, alone.rounds) == (2, 3)


@pytest.mark.parametrize("description", ["Füge etwas hinzu!", "日本", "../../etc", "a" * 500, "x.lock"])
def test_a_made_up_id_is_valid_and_another_one_each_time(tmp_path: Path, description: str) -> None:
    ids = {Order(description=description, repo=str(tmp_path)).request().orchestrate.task_id for _ in range(5)}
    assert len(ids) == 5
    for task_id in ids:
        check_identifier(task_id, field="task_id")


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (Order(description="  "), "empty"),
        (Order(description="x", task_id="a/b"), "not a valid id"),
        (Order(description="x", role="CHEF"), "unknown role"),
        (Order(description="x", variables=("NOPE",)), "K=V"),
        (Order(description="x", variables=("=x",)), "K=V"),
        (Order(description="x", repo="/does/not/exist"), "neither a directory nor a URL"),
        (Order(description="x", branch="b", deliberate_only=True), "exclude"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(order: Order, says: str) -> None:
    with pytest.raises(CommandFault, match=says) as caught:
        order.request()
    assert caught.value.exit_code is Exit.USAGE


@pytest.mark.parametrize(
    "url", ["https://example.org/a.git", "ssh://git@example.org/a", "git@example.org:a/b.git", "host:path"]
)
def test_urls_are_sent_as_urls(url: str) -> None:
    ref = repo_ref(url, ref="v1", uncommitted=UncommittedChanges.REFUSE)
    assert ref == pb.RepoRef(url=url, ref="v1")


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert repo_ref(".", ref="", uncommitted=UncommittedChanges.IGNORE).path == str(tmp_path.resolve())


@pytest.mark.parametrize("alone", [False, True])
def test_what_people_approve(alone: bool) -> None:
    request = Order(description="x", approve="Risky", deliberate_only=alone).request()
    task = request.deliberate if alone else request.orchestrate
    assert task.approval == pb.APPROVAL_POLICY_RISKY
    with pytest.raises(CommandFault, match="maybe") as fault:
        Order(description="x", approve="maybe", deliberate_only=alone).request()
    assert "plan, risky, every" in fault.value.hint


@pytest.mark.parametrize("location", ["~no-such-user-here/app", "a\0b", "x" * 5_000, ""])
def test_what_names_no_directory_is_told_so(location: str) -> None:
    with pytest.raises(CommandFault, match="neither a directory nor a URL"):
        repo_ref(location, ref="", uncommitted=UncommittedChanges.REFUSE)
