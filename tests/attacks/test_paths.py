"""Paths of repositories on the server, aimed at the fleet's own state and at other tenants."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from services.gateway.main import serve
from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.runtime.factories import repository_roots, workspace_provider
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import git, make_repository

FILES = {"a.txt": "secret\n"}


def provider(home: Path, *roots: Path) -> GitWorkspaceProvider:
    return GitWorkspaceProvider(home, Sandbox(SandboxPolicy()), allowed_roots=roots, allow_local_paths=True)


async def refused(fleet: GitWorkspaceProvider, tenant: str, path: Path) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as fault:
        await fleet.pin(tenant, RepoRef(location=str(path)))
    assert fault.value.field == "repo.path"
    return fault.value


async def test_nothing_below_the_fleets_home_is_a_repository(tmp_path: Path) -> None:
    fleet = provider(tmp_path / "home", Path("/"))
    victim = make_repository(tmp_path / "home" / "repositories" / "key", FILES)
    await refused(fleet, "b", victim)
    # Neither by a link, nor as the git directory or the objects of a repository outside.
    (tmp_path / "link").symlink_to(victim)
    await refused(fleet, "b", tmp_path / "link")
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {victim / '.git'}\n")
    await refused(fleet, "b", worktree)
    borrower = make_repository(tmp_path / "borrower", FILES)
    assert (await fleet.pin("b", RepoRef(location=str(borrower)))).commit == git(borrower, "rev-parse", "HEAD")
    (borrower / ".git/objects/info/alternates").write_text(f"{victim / '.git/objects'}\n")
    await refused(fleet, "b", borrower)


async def test_a_tenants_directory_is_not_another_tenants(tmp_path: Path) -> None:
    fleet = provider(tmp_path / "home", tmp_path / "{tenant}")
    own, other = (make_repository(tmp_path / tenant / "repository", FILES) for tenant in ("a", "b"))
    assert (await fleet.pin("a", RepoRef(location=str(own)))).commit
    assert (await fleet.pin("b", RepoRef(location=str(other)))).commit
    assert str(tmp_path / "b") in (await refused(fleet, "b", own)).hint


@pytest.mark.parametrize(
    "door",
    [
        {"http_listen": "0.0.0.0:8000"},
        {"http_listen": "[::]:8000"},
        {"http_hosts": "fleet.example"},
        {"nats_url": "nats://127.0.0.1:4222,nats://nats.example:4222"},
    ],
)
async def test_who_calls_from_elsewhere_names_no_path(tmp_path: Path, door: dict[str, str]) -> None:
    """gRPC listens on loopback, and something before it does not."""
    mine = make_repository(tmp_path / "mine", FILES)
    settings = Settings(home=tmp_path / "home", listen="127.0.0.1:0", sandbox="none", **door)
    assert "not accepted" in (await refused(workspace_provider(settings), "default", mine)).message
    # Control: nobody else can call; or the operator says where repositories are.
    for opened in ({"http_listen": "off"}, {**door, "repository_roots": str(tmp_path)}):
        fleet = workspace_provider(Settings(home=tmp_path / "home", listen="127.0.0.1:0", sandbox="none", **opened))
        assert (await fleet.pin("default", RepoRef(location=str(mine)))).commit


async def test_a_gateway_for_others_wants_roots() -> None:
    settings = Settings(
        listen="127.0.0.1:0",
        http_listen="0.0.0.0:0",
        orchestrator_url="127.0.0.1:1",
        orchestrator_token="t",
        context_url="127.0.0.1:1",
    )
    with pytest.raises(PreconditionFailed) as fault:
        await serve(settings)
    assert fault.value.field == "repository_roots"


async def test_where_an_upload_lies_cannot_be_worked_out(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "source", FILES)
    git(source, "bundle", "create", "-q", str(tmp_path / "bundle"), "HEAD", "main")
    digest = hashlib.sha256((tmp_path / "bundle").read_bytes()).hexdigest()
    identity = "\0".join(("a", "", f"upload:{digest}")).encode()

    async def stored() -> None:
        return None

    places = set[str]()
    for home in (tmp_path / "one", tmp_path / "other"):
        fleet = GitWorkspaceProvider(home, Sandbox(SandboxPolicy()))
        await fleet.take("a", tmp_path / "bundle", digest, RepoRef(location=""), stored)
        (place,) = (path for path in (home / "repositories").iterdir() if path.is_dir())
        assert place.name != hashlib.sha256(identity).hexdigest()[:32]
        assert (home / "repositories.key").stat().st_mode & 0o777 == 0o600
        places.add(place.name)
        # Another process of the installation finds it there; another tenant does not.
        again = GitWorkspaceProvider(home, Sandbox(SandboxPolicy()))
        assert (await again.pin("a", RepoRef(location=f"upload:{digest}"))).commit
        with pytest.raises(PreconditionFailed):
            await again.pin("b", RepoRef(location=f"upload:{digest}"))
    assert len(places) == 2


def test_a_root_for_everybody_beside_an_access_file() -> None:
    with pytest.raises(InvalidRequest) as fault:
        repository_roots(Settings(access_file=Path("access.toml"), repository_roots="/srv"))
    assert fault.value.field == "repository_roots"
    assert "/srv/{tenant}" in fault.value.hint


@pytest.mark.parametrize("place", ["packed-refs", "config", "refs/heads/other"])
async def test_a_link_in_a_git_directory_shows_nothing_of_the_host(tmp_path: Path, place: str) -> None:
    fleet = provider(tmp_path / "home", tmp_path / "{tenant}")
    mine = make_repository(tmp_path / "a" / "repository", FILES)
    assert (await fleet.pin("a", RepoRef(location=str(mine)))).commit
    linked = mine / ".git" / place
    linked.unlink(missing_ok=True)
    (tmp_path / "secret").write_text(f"{'# ' if place == 'config' else ''}the fleet's own token\n")
    linked.symlink_to(tmp_path / "secret")
    if place == "packed-refs":
        # Control: git itself tells whoever asks what stands there.
        told = subprocess.run(["git", "-C", str(mine), "log", "--all"], check=False, capture_output=True, text=True)
        assert "the fleet's own token" in told.stderr
    assert "token" not in (await refused(fleet, "a", mine)).message


@pytest.mark.parametrize("how", ["quoted", "by a link and `..`", "by a link in the store"])
async def test_no_spelling_borrows_another_tenants_objects(tmp_path: Path, how: str) -> None:
    fleet = provider(tmp_path / "home", tmp_path / "{tenant}")
    other = make_repository(tmp_path / "b" / "repository", {"theirs.txt": "theirs\n"})
    mine = make_repository(tmp_path / "a" / "repository", FILES)
    theirs, ours = other / ".git/objects", mine / ".git/objects"
    (ours / "info").mkdir(exist_ok=True)
    alternates = ours / "info/alternates"
    match how:
        case "quoted":
            alternates.write_text(f'"{theirs}"\n')
        case "by a link and `..`":
            # Read by the letter it leads to our own.
            (tmp_path / "b/directory").mkdir()
            (tmp_path / "a/link").symlink_to(tmp_path / "b/directory")
            alternates.write_text(f"{tmp_path}/a/link/../repository/.git/objects\n")
        case _:
            commit = git(other, "rev-parse", "HEAD")
            for name in (commit, git(other, "rev-parse", "HEAD^{tree}"), git(other, "rev-parse", "HEAD:theirs.txt")):
                (ours / name[:2]).mkdir(exist_ok=True)
                (ours / name[:2] / name[2:]).symlink_to(theirs / name[:2] / name[2:])
    # Control: git finds the other's commit there.
    assert git(mine, "cat-file", "-t", git(other, "rev-parse", "HEAD")) == "commit"
    with pytest.raises(InvalidRequest) as fault:
        await fleet.pin("a", RepoRef(location=str(mine), commit=git(other, "rev-parse", "HEAD")))
    assert fault.value.field == "repo.path"
