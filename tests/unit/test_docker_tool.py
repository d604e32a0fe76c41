"""DockerTool without an engine: what it refuses, what it would ask for, what goes into a build."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.tool import Decision, Outcome, ToolResult
from swe_ai_fleet.tools import Pipeline, ToolFailure, ToolRefusal
from swe_ai_fleet.tools.docker import DockerPolicy, DockerTool, Limits, reap
from swe_ai_fleet.tools.docker.container import Access, ContainerRequest, safe_facts
from swe_ai_fleet.tools.docker.context import pack
from swe_ai_fleet.tools.docker.dockerfile import parse
from swe_ai_fleet.tools.docker.ignore import Ignore, match_name
from swe_ai_fleet.tools.docker.output import KEPT_BYTES, Printout
from swe_ai_fleet.tools.policy import Policy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    (directory / "Dockerfile").write_text("FROM scratch\nCOPY a.txt /\n")
    (directory / "a.txt").write_text("a\n")
    return directory


@pytest.fixture
def policy(tmp_path: Path) -> DockerPolicy:
    """An engine that is not there: whatever is refused is refused before it would be asked."""
    return DockerPolicy(host=f"unix://{tmp_path}/nobody.sock", images=("python:3.*",), networks=frozenset({"inside"}))


@pytest.fixture
def kit(root: Path, policy: DockerPolicy) -> DockerTool:
    return DockerTool(root, policy=policy)


def refused(kit: DockerTool, result: ToolResult) -> str:
    """The reason of a refusal, which stands in the audit as such."""
    entry = kit.pipeline.trail.entries[-1]
    assert (result.outcome, entry.outcome, entry.decision) == (Outcome.REFUSED, Outcome.REFUSED, Decision.REFUSED)
    assert entry.reason == result.error
    return result.error


@pytest.mark.parametrize(
    ("argument", "value", "hint"),
    [
        ("privileged", True, "without capabilities"),
        ("--privileged", True, "without capabilities"),
        ("cap_add", ["SYS_ADMIN"], "without capabilities"),
        ("cap-add", ["ALL"], "without capabilities"),
        ("security_opt", ["seccomp=unconfined"], "without capabilities"),
        ("sysctls", {"kernel.core_pattern": "|/x"}, "without capabilities"),
        ("pid", "host", "own namespaces"),
        ("pid_mode", "host", "own namespaces"),
        ("ipc", "host", "own namespaces"),
        ("uts", "host", "own namespaces"),
        ("userns", "host", "own namespaces"),
        ("cgroupns", "host", "own namespaces"),
        ("cgroup_parent", "/", "own namespaces"),
        ("network_mode", "host", "own namespaces"),
        ("devices", ["/dev/kmsg"], "no devices"),
        ("gpus", "all", "no devices"),
        ("volumes", ["/:/host"], "workspace='ro'"),
        ("v", "/var/run/docker.sock:/var/run/docker.sock", "workspace='ro'"),
        ("mounts", ["/etc:/etc:ro"], "workspace='ro'"),
        ("volumes_from", ["other"], "workspace='ro'"),
        ("memory", "0", "memory_mb"),
        ("memory_swap", -1, "memory_mb"),
        ("oom_kill_disable", True, "memory_mb"),
        ("pids_limit", -1, "pids"),
        ("cpu_quota", -1, "cpus"),
        ("ports", ["80:80"], "docker_exec"),
        ("user", "root", "never as root"),
    ],
)
async def test_what_no_container_gets_is_refused_with_a_reason(
    kit: DockerTool, argument: str, value: object, hint: str
) -> None:
    result = await kit.call("run", {"image": "python:3.12", "command": ["true"], argument: value})
    assert hint in refused(kit, result)
    assert len(kit.pipeline.trail.entries) == 1  # nothing was begun


@pytest.mark.parametrize("operation", ["build", "exec", "stop"])
async def test_the_other_operations_refuse_the_same(kit: DockerTool, operation: str) -> None:
    arguments = {"tag": "app"} if operation == "build" else {"container": "db"}
    assert "never granted" in refused(kit, await kit.call(operation, {**arguments, "privileged": True}))


@pytest.mark.parametrize(
    "limits",
    [
        {"memory_mb": 0},
        {"memory_mb": -1},
        {"memory_mb": 10**9},
        {"cpus": 0},
        {"cpus": -1.0},
        {"cpus": 1e9},
        {"cpus": float("inf")},
        {"cpus": float("nan")},
        {"pids": 0},
        {"pids": -1},
        {"pids": 10**9},
    ],
)
async def test_no_container_without_limits_or_above_the_ceiling(kit: DockerTool, limits: Mapping[str, object]) -> None:
    error = refused(kit, await kit.call("run", {"image": "python:3.12", **limits}))
    assert "always limited" in error
    assert next(iter(limits)) in error


@pytest.mark.parametrize("limits", [{"memory_mb": 0}, {"memory_mb": -1}, {"cpus": 0}, {"cpus": 1e9}])
async def test_no_build_without_limits(kit: DockerTool, limits: Mapping[str, object]) -> None:
    assert "always limited" in refused(kit, await kit.call("build", {"tag": "app", **limits}))


@pytest.mark.parametrize("network", ["host", "bridge", "container:abc", "ns:/proc/1/ns/net", "default", ""])
@pytest.mark.parametrize("operation", ["run", "build"])
async def test_networks_that_were_not_granted(kit: DockerTool, network: str, operation: str) -> None:
    arguments = {"image": "python:3.12"} if operation == "run" else {"tag": "app"}
    error = refused(kit, await kit.call(operation, {**arguments, "network": network}))
    assert "networks: none, inside" in error


@pytest.mark.parametrize("network", ["host", "container:abc", "ns:/x", "default", "container", "--x"])
def test_a_policy_cannot_grant_the_network_of_the_host(network: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DockerPolicy(networks=frozenset({network}))
    assert caught.value.field == "networks"


async def test_the_socket_of_the_engine_is_never_mounted(root: Path) -> None:
    kit = DockerTool(root, policy=DockerPolicy(host=f"unix://{root}/deep/../docker.sock", images=("*",)))
    for access in ("ro", "rw"):
        assert "socket" in refused(kit, await kit.call("run", {"image": "x", "workspace": access}))


async def test_a_link_to_the_socket_in_a_workspace_of_the_same_place(root: Path, tmp_path: Path) -> None:
    (root / "real.sock").touch()
    (tmp_path / "link.sock").symlink_to(root / "real.sock")
    kit = DockerTool(root, policy=DockerPolicy(host=f"unix://{tmp_path}/link.sock", images=("*",)))
    assert "socket" in refused(kit, await kit.call("run", {"image": "x"}))


async def test_an_engine_elsewhere_gets_no_mounts(root: Path) -> None:
    kit = DockerTool(root, policy=DockerPolicy(host="tcp://127.0.0.1:1", images=("*",)))
    assert "workspace='none'" in refused(kit, await kit.call("run", {"image": "x"}))


async def test_a_writable_mount_keeps_to_the_paths_of_the_task(root: Path, policy: DockerPolicy) -> None:
    kit = DockerTool(root, Pipeline(policy=Policy(allowed_paths=("src/*",))), policy=policy)
    assert "src/*" in refused(kit, await kit.call("run", {"image": "python:3.12", "workspace": "rw"}))


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/etc")], ids=["file", "link"])
async def test_a_git_directory_that_cannot_be_hidden(kit: DockerTool, root: Path, make: object) -> None:
    assert callable(make)
    make(root / ".git")
    assert ".git" in refused(kit, await kit.call("run", {"image": "python:3.12", "workspace": "rw"}))


@pytest.mark.parametrize("workspace", ["/etc", "host", "/", "../x"])
async def test_nothing_but_the_workspace_can_be_mounted(kit: DockerTool, workspace: str) -> None:
    result = await kit.call("run", {"image": "python:3.12", "workspace": workspace})
    assert result.outcome is Outcome.INVALID
    assert "'ro', 'rw' or 'none'" in result.error
    (entry,) = kit.pipeline.trail.entries
    assert (entry.operation, entry.outcome) == ("run", Outcome.INVALID)


async def test_working_directories_do_not_lead_out_through_a_link(kit: DockerTool, root: Path) -> None:
    (root / "out").symlink_to("/etc")
    for wanted in ("out", "../x", "/workspace/out", "/workspace/../.."):
        result = await kit.call("run", {"image": "python:3.12", "working_directory": wanted})
        assert "outside the workspace" in refused(kit, result), wanted


def request(**changes: object) -> ContainerRequest:
    values: dict[str, object] = {
        "image": "fleet-x/app:latest",
        "command": ["true"],
        "variables": {"A": "1"},
        "labels": {"l": "v"},
        "limits": Limits(memory_mb=64, cpus=0.5, pids=32),
        "network": "none",
        "user": "1000:1000",
        "root": Path("/somewhere/ws"),
        "access": Access.READ_ONLY,
    }
    return ContainerRequest(**(values | changes))  # type: ignore[arg-type]


def test_every_protection_is_spelled_out() -> None:
    config = json.loads(json.dumps(request().config()))
    host = config["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        64 * 1024 * 1024,
        64 * 1024 * 1024,
        500_000_000,
        32,
    )
    assert (host["Privileged"], host["CapAdd"], host["CapDrop"]) == (False, [], ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert (host["PidMode"], host["UTSMode"], host["UsernsMode"], host["NetworkMode"]) == ("", "", "", "none")
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    assert (host["Binds"], host["Devices"], host["DeviceRequests"], host["VolumesFrom"]) == ([], [], [], [])
    assert host["OomKillDisable"] is False
    [mount] = host["Mounts"]
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == ("/somewhere/ws", "/workspace", True)
    assert (config["User"], config["OpenStdin"], config["Tty"]) == ("1000:1000", False, False)


def test_mounts_of_each_access() -> None:
    def targets(**changes: object) -> list[tuple[str, str, bool]]:
        host = request(**changes).config()["HostConfig"]
        assert isinstance(host, dict)
        return [(mount["Type"], mount["Target"], mount["ReadOnly"]) for mount in host["Mounts"]]

    assert targets(access=Access.NONE) == []
    assert targets(access=Access.READ_WRITE, hidden=(".git",)) == [
        ("bind", "/workspace", False),
        ("tmpfs", "/workspace/.git", False),
    ]
    assert targets(access=Access.NONE, read_only_root=True) == [("tmpfs", "/tmp", False)]
    assert targets(access=Access.READ_ONLY, hidden=(".git",)) == [("bind", "/workspace", True)]


def test_inspection_shows_no_values_and_no_paths_of_the_host() -> None:
    inspected = {
        "Id": "f" * 64,
        "Path": "sh",
        "Args": ["-c", "true"],
        "State": {"Status": "running", "ExitCode": 0},
        "Config": {"Image": "app", "Env": ["TOKEN=hunter2-hunter2", "PATH=/bin"]},
        "HostConfig": {
            "NetworkMode": "none",
            "Memory": 64 * 1024 * 1024,
            "NanoCpus": 500_000_000,
            "PidsLimit": 32,
            "ReadonlyRootfs": False,
            "Mounts": [{"Type": "bind", "Source": "/secret/place", "Target": "/workspace", "ReadOnly": True}],
        },
    }
    facts = safe_facts(inspected, "svc")
    assert facts["variables"] == ["PATH", "TOKEN"]
    assert "hunter2" not in str(facts)
    assert "/secret/place" not in str(facts)


async def test_an_absent_engine_is_an_error_of_the_tool(kit: DockerTool) -> None:
    for operation, arguments in (
        ("ps", {}),
        ("images", {}),
        ("run", {"image": "python:3.12"}),
        ("build", {"tag": "app"}),
        ("exec", {"container": "db", "command": ["true"]}),
        ("logs", {"container": "db"}),
        ("stop", {"container": "db"}),
        ("rm", {"name": "db"}),
        ("inspect", {"name": "db"}),
    ):
        result = await kit.call(operation, arguments)
        assert result.outcome is Outcome.ERROR, operation
        assert "no container engine answers at unix://" in result.error
        assert kit.pipeline.trail.entries[-1].outcome is Outcome.ERROR
    reaped = await kit.close()
    assert (reaped.containers, reaped.images, reaped.failures) == (0, 0, ())


async def test_an_engine_that_says_nothing_is_given_up(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        async with DockerTool(root, policy=DockerPolicy(host=f"unix://{path}", call_seconds=0.3)) as kit:
            started_at = time.monotonic()
            result = await kit.ps()
            assert time.monotonic() - started_at < 50
            assert "no container engine answers" in result.error


async def test_variables_are_masked_in_the_audit(kit: DockerTool) -> None:
    await kit.call("run", {"image": "python:3.12", "environment": {"TOKEN": "hunter2-hunter2"}})
    await kit.call("build", {"tag": "app", "build_args": {"TOKEN": "hunter2-hunter2"}})
    assert "hunter2" not in str(kit.pipeline.trail.entries)
    assert "TOKEN" in str(kit.pipeline.trail.entries)


# Dockerfiles


def written(text: str, **build_args: str) -> list[str]:
    checked = parse(text, build_args)
    lines = checked.text({image: f"<{image}>" for image in checked.images}, every={"k": "v"}, last={"k": "w"})
    return lines.splitlines()[1:]


def test_a_dockerfile_is_written_anew_one_line_each() -> None:
    assert written("# syntax=evil/frontend\nfrom python:3.12 as Build\nRUN a && \\\n  # why\n  b \\\n\n  c\n") == [
        "FROM <python:3.12> AS build",
        'LABEL k="v"',
        "RUN a &&   b   c",
        'LABEL k="w"',
    ]


def test_stages_and_arguments() -> None:
    text = "ARG TAG=3.11\nFROM python:${TAG} AS one\nFROM one AS two\nCOPY --from=one --chown=1:1 /a /b\nFROM scratch\n"
    assert written(text + "COPY --from=1 /a /b\nCOPY --from=python:3.9 /c /d\n", TAG="3.12") == [
        "ARG TAG=3.11",
        "FROM <python:3.12> AS one",
        'LABEL k="v"',
        "FROM one AS two",
        'LABEL k="v"',
        "COPY --from=one --chown=1:1 /a /b",
        "FROM scratch",
        'LABEL k="v"',
        "COPY --from=1 /a /b",
        "COPY --from=<python:3.9> /c /d",
        'LABEL k="w"',
    ]
    assert parse(text, {}).until("one").images == {"python:3.11"}
    with pytest.raises(ToolFailure, match="stages: one, two"):
        parse(text, {}).until("three")


FORBIDDEN_STEPS = pytest.mark.parametrize(
    "line",
    [
        "RUN --mount=type=bind,from=other,target=/x cat /x",
        "RUN --security=insecure id",
        "RUN --network=host id",
        "ADD http://169.254.169.254/latest /x",
        'ADD ["http:\\u002f\\u002f169.254.169.254/", "/x"]',
        'ADD ht"tp:"//169.254.169.254/ /x',
        "ADD $WHERE /x",
        "ADD git@example.com:x/y.git /x",
        "ONBUILD ADD http://169.254.169.254/latest /x",
        "ONBUILD RUN --network=host id",
        "LABEL swe-ai-fleet.container.owner=other",
        "COPY --from=-bad /a /b",
    ],
)


@FORBIDDEN_STEPS
async def test_a_build_with_such_a_step_is_refused_before_the_engine_is_asked(
    kit: DockerTool, root: Path, line: str
) -> None:
    (root / "Dockerfile").write_text(f"FROM scratch\n{line}\n")
    error = refused(kit, await kit.call("build", {"tag": "app"}))
    assert "no container engine" not in error
    if "ADD" in line:
        assert "ADD fetches nothing here" in error or "ONBUILD" in error


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RUN true\n",
        "FROM\n",
        "FROM $BASE\n",
        "FROM scratch\nEVIL x\n",
        "FROM scratch\nRUN <<EOF\nFROM x AS y\nEOF\n",
        "FROM scratch\nCOPY <<EOF /x\nFROM x AS y\nEOF\n",
        "# escape=`\nFROM scratch\n",
        "FROM scratch\nRUN a \\\\\nADD http://x /\n",
        "FROM --platform=linux/amd64 scratch\n",
        "FROM scratch AS a b\n",
        "FROM scratch\nCOPY --from=$X /a /b\n",
        "FROM scratch\nCOPY --from=7 /a /b\n",
        "FROM scratch\nCOPY --link /a /b\n",
        "FROM scratch\nONBUILD FROM x\n",
        "FROM scratch\nONBUILD COPY --from=x /a /b\n",
        "FROM scratch\nRUN a\0b\n",
        "FROM scratch\n" + "RUN true\n" * 1000,
    ],
)
def test_what_is_no_dockerfile_here(text: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        parse(text, {})
    assert not isinstance(caught.value, ToolRefusal)


@given(st.text(alphabet="FROMRUNADDCOPY scratchx\\\n#-=$:'\"/\r\t"))
def test_no_text_yields_lines_that_were_not_checked(rest: str) -> None:
    try:
        lines = written("FROM scratch\n" + rest)
    except ToolFailure:
        return
    assert all(not line.endswith("\\") and line.split(" ", 1)[0].isupper() for line in lines)
    assert not any(line.startswith("ADD") and ":" in line for line in lines)


def test_labels_are_quoted() -> None:
    checked = parse("FROM scratch\n", {})
    text = checked.text({}, every={}, last={"k": 'a"b $HOME \\\nRUN id'})
    assert text.endswith('LABEL k="a\\"b \\$HOME \\\\ RUN id"\n')


# Contexts


def packed(root: Path, ignore: str = "", **bounds: int) -> dict[str, tarfile.TarInfo]:
    limits = {"max_bytes": 1_000_000, "max_files": 1_000} | bounds
    with (
        pack(root, ".", ignore=Ignore(ignore), extra={".dockerignore": b"x"}, **limits) as file,
        tarfile.open(fileobj=file) as archive,
    ):
        return {member.name: member for member in archive.getmembers()}


def test_a_context_holds_links_as_links_and_no_devices(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub/b.txt").write_text("b")
    (root / "out").symlink_to("/etc/passwd")
    (root / "outdir").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("secret")
    (root / "suid").write_text("x")
    (root / "suid").chmod(0o4755)
    members = packed(root)
    assert set(members) == {"Dockerfile", "a.txt", "sub", "sub/b.txt", "out", "outdir", "suid", ".dockerignore"}
    assert (members["out"].issym(), members["out"].linkname, members["outdir"].issym()) == (True, "/etc/passwd", True)
    assert (members["suid"].mode, members["suid"].uid, members["suid"].mtime) == (0o755, 0, 0)


@pytest.mark.parametrize("bound", [{"max_bytes": 10}, {"max_files": 1}])
def test_a_context_is_bounded(root: Path, bound: dict[str, int]) -> None:
    with pytest.raises(ToolFailure, match="more than"):
        packed(root, **bound)


async def test_contexts_and_dockerfiles_lie_in_the_workspace(kit: DockerTool, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/Dockerfile").write_text("FROM scratch\n")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside/Dockerfile")
    (root / ".git").mkdir()
    (root / ".git/Dockerfile").write_text("FROM scratch\n")
    for arguments in (
        {"path": "../outside"},
        {"path": str(tmp_path / "outside")},
        {"path": "link"},
        {"dockerfile": "../outside/Dockerfile"},
        {"dockerfile": "/etc/passwd"},
        {"dockerfile": "file"},
        {"dockerfile": "link/Dockerfile"},
        {"path": ".git"},
    ):
        result = await kit.call("build", {"tag": "app", **arguments})
        error = refused(kit, result)
        assert "outside the workspace" in error or "in .git" in error, arguments


def test_a_context_that_became_a_link_is_not_followed(root: Path) -> None:
    (root / "sub").symlink_to("/etc")
    with pytest.raises(ToolFailure):
        pack(root, "sub", ignore=Ignore(), extra={}, max_bytes=1_000_000, max_files=1_000)


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ("*.txt", {"keep.md", "sub/b.txt", "sub/deep/c.txt"}),
        ("**/*.txt", {"keep.md"}),
        ("sub", {"a.txt", "keep.md"}),
        ("/sub/deep/", {"a.txt", "keep.md", "sub/b.txt"}),
        ("sub\n!sub/b.txt", {"a.txt", "keep.md", "sub/b.txt"}),
        ("*\n!keep.md", {"keep.md"}),
        ("# comment\n\n  a.* ", {"keep.md", "sub/b.txt", "sub/deep/c.txt"}),
        ("sub/**/c.txt", {"a.txt", "keep.md", "sub/b.txt"}),
        ("**", set[str]()),
        ("[a-k]*", {"sub/b.txt", "sub/deep/c.txt"}),
        ("../x", {"a.txt", "keep.md", "sub/b.txt", "sub/deep/c.txt"}),
    ],
)
def test_what_dockerignore_leaves(tmp_path: Path, patterns: str, left: set[str]) -> None:
    for name in ("a.txt", "keep.md", "sub/b.txt", "sub/deep/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    files = {name for name, member in packed(tmp_path, patterns).items() if member.isreg()}
    assert files - {".dockerignore"} == left


def test_no_pattern_takes_for_ever() -> None:
    started_at = time.monotonic()
    assert not match_name("*a" * 300 + "b", "a" * 255)
    ignore = Ignore("/".join(["**", "a"] * 190) + "/b")
    assert not ignore.excludes(ignore.matches("/".join("a" * 200), ignore.nothing))
    assert time.monotonic() - started_at < 20
    with pytest.raises(ToolFailure):
        Ignore("x\n" * 1000)


# Output, owners, leftovers


def frames(*parts: bytes) -> io.BytesIO:
    return io.BytesIO(b"".join(bytes([1, 0, 0, 0]) + len(part).to_bytes(4, "big") + part for part in parts))


def test_output_is_kept_head_and_tail() -> None:
    printout = Printout(10 * KEPT_BYTES)
    printout.collect(frames(b"head", *[b"x" * 10_000] * 100, b"tail"))
    output = printout.output
    assert (output.total, printout.flooded) == (1_000_008, False)
    assert output.head.startswith(b"head")
    assert output.tail.endswith(b"tail")
    assert len(output.head) + len(output.tail) == 2 * KEPT_BYTES
    assert f"{1_000_008 - 2 * KEPT_BYTES} bytes left out" in printout.text()


def test_a_flood_is_not_read_to_its_end() -> None:
    stream = frames(*[b"y" * 1000] * 1000)
    printout = Printout(5000)
    printout.collect(stream)
    assert printout.flooded
    assert stream.tell() < 10_000


async def test_reaping_everything_must_be_meant(policy: DockerPolicy) -> None:
    with pytest.raises(InvalidRequest):
        await reap(policy)
    with pytest.raises(ToolFailure, match="no container engine answers"):
        await reap(policy, older_than_seconds=0)
