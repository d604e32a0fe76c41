"""DockerTool without an engine: what it refuses, what it would ask for, what goes into a build."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swe_ai_fleet import ToolEnabledAgent
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.extensions.containers.toolkit import ContainerPack, DockerPolicy, DockerTool
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools import ToolFailure
from swe_ai_fleet.tools.catalogue import ToolAccess
from tests.tables import table
from tests.tool_doubles import TASK, offered, shown


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
    assert (result.outcome, entry.outcome, entry.decision) == (Outcome.REFUSED, Outcome.REFUSED, PolicyDecision.REFUSED)
    assert entry.reason == result.error
    return result.error


NEVER = {
    "without capabilities": {
        "privileged": True, "cap_add": ["SYS_ADMIN"], "security_opt": ["seccomp=unconfined"],
        "sysctls": {"kernel.core_pattern": "|/x"},
    },
    "own namespaces": {"pid": "host", "ipc": "host", "userns": "host", "cgroup_parent": "/", "network_mode": "host"},
    "no devices": {"devices": ["/dev/kmsg"], "gpus": "all"},
    "workspace='ro'": {
        "volumes": ["/:/host"], "v": "/var/run/docker.sock:/var/run/docker.sock", "volumes_from": ["other"],
    },
    "memory_mb": {"memory": "0", "memory_swap": -1, "oom_kill_disable": True}, "pids": {"pids_limit": -1},
    "cpus": {"cpu_quota": -1}, "docker_exec": {"ports": ["80:80"]}, "never as root": {"user": "root"},
}  # fmt: skip
"""Arguments that no container gets, by what the refusal says."""
LIMITS = {"memory_mb": (0, -1, 10**9), "cpus": (0, -1.0, 1e9, float("inf"), float("nan")), "pids": (0, -1, 10**9)}
NETWORKS = ("host", "bridge", "container:abc", "")
REFUSED = [
    *(("run", {name: value}, hint) for hint, arguments in NEVER.items() for name, value in arguments.items()),
    *((operation, {"privileged": True}, "never granted") for operation in ("build", "exec", "stop")),
    *(("run", {name: value}, "always limited") for name, values in LIMITS.items() for value in values),
    *(("build", {name: LIMITS[name][0]}, "always limited") for name in ("memory_mb", "cpus")),
    *((operation, {"network": name}, "networks: none, inside") for operation in ("run", "build") for name in NETWORKS),
    *(("run", {"working_directory": wanted}, "outside the workspace") for wanted in ("out", "../x")),
]


@table(("operation", "arguments", "hint"), REFUSED)
async def test_what_is_never_granted_is_refused_with_a_reason(
    root: Path, policy: DockerPolicy, operation: str, arguments: Mapping[str, object], hint: str
) -> None:
    kit = DockerTool(root, policy=policy)
    if not (root / "out").exists():
        (root / "out").symlink_to("/etc")
    needed = {"run": {"image": "python:3.12", "command": ["true"]}, "build": {"tag": "app"}}
    result = await kit.call(operation, {**needed.get(operation, {"container": "db"}), **arguments})
    assert hint in refused(kit, result)
    assert len(kit.pipeline.trail.entries) <= 2  # the engine, which is not there, was not asked


class EngineDouble:
    """An engine that has every image and no container; it takes builds, and keeps what it is asked to create."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.built: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.partition("/v1.43")[2] or request.path
        if path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.43", "MinAPIVersion": "1.24", "Version": "24"})
        if path in ("/images/json", "/containers/json"):
            return web.json_response([])
        if path.startswith("/images/"):
            return web.json_response({"Id": "sha256:1", "Size": 1, "Config": {}})
        if path == "/build":
            with tarfile.open(fileobj=io.BytesIO(await request.read())) as archive:
                for member in archive.getmembers():
                    file = archive.extractfile(member) if member.isreg() else None
                    self.built[member.name] = (member, file.read() if file else b"")
            return web.Response(body=b'{"stream": "built"}\n')
        if path == "/containers/create":
            self.created.append(await request.json())
        return web.json_response({"message": "no such thing"}, status=409 if "create" in path else 404)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineDouble]:
    """At the address that `policy` names."""
    double = EngineDouble()
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", double.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "nobody.sock")).start()
    yield double
    await runner.cleanup()


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("python:3.12", ""),
        *((image, "not allowed") for image in ("python:2.7", "evil.test/python:3")),
        *((image, "not an image name") for image in ("--privileged", "x;y", "../x", "name\n", "")),
    ],
)  # fmt: skip
async def test_images_are_allowed_by_globs(kit: DockerTool, root: Path, engine: EngineDouble, image: str, said: str):
    result = await kit.call("run", {"image": image})
    made = [created["Image"].endswith(image.removeprefix("docker.io/library/")) for created in engine.created]
    assert made == ([] if said else [True])
    assert not said or said in refused(kit, result)
    none = DockerTool(root, policy=DockerPolicy(host=kit.policy.host))
    refused(none, await none.call("run", {"image": image}))


async def test_the_socket_of_the_engine_is_never_mounted(root: Path) -> None:
    kit = DockerTool(root, policy=DockerPolicy(host=f"unix://{root}/deep/../docker.sock", images=("*",)))
    for access in ("ro", "rw"):
        assert "socket" in refused(kit, await kit.call("run", {"image": "x", "workspace": access}))


async def test_a_link_to_the_socket_in_a_workspace_of_the_same_place(root: Path, tmp_path: Path) -> None:
    (root / "real.sock").touch()
    (tmp_path / "link.sock").symlink_to(root / "real.sock")
    kit = DockerTool(root, policy=DockerPolicy(host=f"unix://{tmp_path}/link.sock", images=("*",)))
    assert "socket" in refused(kit, await kit.call("run", {"image": "x"}))


@table("workspace", ["/etc", "host", "../x"])
async def test_nothing_but_the_workspace_can_be_mounted(kit: DockerTool, workspace: str) -> None:
    result = await kit.call("run", {"image": "python:3.12", "workspace": workspace})
    assert "'ro', 'rw' or 'none'" in result.error
    assert result.outcome is kit.pipeline.trail.entries[-1].outcome is Outcome.INVALID


async def test_every_protection_is_spelled_out(kit: DockerTool, root: Path, engine: EngineDouble) -> None:
    (root / ".git").mkdir()
    for more in ({}, {"workspace": "rw"}, {"workspace": "none"}, {"workspace": "none", "read_only_root": True}):
        limits = {"memory_mb": 64, "cpus": 0.5, "pids": 32}
        await kit.call("run", {"image": "python:3.12", "environment": {"A": "1"}, **limits, **more})
    mounts = [
        [(mount["Type"], mount["Target"], mount["ReadOnly"]) for mount in created["HostConfig"]["Mounts"]]
        for created in engine.created
    ]
    assert mounts == [
        [("bind", "/workspace", True)], [("bind", "/workspace", False), ("tmpfs", "/workspace/.git", False)], [],
        [("tmpfs", "/tmp", False)],
    ]  # fmt: skip
    assert engine.created[0]["HostConfig"]["Mounts"][0]["Source"] == str(root)
    protected = {
        "Memory": 64 * 2**20, "MemorySwap": 64 * 2**20, "NanoCpus": 500_000_000, "PidsLimit": 32, "Privileged": False,
        "OomKillDisable": False, "CapAdd": [], "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges:true"],
        "PidMode": "", "UTSMode": "", "UsernsMode": "", "NetworkMode": "none", "IpcMode": "private",
        "CgroupnsMode": "private", "Binds": [], "Devices": [], "DeviceRequests": [], "VolumesFrom": [],
    }  # fmt: skip
    for config in engine.created:
        assert {name: config["HostConfig"][name] for name in protected} == protected
        assert (config["User"] not in ("", "0", "0:0"), config["OpenStdin"], config["Tty"]) == (True, False, False)


@table(
    "line",
    [
        "RUN --mount=type=bind,from=other,target=/x cat /x", "RUN --security=insecure id", "RUN --network=host id",
        "ADD http://169.254.169.254/latest /x", 'ADD ["http:\\u002f\\u002f169.254.169.254/", "/x"]',
        'ADD ht"tp:"//169.254.169.254/ /x', "ADD $WHERE /x", "ADD git@example.com:x/y.git /x",
        "ONBUILD ADD http://169.254.169.254/latest /x", "ONBUILD RUN --network=host id",
        "LABEL swe-ai-fleet.container.owner=other", "COPY --from=-bad /a /b",
    ],
)  # fmt: skip
async def test_a_build_with_such_a_step_is_refused_before_the_engine_is_asked(kit: DockerTool, root: Path, line: str):
    (root / "Dockerfile").write_text(f"FROM scratch\n{line}\n")
    error = refused(kit, await kit.call("build", {"tag": "app"}))
    assert "no container engine" not in error
    assert "ADD" not in line or "ADD fetches nothing here" in error or "ONBUILD" in error


async def test_a_context_holds_links_as_links_and_no_devices(
    kit: DockerTool, root: Path, engine: EngineDouble, policy: DockerPolicy
) -> None:
    (root / "sub").mkdir()
    (root / "sub/b.txt").write_text("b")
    (root / "out").symlink_to("/etc/passwd")
    (root / "outdir").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("secret")
    (root / "suid").write_text("x")
    (root / "suid").chmod(0o4755)
    assert (await kit.call("build", {"tag": "app"})).success
    members = {name: member for name, (member, _) in engine.built.items() if not name.startswith(".fleet-")}
    assert set(members) == {"Dockerfile", "a.txt", "sub", "sub/b.txt", "out", "outdir", "suid", ".dockerignore"}
    assert (members["out"].issym(), members["out"].linkname, members["outdir"].issym()) == (True, "/etc/passwd", True)
    assert (members["suid"].mode, members["suid"].uid, members["suid"].mtime) == (0o755, 0, 0)
    small = DockerTool(root, policy=replace(policy, max_context_bytes=10))
    assert "more than" in (await small.call("build", {"tag": "app"})).error


async def test_contexts_and_dockerfiles_lie_in_the_workspace(kit: DockerTool, root: Path, tmp_path: Path) -> None:
    for directory in (tmp_path / "outside", root / ".git"):
        directory.mkdir()
        (directory / "Dockerfile").write_text("FROM scratch\n")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside/Dockerfile")
    paths = [{"path": path} for path in ("../outside", str(tmp_path / "outside"), "link", ".git")]
    files = [{"dockerfile": file} for file in ("../outside/Dockerfile", "/etc/passwd", "file", "link/Dockerfile")]
    for arguments in (*paths, *files):
        error = refused(kit, await kit.call("build", {"tag": "app", **arguments}))
        assert "outside the workspace" in error or "in .git" in error, arguments


async def test_agents_get_containers_where_there_is_an_engine(root: Path) -> None:
    configured = ContainerPack(Settings(docker={"host": "unix:///nobody.sock"})), ContainerPack(Settings(docker={}))
    for pack in configured:
        for role in Role:
            box = await offered(root, access=ToolAccess(packs=(pack,)), task=replace(TASK, role=role))
            given = {name for name in shown(box) if name.startswith("docker_")}
            assert given == (pack.shown.get(role, set()) if pack.summary else set())
    # A program's own calls say what is missing.
    absent = await ToolEnabledAgent("a", "DEV", root, settings=Settings(home=root)).tools["docker"].call("ps", {})
    assert absent.success or "engine" in absent.error
    with pytest.raises(InvalidRequest) as refused:
        ContainerPack(Settings(docker={"host": "ssh://x.org"}))
    assert refused.value.field == "docker.host"
    with pytest.raises(ToolFailure) as unreached:
        await configured[0].reap(())
    assert "FLEET_DOCKER" in unreached.value.hint
