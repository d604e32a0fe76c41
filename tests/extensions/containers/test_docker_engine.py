"""DockerTool against a real engine: what it makes, what it holds back, what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.extensions.containers.toolkit import DockerPolicy, DockerTool, OwningRun
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


async def test_runs_do_not_see_each_other(kit: DockerTool, root: Path, policy: DockerPolicy) -> None:
    (root / "Dockerfile").write_text("FROM base:1\n")
    async with DockerTool(root, policy=policy, owner=OwningRun(tenant="other")) as other:
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
