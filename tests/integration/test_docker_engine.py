"""DockerTool against a real engine: what it makes, what it holds back, what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.tool import Decision, Outcome, ToolResult
from swe_ai_fleet.tools.docker import DockerPolicy, DockerTool, Owner
from tests.docker_engine import BUSYBOX, NoEngine, TestEngine, docker_engine

pytestmark = pytest.mark.slow
docker = pytest.importorskip("docker")

UID = 12_345
DOCKERFILE = """\
FROM scratch AS tools
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[TestEngine]:
    try:
        with docker_engine() as running:
            yield running
    except NoEngine as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def base(engine: TestEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image of somebody else's, which policies here allow."""
    directory = tmp_path_factory.mktemp("base")
    shutil.copy(BUSYBOX, directory / "busybox")
    (directory / "Dockerfile").write_text(DOCKERFILE)
    client = docker.DockerClient(base_url=engine.host)
    client.images.build(path=str(directory), tag="base:1", network_mode="none", rm=True)
    yield "base:1"
    client.close()


@pytest.fixture
def client(engine: TestEngine) -> Iterator[Any]:
    """The engine as its operator sees it."""
    client = docker.DockerClient(base_url=engine.host)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def nothing_is_left(engine: TestEngine) -> Iterator[None]:
    """Whatever a test does, its tools leave nothing of theirs behind."""
    yield
    with contextlib.closing(docker.DockerClient(base_url=engine.host)) as client:
        for kind, things in (("container", client.containers), ("image", client.images)):
            assert not things.list(all=True, filters={"label": f"swe-ai-fleet.{kind}.owner"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    (directory / "hello.txt").write_text("hello\n")
    os.chown(directory, UID, UID)
    for parent in (tmp_path, *tmp_path.parents):  # pytest's directories are closed to the container's user
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return directory


@pytest.fixture
def policy(engine: TestEngine, base: str) -> DockerPolicy:
    return DockerPolicy(host=engine.host, images=("base:*", "absent:*"), max_output_bytes=1024 * 1024)


@pytest.fixture
async def kit(root: Path, policy: DockerPolicy) -> AsyncIterator[DockerTool]:
    async with DockerTool(root, policy=policy) as tool:
        yield tool


async def run(kit: DockerTool, script: str, **arguments: object) -> ToolResult:
    return await kit.call("run", {"image": "base:1", "command": ["sh", "-c", script], **arguments})


async def test_each_operation_once(kit: DockerTool, root: Path, client: Any) -> None:
    (root / "image").mkdir()
    (root / "image/Dockerfile").write_text("FROM base:1\nARG WHO\nCOPY . /srv/\nRUN ls -A /srv; echo $WHO > /who\n")
    (root / "image/.dockerignore").write_text("*.log\n")
    (root / "image/kept.txt").write_text("kept")
    (root / "image/left.log").write_text("left")
    built = await kit.build("app", path="image", build_args={"WHO": "world"})
    assert built.success, built.observation()
    assert "kept.txt" in built.content
    assert "left.log" not in built.content
    assert ".fleet-" not in built.content.split("Running in", 1)[1].split("Removing")[0]
    assert built.metadata["image"] == "app:latest"

    result = await kit.run("app", ["cat", "/who", "hello.txt"])
    assert (result.content, result.exit_code) == ("world\nhello", 0)
    assert not client.containers.list(all=True)  # it is removed at its end

    started = await kit.run("app", ["sh", "-c", "echo up; exec sleep 600"], name="svc", detach=True)
    assert started.success, started.observation()
    assert "svc" in (await kit.ps()).content
    failed = await kit.exec("svc", ["sh", "-c", "echo inside; exit 7"])
    assert (failed.content, failed.exit_code, failed.outcome) == ("inside", 7, Outcome.ERROR)
    assert (await kit.logs("svc")).content == "up"
    facts = (await kit.inspect("svc")).metadata
    assert (facts["status"], facts["image"], facts["network"]) == ("running", "app:latest", "none")
    assert "still runs" in (await kit.rm("svc")).error
    assert (await kit.stop("svc", grace_seconds=0)).metadata["container_exit_code"] == 137
    assert (await kit.rm("svc")).success
    assert (await kit.ps()).content == "This run has no containers."
    assert [row["name"] for row in (await kit.images()).metadata["images"]] == ["app:latest"]  # type: ignore[attr-defined]
    assert "size_mib" in (await kit.inspect("app")).content
    assert (await kit.rm("app")).success
    assert not client.images.list(name=f"{kit.owner.namespace}/app")


async def test_what_a_process_in_it_can_do(kit: DockerTool) -> None:
    look = "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ls /sys/class/net; ls /dev"
    nothing = "0000000000000000"
    bare = [str(UID), "CapEff:", nothing, "CapBnd:", nothing, "NoNewPrivs:", "1"]
    result = await run(kit, look)
    assert result.content.split()[:7] == bare
    assert not {"eth0", "kmsg"} & set(result.content.split())
    assert (await run(kit, "mount -t tmpfs x /mnt || mount -o remount,rw /workspace")).exit_code != 0
    assert (await run(kit, "touch /workspace/x")).exit_code == 1
    ended = [entry.outcome for entry in kit.pipeline.trail.entries if entry.outcome is not Outcome.STARTED]
    assert ended == [Outcome.SUCCESS, Outcome.ERROR, Outcome.ERROR]
    # Commands beside it have no more.
    await run(kit, "sleep 600", name="svc", detach=True)
    assert (await kit.exec("svc", ["sh", "-c", look])).content.split()[:7] == bare


async def test_memory_and_processes_are_bounded(kit: DockerTool) -> None:
    hungry = await run(kit, "x=$(yes | head -c 100000000); echo ${#x}", memory_mb=16)
    assert hungry.exit_code == 137 or "memory" in hungry.observation().lower(), hungry.observation()
    many = await run(kit, "for i in $(seq 30); do sleep 5 & done; wait", pids=10)
    assert many.exit_code != 0
    assert "fork" in many.content
    ended = [entry.outcome for entry in kit.pipeline.trail.entries if entry.outcome is not Outcome.STARTED]
    assert ended[-1] is Outcome.ERROR


async def test_images_that_may_not_be_used(kit: DockerTool, root: Path, client: Any) -> None:
    client.images.get("base:1").tag("other", "1")
    for image in ("other:1", "sha256:" + "a" * 64, client.images.get("base:1").id, "--privileged"):
        result = await kit.call("run", {"image": image})
        assert (result.outcome, kit.pipeline.trail.entries[-1].decision) == (Outcome.REFUSED, Decision.REFUSED), image
    (root / "Dockerfile").write_text("FROM scratch\nCOPY --from=other:1 / /\n")
    assert (await kit.build("app")).outcome is Outcome.REFUSED
    client.images.remove("other:1")


async def test_runs_do_not_see_each_other(kit: DockerTool, root: Path, policy: DockerPolicy) -> None:
    (root / "Dockerfile").write_text("FROM base:1\n")
    async with DockerTool(root, policy=policy, owner=Owner(tenant="other")) as other:
        assert (await other.build("theirs")).success
        started = await run(other, "sleep 600", name="svc", detach=True)
        assert "no containers" in (await kit.ps()).content
        assert "theirs" not in (await kit.images()).content
        for reference in ("svc", f"{other.owner.namespace}-svc", str(started.metadata["id"])):
            container, name = {"container": reference}, {"name": reference}
            calls = {"logs": container, "stop": container, "rm": {**name, "force": True}, "inspect": name}
            for operation, arguments in {**calls, "exec": {**container, "command": ["id"]}}.items():
                result = await kit.call(operation, arguments)
                assert f"this run has no container {reference!r}" in result.error
                assert kit.pipeline.trail.entries[-1].outcome is Outcome.ERROR
        for image in ("theirs", f"{other.owner.namespace}/theirs:latest"):
            assert (await kit.call("run", {"image": image})).outcome is Outcome.REFUSED
        assert "svc" in (await other.ps()).content
