"""The `fleet` command as its users run it: a process of its own against a real fleet."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import psutil
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient, connect
from swe_ai_fleet.cli.screen import CommandFault
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.conftest import FleetUnderTest
from tests.fleet_client import connected
from tests.fleet_command import SECONDS, Ran, Shell, ended
from tests.scripts import FAILING, GREETINGS, HELLO, HELLO_FILES, SLEEP, SLEEPING

CHECK = "python3 -c 'import utils; assert utils.hello_world() == \"Hello, World!\"'"


@pytest.fixture
async def client(fleet: FleetUnderTest) -> AsyncIterator[FleetClient]:
    async with connect(fleet.running.address, fleet.running.token) as opened:
        yield opened


@pytest.fixture(scope="session")
async def solved(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """One task that three agents have solved in three ways, and its repository."""
    where = make_repository(tmp_path_factory.mktemp("solved") / "repository", {**HELLO_FILES, "ruff.toml": ""})
    ran = await shell.fleet(
        *("run", "--json", "--repo", str(where), "--rounds", "0", "--task-id", task_id(), f"{GREETINGS} Greet.")
    )
    return ran, where


def task_id() -> str:
    return f"cli-{uuid.uuid4().hex[:10]}"


async def found(client: FleetClient, name: str) -> str:
    """The execution of a task once it is accepted."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await client.find(name)
            except CommandFault:
                await asyncio.sleep(0.05)


async def at_work(client: FleetClient, name: str) -> str:
    """The execution of a task once an agent has started a command."""
    execution_id = await found(client, name)
    async for event in client.events(execution_id):
        if event.type == "tool_started":
            return execution_id
    raise AssertionError("the execution ended before any command started")


def of_type(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event["type"] == kind]


async def test_run_ends_with_the_candidate_that_the_evidence_prefers(
    solved: tuple[Ran, Path], fleet: FleetUnderTest
) -> None:
    ran, repository = solved
    document = ran.document
    assert (ran.code, document["exit_code"], document["status"], ran.err) == (0, 0, "completed", "")
    candidates = document["candidates"]
    passed = [{check["name"]: check["passed"] for check in candidate["checks"]} for candidate in candidates]
    assert [candidate["rank"] for candidate in candidates] == [1, 2, 3]
    assert [(one["tests"], one["lint"]) for one in passed] == [(True, True), (True, False), (False, True)]
    assert candidates[0]["score"] > candidates[1]["score"] > candidates[2]["score"]
    assert [candidate["accepted"] for candidate in candidates] == [True, True, False]
    assert document["winner"] == candidates[0]["candidate_id"]
    assert document["commit"] == git(repository, "rev-parse", document["branch"]).strip()
    assert "+    return 'Hello, World!'" in document["diff"]
    assert "hello_world" in git(repository, "show", f"{document['branch']}:utils.py")
    assert git(repository, "status", "--porcelain") == ""
    # Who subscribes late reads everything: the result of each agent, and one of the whole.
    async with await nats.connect(fleet.running.nats_url, token=fleet.running.nats_token) as connection:
        subject, stream = f"agent.results.{document['task_id']}", connection.jetstream()
        each = await stream.subscribe(f"{subject}.>", ordered_consumer=True)
        agents = [json.loads((await each.next_msg(timeout=10)).data)["agent_id"] for _ in candidates]
        assert sorted(agents) == sorted(candidate["candidate_id"] for candidate in candidates)
        final = await stream.subscribe(subject, ordered_consumer=True)
        assert json.loads((await final.next_msg(timeout=10)).data)["execution_id"] == document["execution_id"]
        with pytest.raises(nats.errors.TimeoutError):
            await final.next_msg(timeout=0.3)


async def test_no_fleet_is_3_and_a_wrong_token_2(
    elsewhere: Shell, warm: str, fleet: FleetUnderTest, repository: Path
) -> None:
    elsewhere = replace(elsewhere, warm=warm)
    for arguments in (("run", "--repo", str(repository), "x"), ("watch", "x")):
        ran = await elsewhere.fleet(*arguments)
        assert ran.code == 3 and "fleet up" in ran.err and "Traceback" not in ran.err
    unreached = await elsewhere.fleet("list", "--json", "--server", "127.0.0.1:1")
    assert (unreached.code, unreached.document["exit_code"]) == (3, 3)
    ran = await elsewhere.fleet("list", "--server", fleet.running.address, FLEET_TOKEN="wrong")
    assert ran.code == 2 and "FLEET_TOKEN" in ran.err
    right = await elsewhere.fleet("list", "--json", FLEET_SERVER=fleet.running.address, FLEET_TOKEN=fleet.running.token)
    assert right.code == 0 and "executions" in right.document


async def test_what_cannot_start_is_told_at_once(elsewhere: Shell, warm: str, repository: Path) -> None:
    """Before anything is started, and with the way out."""
    elsewhere = replace(elsewhere, warm=warm)
    elsewhere.home.mkdir(exist_ok=True)
    local = ("run", "--local", "--repo", str(repository), "x")
    free = dict.fromkeys(("FLEET_LISTEN", "FLEET_CONTEXT_LISTEN", "FLEET_METRICS_LISTEN"), "127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments, variables, cause, hint in (
            (
                local,
                {"FLEET_MODEL_URL": "http://u:p@127.0.0.1:1/v1?k=s"},
                "http://127.0.0.1:1/v1 does not",
                "_MODEL_URL",
            ),
            (("up",), {"FLEET_LISTEN": "21155"}, "21155: not HOST:PORT", "correct FLEET_LISTEN"),
            (("up",), free | {"FLEET_HTTP_LISTEN": place}, f"{place}: Address already in use", "FLEET_HTTP_LISTEN"),
            (("up",), {"PATH": str(repository)}, "git: not on PATH", "install git"),
        ):
            ran = await elsewhere.fleet(*arguments, **variables)
            assert ran.code == 3 and cause in ran.err and hint in ran.err and "Traceback" not in ran.err, ran.err
            assert "starting NATS" not in ran.err
    (elsewhere.home / "fleet.toml").write_text('modle_url = "x"\n')
    ran = await elsewhere.fleet("up", FLEET_LISTEN="21155", FLEET_MODELURL="x")
    assert "unknown setting modle_url; did you mean model_url?" in ran.err
    assert "FLEET_MODELURL is no setting; did you mean FLEET_MODEL_URL?" in ran.err
    (elsewhere.home / "fleet.toml").unlink()
    ran = await elsewhere.fleet("list", FLEET_HOME=str(repository / "utils.py"))
    assert (ran.code, ran.err) == (2, f"fleet: FLEET_HOME: {repository / 'utils.py'} is not a directory\n")


async def test_a_task_is_only_submitted_and_again_and_not_where_nothing_can_be_tested(
    shell: Shell, repository: Path, tmp_path: Path
) -> None:
    name = task_id()
    work = ("run", "--detach", "--json", "--repo", str(repository), "--agents", "1", "--task-id", name, FAILING)
    first, again, anew = [await shell.fleet(*work, *more) for more in ((), (), ("--attempt", "2"))]
    assert (first.code, again.code, anew.code) == (0, 0, 0), anew.err
    assert first.document["execution_id"] == again.document["execution_id"] != anew.document["execution_id"]
    assert [ran.document["already_existed"] for ran in (first, again, anew)] == [False, True, False]
    for ran in (first, anew):
        assert (await shell.fleet("cancel", ran.document["execution_id"])).code == 0
    none = await shell.fleet("run", "--repo", str(repository), "--agents", "0", "x")
    assert none.code == 2 and "--agents" in none.err
    module = make_repository(tmp_path / "module", {"go.mod": "module example.org/x\n"})
    missing = await shell.fleet("run", "--repo", str(module), "x", PATH="")
    assert missing.code == 3 and "this machine has no go, which go.mod needs" in missing.err
    assert "--no-detect" in missing.err and "execution" not in missing.err


async def test_ctrl_c_cancels_a_run_and_leaves_what_is_only_watched(
    shell: Shell, repository: Path, client: FleetClient
) -> None:
    name = task_id()
    running = await shell.start(
        *("run", "--json", "--repo", str(repository), "--agents", "1", "--task-id", name, SLEEP)
    )
    execution_id = await at_work(client, name)
    leaver, stayer = await shell.start("watch", name), await shell.start("watch", "--json", execution_id)
    assert leaver.stderr is not None
    await leaver.stderr.readuntil(b"started with")
    leaver.send_signal(signal.SIGINT)
    left = await ended(leaver)
    assert left.code == 4 and "continues" in left.err
    shown = (await shell.fleet("show", "--json", name)).document
    assert (shown["status"], shown["finished_at"]) == ("in_progress", "")
    running.send_signal(signal.SIGINT)
    ran = await ended(running)
    assert (ran.code, ran.document["status"], ran.document["execution_id"]) == (4, "cancelled", execution_id)
    assert not [p for p in psutil.process_iter() if _uses(p, SLEEPING)]
    watched = await ended(stayer)
    events = [json.loads(line) for line in watched.out.splitlines()]
    assert (watched.code, events[0]["type"], events[-1]["type"]) == (4, "execution_started", "execution_finished")
    again = await shell.fleet("cancel", "--json", name)
    assert (again.code, again.document["already_ended"], again.document["status"]) == (0, True, "cancelled")


async def test_list_and_show_tell_of_what_has_ended(shell: Shell, solved: tuple[Ran, Path]) -> None:
    run = solved[0].document
    wanted = ("list", "--json", "--task-id", run["task_id"], "--status", "completed")
    async with asyncio.timeout(SECONDS):
        # The list is kept up from the log, a moment behind it.
        while not (listed := (await shell.fleet(*wanted)).document["executions"]):
            pass
    assert [entry["execution_id"] for entry in listed] == [run["execution_id"]]
    assert (await shell.fleet("show", "--json", run["task_id"])).document == run
    table = await shell.fleet("list")
    assert run["execution_id"] in table.out
    shown = await shell.fleet("show", run["execution_id"])
    assert shown.code == 0 and run["commit"] in shown.out and f"{run['winner']} won" in shown.out
    # The agent's own words stand beside the verdict, before anything else.
    first, second, *_ = shown.out.splitlines()
    assert first == f"{run['verdict']}: {run['winner']} won" and second.startswith(f"  {run['winner']} says: ")
    nowhere = await shell.fleet("export", run["execution_id"], "-o", "/no/dir/x")
    assert (nowhere.code, nowhere.err) == (2, "fleet: /no/dir/x: No such file or directory\n")
    watched = await shell.fleet("watch", "--json", run["task_id"])
    assert watched.code == 0
    assert len(of_type([json.loads(line) for line in watched.out.splitlines()], "checks_finished")) == 3


@pytest.mark.slow  # quick: test_up_serves_until_it_is_told_to_stop
async def test_run_local_starts_a_fleet_and_leaves_nothing_behind(elsewhere: Shell, repository: Path) -> None:
    ran = await elsewhere.fleet(
        *("run", "--local", "--json", "--repo", str(repository), "--agents", "1", "--check", CHECK, HELLO)
    )
    assert (ran.code, ran.document["status"]) == (0, "completed"), ran.err
    assert not (elsewhere.home / "fleet.json").exists()
    assert not [p for p in psutil.process_iter() if _uses(p, str(elsewhere.home))]


@pytest.mark.slow  # quick: what cannot start, the fleet that all share
async def test_up_serves_until_it_is_told_to_stop(elsewhere: Shell, warm: str, repository: Path) -> None:
    missing = json.dumps([{"name": "missing", "command": ["/missing/server"], "tools": ["*"]}])
    process = await elsewhere.start(
        *("up", "--json"),
        FLEET_DEFAULT_REPOSITORY=str(repository),
        FLEET_LOG_FORMAT="json",
        FLEET_LOG_LEVEL="debug",
        FLEET_MCP_SERVERS=missing,
    )
    elsewhere = replace(elsewhere, warm=warm)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            card = json.loads(await process.stdout.readline())
        assert (elsewhere.home / "fleet.json").stat().st_mode & 0o777 == 0o600
        second = await elsewhere.fleet("up")
        assert second.code == 2 and card["address"] in second.err
        attached = await elsewhere.fleet(
            *("run", "--local", "--repo", str(repository), "--agents", "1", "--check", CHECK, HELLO)
        )
        assert attached.code == 0 and f"attached to the fleet at {card['address']}" in attached.err
        # What clients of the earlier system send: the record has no repository.
        request = pb.DeliberateRequest(task_id="old", task_description=HELLO, role="DEV", rounds=1, num_agents=1)
        token = (elsewhere.home / "token").read_text().strip()
        async with connected({"address": card["address"], "token": token}) as caller:
            reply = await caller.stub.Deliberate(request, **caller.call)
        assert (reply.status, reply.winner_id) == (pb.DELIBERATION_STATUS_COMPLETED, "agent-dev-1")
        cut_off = await elsewhere.start("run", "--repo", str(repository), "--agents", "1", "--task-id", "cut", SLEEP)
        async with connect(card["address"], token) as client:
            await at_work(client, "cut")
    finally:
        process.send_signal(signal.SIGTERM)
    stopped = await ended(process)
    told = await ended(cut_off)
    assert told.code == 3 and "the task is stored, and continues once the fleet runs again" in told.err
    lines = [json.loads(line) for line in stopped.err.splitlines()]
    warned = {line["event"] for line in lines if line["level"] != "debug"}
    assert (stopped.code, warned) == (0, {"mcp.incomplete"})
    # Whatever is about a task names it, in the agents' processes too.
    [of_old] = {line["execution_id"] for line in lines if line.get("method", "").endswith("/Deliberate")}
    about = {line["event"] for line in lines if line.get("execution_id") == of_old}
    assert about >= {"call", "recorder.recorded", "mcp.incomplete"}
    assert not (elsewhere.home / "fleet.json").exists()
    assert not [p for p in psutil.process_iter() if _uses(p, str(elsewhere.home))]


def _uses(process: psutil.Process, text: str) -> bool:
    try:
        return text in " ".join(process.cmdline())
    except psutil.Error:
        return False


# --- `fleet up --vllm` from the outside: a model server that it starts, uses and takes along ---


@pytest.mark.slow
async def test_the_fleet_uses_the_server_and_takes_it_along(tmp_path: Path) -> None:
    options = ("--vllm", "org/qwen3-8b", "--vllm-drain", "1", "--vllm-args", f"--state {tmp_path}")
    double = str(Path(__file__).parents[1] / "vllm_double")
    more = {"FLEET_LISTEN": "127.0.0.1:0", "FLEET_HTTP_LISTEN": "off", "PYTHONPATH": double}
    process = await Shell(home=tmp_path / "home", more=more).start("up", "--json", *options)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            card = json.loads(await process.stdout.readline())
        start = json.loads((tmp_path / "start-0").read_text())
        port = start["argv"][start["argv"].index("--port") + 1]
        assert card["model_url"] == f"http://127.0.0.1:{port}/v1"
        assert all(psutil.pid_exists(pid) for pid in start["pids"])
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            _, told = await process.communicate()
        assert process.returncode == 0, told.decode()[-4000:]
        assert not any(psutil.pid_exists(pid) for pid in start["pids"])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
