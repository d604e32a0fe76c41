"""`fleet batch` and `fleet study` against a real server on a real socket, whose agents are scripted."""

from __future__ import annotations

import asyncio
import json

from tests.extensions.batch.desk import Desk
from tests.fleet_command import ended
from tests.lost_answers import Proxy
from tests.scripted_fleet import FAILED, PROVEN, ScriptedRun

COMMIT = "a" * 40
SWE_BENCH = {
    "repo": "acme/widgets",
    "instance_id": "acme__widgets-42",
    "base_commit": COMMIT,
    "problem_statement": "Widgets turn the wrong way.",
    "hints_text": "Look at turn().",
    "patch": "THE SOLUTION",
    "test_patch": "diff --git a/tests/test_turn.py b/tests/test_turn.py\nTHE TESTS\n",
    "FAIL_TO_PASS": '["tests/test_turn.py::test_left"]',
    "PASS_TO_PASS": ["tests/test_turn.py::test_right[a b]"],
    "version": "1.0",
    "environment_setup_commit": "b" * 40,
}


async def test_agents_are_shown_the_problem_and_nothing_of_its_solution(desk: Desk) -> None:
    own = {
        "task_id": "greet", "task": "Greet people", "repo": "./clones/acme__widgets", "ref": "main", "role": "qa",
        "test_cmd": "make test", "checks": ["make lint"], "setup": "make deps", "env": {"A": "2"},
        "context": "Politely.", "agents": 2, "rounds": 0, "timeout_seconds": 7, "evaluation": "make secret",
    }  # fmt: skip
    names = ("a b", "a_b", "a-b", "é" * 60, "é" * 61, "x" * 200, "..", "-", "a/b")
    repos = ("https://git.example/a.git", "git@git.example:a/b", "acme/widgets", "./clones/acme__widgets")
    records = ({"instance_id": f"r{number}", "task": "x", "repo": one} for number, one in enumerate(repos))
    desk.write(SWE_BENCH, own, *names, *records)
    tasks = await desk.tasks("--check", "true", "--env", "A=1", "--env", "B=1", "--rounds", "2")
    bench, ours = tasks["batch-set-acme__widgets-42"], tasks["batch-set-greet"]
    assert bench.description == "Widgets turn the wrong way."
    assert (bench.repo.location, bench.repo.commit) == (str(desk.clone), COMMIT)
    sent = str(tasks)
    secrets = ("THE SOLUTION", "THE TESTS", "test_left", "test_right", "Look at", "make secret")
    assert not any(secret in sent for secret in secrets)
    # What a record says goes before what holds for all.
    assert [check.command for check in ours.constraints.checks] == ["make lint", "make test"]
    assert list(ours.environment.setup) == ["make deps"]
    assert dict(ours.environment.variables) == {"A": "2", "B": "1"}
    assert (ours.role, ours.num_agents, ours.rounds, ours.repo.ref) == ("QA", 2, 0, "main")
    assert (ours.context, ours.constraints.limits.timeout_seconds) == ("Politely.", 7)
    # Each record has a valid task id of its own, and its repository.
    assert len(tasks) == 2 + len(names) + len(repos)
    places = [tasks[f"batch-set-r{number}"].repo.location for number in range(4)]
    assert places == [*repos[:2], str(desk.clone), str(desk.clone)]
    desk.write(SWE_BENCH, {"instance_id": "t", "task": "x", "repo": "other/one"}, {"instance_id": "u", "task": "x"})
    templates = ("--repo-template", "https://git.example/{repo}.git", "--repo", "./clones/acme__widgets")
    tasks = await desk.tasks("--hints", "--name", "other", *templates)
    assert "Look at turn()." in tasks["batch-other-acme__widgets-42"].context
    assert tasks["batch-other-t"].repo.location == "https://git.example/other/one.git"
    assert tasks["batch-other-u"].repo.location == str(desk.clone)


BAD: tuple[tuple[object, str], ...] = (
    (b"{", "not valid JSON"),
    (b"[1]", "not a JSON object"),
    (b"x" * 20_000_000, "bytes"),
    ({"problem_statement": "x"}, "instance_id"),
    *(({"instance_id": name, "task": "x"}, "instance_id") for name in ("a\nb", 5)),
    ({"instance_id": "a"}, "problem_statement"),
    ({"instance_id": "first", "task": "x"}, "is already in line 1"),
    ({"instance_id": "a", "task": "nul \0"}, "NUL"),
    *(
        ({"instance_id": "a", "task": "x", field: value}, told)
        for field, value, told in (
            ("FAIL_TO_PASS", "[1", "FAIL_TO_PASS must be a list"),
            ("checks", {}, "checks must be a list"),
            ("agents", -1, "agents"),
            ("env", {"A": 1}, "env"),
        )
    ),
    *(
        ({"instance_id": name, "task": "x", "repo": repo}, "repo")
        for name, repo in zip("abcd", ("", "acme/unknown", "acme/../../etc", "./nowhere"), strict=True)
    ),
)


async def test_a_bad_line_is_named_and_holds_nobody_up(desk: Desk) -> None:
    desk.write("first", b"", *(line for line, _ in BAD), "last")
    async with desk.service.running():
        ran = await desk.fleet("--json")
        *rows, summary = [json.loads(line) for line in ran.out.splitlines()]
        assert sorted(row["instance_id"] for row in rows) == ["first", "last"]
        told = [(one["line"], one["reason"]) for one in summary["bad_lines"]]
        assert [line for line, _ in told] == list(range(3, 3 + len(BAD)))
        for (_, reason), (line, expected) in zip(told, BAD, strict=True):
            assert expected in reason, (line, reason)
        desk.write("more", b"no record")
        strict = await desk.fleet("--strict")
        assert (strict.code, "line 2" in strict.err) == (2, True)
        desk.write(b"no record")
        assert "contains no task" in (await desk.fleet()).err
    assert len(desk.service.fleet.begun) == 2 * 3


async def test_what_was_refused_or_not_accepted_is_told_and_runs_again_on_request_only(desk: Desk) -> None:
    assert (await desk.fleet()).code == 2
    desk.service.fleet.default = ScriptedRun(checks=(FAILED,))
    desk.write("a", {"instance_id": "b", "task": "x", "repo": "acme/widgets", "timeout_seconds": 10**9})
    without = await desk.shell.fleet("batch", "set.jsonl", "--repo-root", "clones", FLEET_TOKEN="")
    assert (without.code, "no fleet runs" in without.err, desk.patches) == (3, True, {})
    async with desk.service.running():
        refused = await desk.fleet("--agents", "1")
        assert (refused.code, "constraints.timeout_seconds" in refused.err) == (1, True)
        # A line that was cut off is none.
        with (desk.directory / "set.results.jsonl").open("ab") as results:
            results.write(b'{"instance_id": "c", "ta')
        desk.write("a", "b")
        assert (await desk.fleet("--agents", "1")).code == 1
        assert (len(desk.service.fleet.begun), desk.patches) == (2, {"a": "", "b": ""})
        desk.service.fleet.default = ScriptedRun(checks=(PROVEN,))
        ran = await desk.fleet("--agents", "1", "--retry", "--json")
    told = sorted((row["instance_id"], row["status"], row["attempt"]) for row in desk.rows())
    assert told == [
        ("a", "completed", 2), ("a", "no_winner", 1), ("b", "completed", 2), ("b", "error", 1), ("b", "no_winner", 1),
    ]  # fmt: skip
    *rows, summary = [json.loads(line) for line in ran.out.splitlines()]
    assert sorted(row["instance_id"] for row in rows) == ["a", "b"]
    assert (summary["records"], summary["exit_code"], summary["accepted"]) == ({"completed": 2}, 0, 2)


async def test_a_fleet_that_comes_back_is_gone_on_with(desk: Desk) -> None:
    let = asyncio.Event()
    desk.service.fleet.default = ScriptedRun(checks=(PROVEN,), after=let)
    desk.write("a", "b")
    relay = Proxy("@127.0.0.1:9")
    async with relay.running():
        async with desk.service.running():
            relay.port = int(desk.service.address.rpartition(":")[2])
            place = ("--server", relay.url.rpartition("@")[2])
            process = await desk.shell.start(*desk.words("--agents", "1", *place))
            await desk.service.fleet.started(2)
        assert process.stderr is not None
        told = b""
        async with asyncio.timeout(60):
            while b"waiting" not in told:
                told += await process.stderr.read(1_000)
        let.set()
        async with desk.service.running():
            relay.port = int(desk.service.address.rpartition(":")[2])
            ran = await ended(process)
            assert ran.code == 0, ran.err
            assert len(list(desk.service.executions.projection.select("default"))) == 2
    assert sorted(desk.patches) == ["a", "b"]


async def test_each_part_of_a_study_has_tasks_and_results_of_its_own(desk: Desk) -> None:
    desk.write("a", agents=7, rounds=1)
    study = ("--candidates", "3, 1,3", "--without", "reviews")
    async with desk.service.running():
        ran = await desk.fleet(*study, "--json", command="study")
        assert ran.code == 0, ran.err
        tasks = {one.task.task_id: one.task for one in desk.service.fleet.begun}
        wrong = await desk.fleet("--candidates=1,x", "--json", command="study")
        assert (wrong.code, wrong.document["error"]["field"]) == (2, "candidates")
    assert sorted((one.num_agents, one.rounds) for one in tasks.values()) == [(1, 1), (3, 0), (3, 1)]
    assert [(arm["candidates"], arm["without"], arm["passed"]["of"]) for arm in ran.document["arms"]] == [
        (1, "", 1), (3, "", 1), (3, "reviews", 1),
    ]  # fmt: skip
    kept = desk.directory / "set.study"
    assert len(list(kept.glob("*.results.jsonl"))) == (kept / "details.jsonl").read_text().count("execution_id") == 3
    assert "100% (1/1, 21% to 100%)" in (kept / "report.md").read_text()
