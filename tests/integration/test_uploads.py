"""Repositories that clients send: taken, worked on, and refused where they would do harm."""

from __future__ import annotations

import hashlib
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import acting_for
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, unpack_branch
from swe_ai_fleet.domain.access import SOLE
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import git
from tests.fleet_client import Client
from tests.orchestrator_service import field_named, refusal
from tests.scripts import HELLO

CHUNK = 1024


@pytest.fixture(autouse=True)
def caller() -> Iterator[None]:
    with acting_for(SOLE):
        yield


def bundle_of(repository: Path, *refs: str) -> bytes:
    made = repository.parent / f"{uuid.uuid4().hex}.bundle"
    git(repository, "bundle", "create", "--quiet", str(made), *(refs or ("HEAD", "main")))
    return made.read_bytes()


def pieces(bundle: bytes, **header: object) -> Iterable[pb.UploadRepositoryRequest]:
    yield pb.UploadRepositoryRequest(header=pb.UploadRepositoryHeader(**header))
    for offset in range(0, len(bundle), CHUNK):
        yield pb.UploadRepositoryRequest(chunk=bundle[offset : offset + CHUNK])


async def test_an_upload_is_named_by_its_content_and_takes_no_push(client: Client, repository: Path) -> None:
    bundle = bundle_of(repository)
    digest = hashlib.sha256(bundle).hexdigest()
    stub, call = client.stub, client.call
    first = await stub.UploadRepository(pieces(bundle, digest=digest, size_bytes=len(bundle), ref="main"), **call)
    again = await stub.UploadRepository(pieces(bundle), **call)
    assert first == again == pb.RepoRef(upload_id=digest, ref="main")
    pushing = pb.OrchestrateRequest(task_description=HELLO, repo=first, delivery=pb.Delivery(push=True))
    _, _, details = await refusal(stub.Orchestrate(pushing, **call))
    assert field_named(details) == "delivery.push"


# --- without a fleet --------------------------------------------------------------------------------------------


HEADERS: tuple[tuple[dict[str, object], str], ...] = (
    ({"digest": "0" * 64}, "header.digest"), ({"size_bytes": 5}, "header.size_bytes"),
    ({"ref": "main:utils.py"}, "header.ref"), ({"commit": "1" * 40}, "header.commit"),
    ({"subdirectory": "../x"}, "repo.subdirectory"),
)  # fmt: skip


async def test_what_the_header_says_has_to_hold(node: Node, repository: Path) -> None:
    bundle = bundle_of(repository)
    for header, named in HEADERS:
        with pytest.raises(InvalidRequest) as caught:
            await node.upload(pieces(bundle, **header))
        assert caught.value.field == named, header


def _tree_with(repository: Path, name: bytes) -> None:
    """Let HEAD have a tree with an entry that git itself would never write."""
    entry = b"100644 " + name + b"\0" + bytes.fromhex(git(repository, "rev-parse", "HEAD:utils.py"))
    argv = ("git", "hash-object", "-t", "tree", "--literally", "-w", "--stdin")
    made = subprocess.run(argv, input=entry, cwd=repository, capture_output=True, check=True)
    tree = made.stdout.decode().strip()
    git(repository, "update-ref", "HEAD", git(repository, "commit-tree", tree, "-m", "harm"))


def _submodule(repository: Path) -> None:
    (repository / ".gitmodules").write_text('[submodule "../../x"]\n\tpath = x\n\turl = --upload-pack=touch\n')
    git(repository, "add", ".gitmodules")
    git(repository, "commit", "-q", "-m", "harm")


HARM: dict[str, Callable[[Path], None]] = {
    "dotdot": lambda repository: _tree_with(repository, b".."),
    "dotgit": lambda repository: _tree_with(repository, b".git"),
    "submodule": _submodule,
}


@pytest.mark.parametrize("harm", HARM)
async def test_a_tree_that_would_do_harm_is_refused(node: Node, repository: Path, harm: str) -> None:
    HARM[harm](repository)
    with pytest.raises(InvalidRequest) as caught:
        await node.upload(pieces(bundle_of(repository)))
    assert caught.value.field == "chunk"


SPOILT: tuple[Callable[[bytes], bytes], ...] = (
    lambda bundle: b"",
    lambda bundle: bundle[:-30],
    lambda bundle: bundle[: bundle.index(b"PACK") + 8] + b"\xff\xff\xff\xff" + bundle[bundle.index(b"PACK") + 12 :],
    *(
        lambda bundle, name=name: bundle.replace(b" refs/heads/main\n", b" " + name + b"\n", 1)
        for name in (b"refs/heads/../../../hooks/x", b"refs/heads/x.lock", b"refs/heads/\xff", b"config")
    ),
    lambda bundle: bundle.replace(b"# v2 git bundle\n", b"# v3 git bundle\n@filter=blob:none\n"),
    lambda bundle: bundle.replace(b"# v2 git bundle\n", b"# v2 git bundle\n-" + b"1" * 40 + b" x\n"),
    lambda bundle: b"# v2 git bundle\n" + b"1" * 2_000_000,
)


async def test_a_bundle_that_is_none_is_refused(node: Node, repository: Path, tmp_path: Path) -> None:
    bundle = bundle_of(repository)
    git(repository, "commit", "-q", "--allow-empty", "-m", "more")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    for number, spoilt in enumerate((*(spoil(bundle) for spoil in SPOILT), bundle_of(tmp_path / "shallow"))):
        with pytest.raises(InvalidRequest) as caught:
            await node.upload(pieces(spoilt))
        assert caught.value.field == "chunk", number


async def test_a_server_names_one_new_branch_and_no_other(repository: Path, tmp_path: Path) -> None:
    server = tmp_path / "server"
    git(tmp_path, "clone", "-q", str(repository), str(server))
    git(server, "checkout", "-q", "-b", "fleet/sly")
    git(server, "commit", "-q", "--allow-empty", "-m", "ahead")
    git(server, "update-ref", "refs/heads/work/mine", "HEAD")
    (tmp_path / "delivered").write_bytes(bundle_of(server, "--all"))
    git(repository, "branch", "-q", "-m", "main", "work/mine")
    git(repository, "checkout", "-q", "--detach")
    before = git(repository, "for-each-ref")
    for name in ("*", "fleet/*", "x:refs/heads/main", "-x", "a..b", ""):
        with pytest.raises(InvalidRequest):
            await unpack_branch(repository, tmp_path / "delivered", name)
        assert git(repository, "for-each-ref") == before, name


class Node:
    """A node, and the uploads that it takes; nodes of one log share what they took."""

    def __init__(self, place: Path, log: MemoryLog, *, max_bytes: int = 1_000_000) -> None:
        self.workspaces = GitWorkspaceProvider(place, Sandbox(SandboxPolicy(level=IsolationLevel.NONE)), fetch=log.get)
        self.uploads = Uploads(workspaces=self.workspaces, blobs=log, max_bytes=max_bytes)

    async def upload(self, requests: Iterable[pb.UploadRepositoryRequest]) -> pb.RepoRef:
        async def sent() -> AsyncIterator[pb.UploadRepositoryRequest]:
            for request in requests:
                yield request

        return await self.uploads.receive(sent())

    async def pin(self, taken: pb.RepoRef | str, ref: str = "", *, tenant: str = "default") -> PinnedRepository:
        name = taken if isinstance(taken, str) else taken.upload_id
        return await self.workspaces.pin(tenant, RepoRef(location=f"upload:{name}", ref=ref))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "one", MemoryLog())


async def test_every_node_and_only_the_tenant_has_it(repository: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    git(repository, "tag", "-a", "-m", "v", "v1")
    git(repository, "checkout", "-q", "-b", "side")
    head, stolen = git(repository, "rev-parse", "HEAD"), "refs/fleet/delivered/someone-elses"
    git(repository, "update-ref", stolen, "HEAD")
    here, there = Node(tmp_path / "one", log), Node(tmp_path / "two", log)
    taken = await here.upload(pieces(bundle_of(repository, "--all", "HEAD")))
    for node in (here, there):
        for ref, branch in (("", "main"), ("side", "side"), ("v1", ""), ("refs/heads/side", "side"), (head, "")):
            pinned = await node.pin(taken, ref)
            assert (pinned.commit, pinned.branch) == (head, branch), ref
        # A bundle writes nothing under the fleet's own names either.
        for wrong in ("nowhere", "main~1", ":/x", "-x", "ma*", stolen):
            with pytest.raises(InvalidRequest) as caught:
                await node.pin(taken, wrong)
            assert caught.value.field == "repo.ref"
        with pytest.raises(PreconditionFailed) as refused:
            await node.pin(taken, tenant="another")
        assert refused.value.field == "repo.upload_id"
    with pytest.raises(InvalidRequest):
        await here.pin("../../etc")


async def test_nothing_stays_of_what_is_refused(repository: Path, tmp_path: Path) -> None:
    class FullStore(MemoryLog):
        async def put(self, *arguments: object, **named: object) -> BlobRef:
            raise ResourceExhausted("maximum bytes exceeded")

    small, full = Node(tmp_path / "one", MemoryLog(), max_bytes=300), Node(tmp_path / "one", FullStore())
    for node, kind in ((small, InvalidRequest), (full, ResourceExhausted)):
        with pytest.raises(kind) as caught:
            await node.upload(pieces(bundle_of(repository)))
        assert isinstance(caught.value, FleetError) and caught.value.hint
    with pytest.raises(InvalidRequest) as caught:
        await small.upload([pb.UploadRepositoryRequest(chunk=b"x")])
    assert caught.value.field == "header"
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix not in (".lock", ".key")] == []
