"""Environments, of prepared repositories and of others: built in the real sandbox, without a network by default."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, SetupPolicy
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.environments.requirements import npm_lock
from swe_ai_fleet.sandbox import IsolationLevel, NetworkGrant, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from tests.confinement import needs_bwrap, shell, until
from tests.environments import REQUIREMENTS, Index, built, make_provider, pin, run_tests, sh, wheel


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return make_provider(tmp_path)


async def test_requirements_are_installed_once(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    pinned = await pin(provider, tmp_path, REQUIREMENTS)
    first = await provider.environment(pinned, EnvironmentSpec())
    again = await make_provider(tmp_path).environment(pinned, EnvironmentSpec())
    assert (first.cached, again.cached) == (False, True)
    assert (again.key, again.mounts, again.variables) == (first.key, first.mounts, first.variables)
    assert "s3cret" not in str(again)
    assert any("requirements.txt" in note for note in first.notes)
    async with provider.open("e1", "a", pinned, again) as clone:
        tested = await run_tests(clone)
        assert "OK" in tested.stdout.text(), tested.stdout.text()
        assert await sh(clone, "which python3; touch /environment/x") == (
            "/environment/venv/bin/python3\ntouch: cannot touch '/environment/x': Read-only file system"
        )
        assert await sh(clone, "echo $SETUP_ONLY") == ""


async def test_commands_run_in_order_and_once(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    pinned = await pin(provider, tmp_path, {"tool.sh": "#!/bin/sh\necho built\n"})
    spec = EnvironmentSpec(
        setup=(
            "mkdir -p /environment/bin && cp tool.sh /environment/bin/tool && chmod +x /environment/bin/tool",
            "tool > /environment/log && echo $SETUP_ONLY | wc -c >> /environment/log && pwd >> /environment/log",
        )
    )
    async with provider.open("e1", "a", pinned, await provider.environment(pinned, spec)) as clone:
        assert await sh(clone, "cat /environment/log; tool") == "built\n7\n/workspace\nbuilt"
        assert await sh(clone, "git status --porcelain") == ""
    assert (await provider.environment(pinned, spec)).cached
    commit_files(Path(pinned.location), {"b.py": ""})
    moved = await provider.pin("default", RepoRef(location=pinned.location))
    assert not (await provider.environment(moved, spec)).cached
    # A failure names the command and hides secrets.
    before = built(tmp_path)
    wrong = EnvironmentSpec(setup=("touch /environment/x", "echo token $SETUP_ONLY >&2; exit 3"))
    with pytest.raises(PreconditionFailed) as caught:
        await provider.environment(pinned, wrong)
    assert caught.value.field == "environment.setup[1]"
    assert "exit code 3" in caught.value.message and "token ***" in caught.value.message
    assert "s3cret" not in str(caught.value)
    hasty = SetupPolicy(network=NetworkGrant(hosts=()), variables={}, timeout_seconds=0.2)
    with pytest.raises(PreconditionFailed, match="timed out"):
        await make_provider(tmp_path, hasty).environment(pinned, EnvironmentSpec(setup=("sleep 60",)))
    assert built(tmp_path) == before


async def test_what_commands_may_leave_where_is_what_the_document_says(
    provider: GitWorkspaceProvider, tmp_path: Path
) -> None:
    files = {"README": "x\n", ".gitignore": "ignored/\n", "a.txt": "committed\n"}
    lines = (
        "mkdir -p /environment/bin ignored && echo a > /environment/data && echo b > ignored/b && echo c > shown",
        "printf '#!/bin/sh\\necho program\\n' > /environment/bin/program && chmod +x /environment/bin/program",
        "echo changed > a.txt; echo d > ~/left; echo e > /tmp/left; mkdir -p __pycache__ && echo f > __pycache__/f.pyc",
        "export LATER=1; ! echo g > /usr/left",
    )
    repository = await pin(provider, tmp_path, files)
    environment = await provider.environment(repository, EnvironmentSpec(setup=lines, detect=False))
    async with provider.open("e", "a", repository, environment) as clone:
        for line, said in (
            # Stays: in the environment, in the checkout as far as git does not have it.
            ("cat /environment/data ignored/b shown; program", "a\nb\nc\nprogram"),
            ("git status --porcelain", ""),
            # Goes: what git has, home, /tmp, caches, variables. Nothing else can be written to.
            ("cat a.txt; ls ~/left /tmp/left __pycache__ 2>/dev/null; echo $LATER", "committed"),
            # Agents and checks read the environment, and do not write it.
            ("{ echo x > /environment/data; } 2>/dev/null || cat /environment/data", "a"),
        ):
            assert await sh(clone, line) == said, line


async def test_builds_at_once_and_builds_that_end_early(tmp_path: Path) -> None:
    providers = [make_provider(tmp_path) for _ in range(2)]
    provider, places = providers[0], tmp_path / "home/environments"
    pinned = await pin(provider, tmp_path, {"a": ""})
    # One that is cancelled leaves nothing.
    slow = EnvironmentSpec(setup=("touch /environment/started && sleep 60",))
    task = asyncio.create_task(provider.environment(pinned, slow))
    await until(lambda: list(places.glob("*/root/started")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert built(tmp_path) == [] and not list((tmp_path / "home/workspaces").glob("*/*"))
    spec = EnvironmentSpec(setup=("[ ! -e /environment/half ] && head -c 8 /dev/urandom > /environment/whole",))
    found = await asyncio.gather(*(one.environment(pinned, spec) for one in providers))
    assert sorted(environment.cached for environment in found) == [False, True]
    (key,) = {environment.key for environment in found}
    # What a killed build left is built anew, and age takes it.
    (places / key / "facts.json").unlink()
    (places / key / "root/whole").rename(places / key / "root/half")
    assert not (await provider.environment(pinned, spec)).cached
    assert [path.name for path in (places / key / "root").iterdir()] == ["whole"]
    assert (await provider.reap()).environments == 0
    os.utime(places / key, (0, 0))
    assert (await provider.reap()).environments == 1
    assert built(tmp_path) == []


# --- repositories that nobody prepared ---


async def test_a_commit_with_a_patch_has_the_tags_submodules_and_date_of_its_base(
    provider: GitWorkspaceProvider, tmp_path: Path
) -> None:
    library = make_repository(tmp_path / "library", {"data.txt": "7\n"})
    repo = make_repository(tmp_path / "repo", {"a.py": ""})
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(repo, "commit", "--quiet", "--message", "A submodule")
    git(repo, "tag", "v1.2")
    pinned = await provider.pin("default", RepoRef(location=str(repo)))
    git(repo, "rm", "--quiet", "a.py")
    made = await provider.patched("e1", pinned, f"{git(repo, 'diff', '--cached')}\n".encode())
    async with provider.open("e1", "a", made, Environment()) as clone:
        told = await sh(clone, "git describe --tags; cat lib/data.txt; git log -1 --format=%ct")
    # What releases its environment is made of depends on the date.
    tag, data, date = told.splitlines()
    assert tag.startswith("v1.2-1-g") and (data, date) == ("7", git(repo, "log", "-1", "--format=%ct"))


# --- clones and their commands where no namespaces are to be had ---


@pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands anything over")
async def test_nothing_outside_is_handed_over(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "ws"
    outside.mkdir()
    root.mkdir()
    (outside / "file").write_text("x")
    (root / "link").symlink_to(outside)
    (root / "file-link").symlink_to(outside / "file")
    os.link(outside / "file", root / "other-name")
    async with Sandbox(SandboxPolicy(level=IsolationLevel.LANDLOCK)).workspace(root) as workspace:
        deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
        assert (await workspace.run(Command(argv=("python3", "-c", deep)))).ok
        (root / "mine").write_text("x")
        assert (await workspace.run(shell("chmod 700 mine && stat -c %u . mine"))).ok
        assert root.stat().st_uid != 0
        assert [(outside / name).stat().st_uid for name in (".", "file")] == [0, 0]
        assert not (await workspace.run(shell("echo y >> link/file || echo y > file-link"))).ok
    assert {path.lstat().st_uid for path in (root, root / "mine", root / "link", outside / "file")} == {0}
    assert (outside / "file").read_text() == "x"
    # Too deep for those who tidy up after tests.
    assert await (await asyncio.create_subprocess_exec("rm", "-rf", str(root / "d"))).wait() == 0


# --- where no lock says which versions are meant, those of a commit's environment hold for its candidates ---


SPEC = EnvironmentSpec()
OLD, NEW, OTHER = wheel("thing", 1), wheel("thing", 2, "2.0"), wheel("other", 3)
FILES: dict[str, str | bytes] = {"requirements.txt": "thing\n", "tests/test_a.py": "import thing\n"}
WHEELS = {"thing-1.0-py3-none-any.whl": OLD, "other-1.0-py3-none-any.whl": OTHER}
RELEASED = {"thing-2.0-py3-none-any.whl": NEW}


@pytest.fixture
def wheels() -> dict[str, bytes]:
    """What the index has; releases may be added."""
    return dict(WHEELS)


@pytest.fixture
def indexed(tmp_path: Path, wheels: dict[str, bytes]) -> Iterator[GitWorkspaceProvider]:
    with Index(wheels) as index:
        yield make_provider(tmp_path, index.setup)


def patch(path: str, before: str, after: str) -> bytes:
    """A patch of a file with one line."""
    lines = "".join(f"+{line}\n" for line in after.splitlines())
    count = len(after.splitlines())
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1,{count} @@\n-{before}\n{lines}".encode()


def line(name: str, version: str, content: bytes) -> str:
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(content).hexdigest()}"


async def answers(indexed: GitWorkspaceProvider, repository: PinnedRepository, environment: Environment) -> str:
    async with indexed.open("e", "a", repository, environment) as clone:
        return await sh(clone, "python3 -c 'import thing, other; print(thing.answer, other.answer)'")


@pytest.mark.slow  # quick: a candidate that asks for another version
@needs_bwrap
async def test_a_release_that_came_out_in_between_is_not_in_a_candidates_environment(
    indexed: GitWorkspaceProvider, wheels: dict[str, bytes], tmp_path: Path
) -> None:
    base = await indexed.pin("default", RepoRef(location=str(make_repository(tmp_path / "repo", FILES))))
    environment = await indexed.environment(base, SPEC)
    assert line("thing", "1.0", OLD) in environment.report.installed
    wheels.update(RELEASED)
    candidate = await indexed.patched("e", base, patch("requirements.txt", "thing", "thing\nother"))
    tested = await indexed.environment(candidate, SPEC)
    assert await answers(indexed, candidate, tested) == "1 3"
    # What was had from the start keeps its hash, what came has its own.
    assert {line("thing", "1.0", OLD), line("other", "1.0", OTHER)} <= set(tested.report.installed)
    assert any("the versions of the parent commit" in said.what for said in tested.report.decisions)


@needs_bwrap
async def test_a_candidate_that_asks_for_another_version_gets_it(
    indexed: GitWorkspaceProvider, wheels: dict[str, bytes], tmp_path: Path
) -> None:
    base = await indexed.pin("default", RepoRef(location=str(make_repository(tmp_path / "repo", FILES))))
    await indexed.environment(base, SPEC)
    wheels.update(RELEASED)
    candidate = await indexed.patched("e", base, patch("requirements.txt", "thing", "thing>=2\nother"))
    tested = await indexed.environment(candidate, SPEC)
    assert await answers(indexed, candidate, tested) == "2 3"
    assert any("without the pins of thing" in said.what for said in tested.report.decisions)
    assert line("thing", "2.0", NEW) in tested.report.installed


def test_what_a_build_writes_as_npms_notes_is_read_as_text_of_a_strangers() -> None:
    packages = {
        "node_modules/@scope/good": {"version": "1.2.3-rc.1", "integrity": "sha512-" + "A" * 86 + "=="},
        "node_modules/plain": {"version": "2.0.0", "integrity": "\x1b[2J"},
        "node_modules/\x1b]0;title\x07": {"version": "1.0.0"},
        "node_modules/--registry=http://elsewhere": {"version": "1.0.0"},
        "node_modules/broken": {"version": "1.0.0\ninjected==1"},
        "node_modules/member": {"resolved": "packages/member", "link": True},
        "packages/member": {"version": "1.0.0"},
        "node_modules/none": "text",
    }
    lock, lines = npm_lock(json.dumps({"packages": packages}))
    assert lines == (f"@scope/good@1.2.3-rc.1 sha512-{'A' * 86}==", "plain@2.0.0")
    assert set(json.loads(lock)["packages"]) == {"", "node_modules/@scope/good", "node_modules/plain"}
    for text in ("", "[]", "{", '{"packages": 1}', "[" * 200_000):
        assert npm_lock(text) == ("", ())
