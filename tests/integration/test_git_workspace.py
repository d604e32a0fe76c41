"""Pinning, clones, and delivery: real git, real sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import Bounds, GitClone, GitWorkspaceProvider
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, PatchRejected, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, RepoRef, UncommittedChanges
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository, write_files
from tests.environments import provider_at

FILES = {"app.py": "answer = 41\n", "docs/guide.md": "# Guide\n", ".gitignore": "*.log\n"}
GOOD = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-answer = 41\n+answer = 42\n"
BARE = Environment()


def surroundings(root: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(root / "user")}


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return provider_at(tmp_path, surroundings=surroundings(tmp_path))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", FILES)


async def sh(clone: GitClone, line: str) -> str:
    identity = {"ID": "-c user.name=a -c user.email=a@example.org"}
    result = await clone.run(Command(argv=("sh", "-c", line), variables=identity, merge_stderr=True))
    assert result.ok, result.stdout.text()
    return result.stdout.text().strip()


def ref(repo: Path, **options: object) -> RepoRef:
    return RepoRef(location=str(repo), **options)  # pyright: ignore[reportArgumentType]


def snapshot(tree: Path, skip: tuple[bytes, ...] = ()) -> dict[bytes, tuple[object, ...]]:
    """Everything about a directory that somebody could notice."""
    found: dict[bytes, tuple[object, ...]] = {}
    for folder, names, files in os.walk(os.fsencode(tree)):
        names[:] = [name for name in names if name not in skip]
        for name in [*names, *files]:
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            content: bytes = b""
            if stat.S_ISLNK(facts.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(facts.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            # git touches the time of an object that it would otherwise write again.
            timeless = stat.S_ISDIR(facts.st_mode) or b".git/objects/" in path
            found[os.path.relpath(path, os.fsencode(tree))] = (
                facts.st_mode, content, None if timeless else facts.st_mtime_ns, None if timeless else facts.st_ino
            )  # fmt: skip
    return found


def contents(tree: Path) -> dict[bytes, tuple[object, ...]]:
    return {
        name: (facts[0], facts[1])
        for name, facts in snapshot(tree, skip=(b".git",)).items()
        if not stat.S_ISDIR(int(str(facts[0])))
    }


WRONG: tuple[tuple[str, dict[str, str]], ...] = (
    *(("ref", {"ref": name}) for name in ("missing", "--upload-pack=touch x", "main\nHEAD", "HEAD:app.py")),
    ("commit", {"commit": "0" * 40}),
    *(("subdirectory", {"subdirectory": name}) for name in ("missing", "app.py", "../x", "/etc")),
)


class TestPin:
    async def test_head_a_branch_a_tag_a_commit_a_directory(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        first = git(repo, "rev-parse", "HEAD")
        git(repo, "tag", "-a", "v1", "-m", "one")
        git(repo, "branch", "side")
        second = commit_files(repo, {"app.py": "answer = 42\n"})
        head = await provider.pin("default", ref(repo))
        assert (head.commit, head.branch, head.location, head.snapshot_of) == (second, "main", str(repo), "")
        assert (await provider.pin("default", ref(repo, ref="side"))).branch == "side"
        for named in ("side", "v1", "main~1", first[:10]):
            assert (await provider.pin("default", ref(repo, ref=named))).commit == first
        by_commit = await provider.pin("default", ref(repo, ref="main", commit=first[:12]))
        assert (by_commit.commit, by_commit.branch) == (first, "")
        pinned = await provider.pin("default", ref(repo / "docs"))
        assert (pinned.location, pinned.subdirectory) == (str(repo), "docs")
        assert (await provider.pin("default", ref(repo, subdirectory="./docs/"))).subdirectory == "docs"

    async def test_what_cannot_be_pinned(self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
        for field, options in WRONG:
            with pytest.raises((InvalidRequest, PreconditionFailed)) as caught:
                await provider.pin("default", ref(repo, **options))
            assert caught.value.field == f"repo.{field}", options
        with pytest.raises(PreconditionFailed, match="git directory"):
            await provider.pin("default", ref(repo / ".git" / "refs"))
        (tmp_path / "plain").mkdir()
        with pytest.raises(PreconditionFailed, match="not a git repository") as caught:
            await provider.pin("default", ref(tmp_path / "plain"))
        assert caught.value.field == "repo.path" and "git init" in caught.value.hint
        with pytest.raises(PreconditionFailed, match="no commit"):
            await provider.pin("default", ref(make_repository(tmp_path / "empty")))

    async def test_bare_shallow_worktree_and_sha256(
        self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
    ) -> None:
        commit_files(repo, {"b": "b"})
        commit = commit_files(repo, {"c": "c"})
        git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "shallow")
        git(repo, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
        git(tmp_path, "init", "-q", "--object-format=sha256", "wide")
        git(tmp_path / "wide", "commit", "-q", "--allow-empty", "-m", "wide")
        for place in ("bare.git", "shallow", "linked"):
            pinned = await provider.pin("default", ref(tmp_path / place))
            assert pinned.commit == commit, place
            async with provider.open("e1", "a", pinned, BARE) as clone:
                assert await sh(clone, "git log --oneline | wc -l") == ("1" if place == "shallow" else "3")
            delivered = await provider.deliver("e1", pinned, GOOD, Delivery(branch=f"fleet/{place}"))
            assert git(tmp_path / place, "rev-parse", f"fleet/{place}") == delivered.commit_sha
        wide = await provider.pin("default", ref(tmp_path / "wide"))
        assert len(wide.commit) == 64
        async with provider.open("e1", "a", wide, BARE) as clone:
            (clone.root / "new").write_text("x")
            assert (await clone.diff()).files == ("new",)
            assert (await clone.head()) == (wide.commit, "fleet/work")

    async def test_parts_outside_the_roots(self, tmp_path: Path, repo: Path) -> None:
        inside = tmp_path / "inside"
        inside.mkdir()
        provider = provider_at(inside)
        git(tmp_path, "clone", "-q", "--shared", str(repo), str(inside / "borrows"))
        git(repo, "worktree", "add", "-q", "-b", "other", str(inside / "linked"))
        for place in ("borrows", "linked"):
            with pytest.raises(InvalidRequest, match="outside the allowed roots"):
                await provider.pin("default", ref(inside / place))
        elsewhere = make_repository(inside / "elsewhere", FILES)
        git(elsewhere, "config", "core.worktree", str(repo))
        with pytest.raises(InvalidRequest, match="outside the allowed roots"):
            await provider.pin("default", ref(elsewhere))


class TestUncommittedChanges:
    async def test_they_are_refused_by_default_and_can_be_ignored(
        self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
    ) -> None:
        # A clean tree has no snapshot; what the user's own files ignore is no change.
        write_files(tmp_path, {"user/.config/git/ignore": ".env\n"})
        (repo / ".git/info/exclude").write_text("scratch/\n")
        write_files(repo, {".env": "TOKEN=1", "scratch/a": ""})
        before = snapshot(repo)
        pinned = await provider.pin("default", ref(repo, uncommitted=UncommittedChanges.INCLUDE))
        assert (pinned.snapshot_of, snapshot(repo)) == ("", before)
        commit_files(repo, {"b": "b"})
        write_files(repo, {"app.py": "answer = 42\n", "new.py": "", "debug.log": "ignored"})
        with pytest.raises(PreconditionFailed) as caught:
            await provider.pin("default", ref(repo))
        assert "app.py, new.py" in caught.value.message
        assert "debug.log" not in caught.value.message
        assert "--include-dirty" in caught.value.hint and "--ignore-dirty" in caught.value.hint
        pinned = await provider.pin("default", ref(repo, uncommitted=UncommittedChanges.IGNORE))
        async with provider.open("e1", "a", pinned, BARE) as clone:
            assert (clone.root / "app.py").read_text() == "answer = 41\n"
        # They belong to HEAD only.
        assert (await provider.pin("default", ref(repo, ref="main~1"))).snapshot_of == ""
        with pytest.raises(PreconditionFailed, match="belong to HEAD"):
            await provider.pin("default", ref(repo, ref="main~1", uncommitted=UncommittedChanges.INCLUDE))

    async def test_they_can_be_included_without_a_trace(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        head = git(repo, "rev-parse", "HEAD")
        write_files(repo, {"app.py": "answer = 42\n", "staged.py": "s = 1\n", "new.py": "n = 1\n", "debug.log": "x"})
        git(repo, "add", "staged.py")
        (repo / "docs/guide.md").unlink()
        before = snapshot(repo)
        pinned = await provider.pin("default", ref(repo, uncommitted=UncommittedChanges.INCLUDE))
        again = await provider.pin("default", ref(repo, uncommitted=UncommittedChanges.INCLUDE))
        assert snapshot(repo) == before
        assert pinned == again
        assert (pinned.snapshot_of, pinned.branch) == (head, "main")
        async with provider.open("e1", "a", pinned, BARE) as clone:
            names = sorted(os.fsdecode(name) for name in contents(clone.root))
            assert names == [".gitignore", "app.py", "new.py", "staged.py"]
            assert await sh(clone, "git rev-parse HEAD~1") == head
            assert (await clone.diff()).patch == b""
        # A seed that is gone is planted again.
        await asyncio.to_thread(shutil.rmtree, repo.parent / "home/seeds")
        async with provider.open("e1", "a", pinned, BARE) as clone:
            assert (clone.root / "app.py").read_text() == "answer = 42\n"

    async def test_a_change_of_the_same_size_in_the_same_instant_is_seen(
        self, provider: GitWorkspaceProvider, repo: Path
    ) -> None:
        for number in range(5):
            commit_files(repo, {"app.py": f"answer = {number}0\n"})
            index = (repo / ".git/index").stat()
            (repo / "app.py").write_text(f"answer = {number}1\n")
            os.utime(repo / "app.py", ns=(index.st_atime_ns, index.st_mtime_ns))
            with pytest.raises(PreconditionFailed, match=r"app\.py"):
                await provider.pin("default", ref(repo))

    async def test_a_merge_under_way(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        git(repo, "checkout", "-q", "-b", "side")
        commit_files(repo, {"app.py": "side\n"})
        git(repo, "checkout", "-q", "main")
        commit_files(repo, {"app.py": "main\n"})
        with pytest.raises(subprocess.CalledProcessError):
            git(repo, "merge", "-q", "side")
        with pytest.raises(PreconditionFailed, match="conflicts"):
            await provider.pin("default", ref(repo, uncommitted=UncommittedChanges.INCLUDE))


class TestClone:
    async def test_what_an_agent_finds(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "agent-1", pinned, BARE) as clone:
            assert clone.base_commit == pinned.commit
            assert clone.mount == "/workspace"
            assert (
                await sh(clone, "pwd; git status --porcelain; git remote; git branch -a") == "/workspace\n* fleet/work"
            )
            assert await sh(clone, "git config user.name; git config user.email") == "SWE AI Fleet\nfleet@localhost"
            await sh(clone, "git checkout -q -b mine && echo 1 > x && git add x && git commit -q -m x && git gc -q")
            commit, branch = await clone.head()
            assert (branch, commit) == ("mine", await sh(clone, "git rev-parse HEAD"))
            assert commit != pinned.commit
            await sh(clone, "git checkout -q --detach")
            assert await clone.head() == (commit, "")
            await sh(clone, "rm -rf .git")
            assert await clone.head() == ("", "")
            assert (await clone.diff()).files == ("x",)

    async def test_no_later_commit_can_be_reached(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        first = git(repo, "rev-parse", "HEAD")
        future = commit_files(repo, {"app.py": "the future fix\n"})
        git(repo, "tag", "solution")
        git(repo, "gc", "-q")
        await provider.pin("default", ref(repo))
        pinned = await provider.pin("default", ref(repo, commit=first))
        async with provider.open("e1", "a", pinned, BARE) as clone:
            assert await sh(clone, "git log --all --oneline | wc -l") == "1"
            objects = await sh(clone, "git cat-file --batch-all-objects --batch-check='%(objectname)'")
            assert first in objects
            for thing in (future, git(repo, "rev-parse", "solution:app.py")):
                assert thing not in objects
                assert not (await clone.run(Command(argv=("git", "cat-file", "-e", thing)))).ok
            # The store that it borrows from lies beside others, which must not be there.
            around = await sh(clone, 'cat .git/objects/info/alternates; ls "$(cat .git/objects/info/alternates)/../.."')
            assert future not in around

    async def test_the_borrowed_objects_cannot_be_written(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", pinned, BARE) as clone:
            line = 'cd "$(cat .git/objects/info/alternates)" && { touch x; rm -f pack/*; chmod 777 pack; } 2>&1 | wc -l'
            assert int(await sh(clone, line)) >= 3
        async with provider.open("e1", "b", pinned, BARE) as clone:
            assert await sh(clone, "git fsck --full 2>&1") == ""

    async def test_pins_and_clones_at_once(self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
        providers = [provider, *(provider_at(tmp_path) for _ in range(7))]
        pins = await asyncio.gather(*(one.pin("default", ref(repo)) for one in providers))
        (pinned,) = set(pins)
        assert not list((tmp_path / "home/seeds").glob("*/.new-*"))
        meeting = asyncio.Barrier(8)

        async def work(number: int) -> tuple[str, ...]:
            async with provider.open("e1", "same-name", pinned, BARE) as clone:
                (clone.root / f"file-{number}").write_text("x")
                await meeting.wait()
                return (await clone.diff()).files

        found = await asyncio.gather(*(work(number) for number in range(8)))
        assert sorted(found) == [(f"file-{number}",) for number in range(8)]
        # Tenants share nothing.
        await provider.pin("other", ref(repo))
        assert len(list((tmp_path / "home/seeds").iterdir())) == 2
        for execution, name in (("../x", "a"), ("e1", "../../a"), ("", "a")):
            with pytest.raises(InvalidRequest):
                async with provider.open(execution, name, pinned, BARE):
                    pass

    async def test_nothing_is_left(self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", pinned, BARE) as clone:
            await sh(clone, "mkdir -p locked/deep && touch locked/deep/x && chmod 000 locked/deep && chmod 500 locked")
            await sh(clone, f"ln -s / rootlink; mkfifo pipe; python3 -c '{DEEP}'")
        assert not list((tmp_path / "home/workspaces").iterdir())
        assert not list((tmp_path / "home/scratch").iterdir())

        async def hold() -> None:
            async with provider.open("e1", "a", pinned, BARE) as clone:
                await clone.run(Command(argv=("sleep", "60"), light=True))

        # Nor of one whose opening is cancelled.
        loop = asyncio.get_running_loop()
        for delay in (0.0, 0.001, 0.005, 0.01, 0.02, 0.04, 0.1):
            task = asyncio.create_task(hold())
            loop.call_later(delay, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not list((tmp_path / "home/workspaces").glob("*/*"))


DEEP = """
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""

HOLDER = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy

async def main():
    root = Path(sys.argv[1])
    provider = GitWorkspaceProvider(
        root / "home", Sandbox(SandboxPolicy()), allowed_roots=(root,), allow_local_paths=True
    )
    pinned = await provider.pin("default", RepoRef(location=str(root / "repo")))
    async with provider.open("e1", "a", pinned, Environment()):
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


class TestReaper:
    async def test_a_killed_process_is_tidied_up_after(
        self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
    ) -> None:
        with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert await asyncio.to_thread(holder.stdout.readline) == b"open\n"
            workspaces = tmp_path / "home/workspaces"
            assert (await provider.reap()).workspaces == 0
            await provider.release("e1")
            assert len(list(workspaces.glob("e1/*/tree/app.py"))) == 1
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        assert (await provider.reap()).workspaces == 1
        assert not list(workspaces.iterdir())

    async def test_age_takes_what_no_execution_holds(
        self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
    ) -> None:
        held = await provider.pin("default", ref(repo))
        commit_files(repo, {"b": "b"})
        await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", held, BARE):
            pass
        for seed in (tmp_path / "home/seeds").glob("*/*"):
            os.utime(seed, (0, 0))
        for cache in (tmp_path / "home/repositories").iterdir():
            os.utime(cache, (0, 0))
        begun = tmp_path / "home/repositories/.new-begun"
        begun.mkdir()
        (begun / "pack").write_bytes(b"what a killed process was receiving")
        os.utime(begun, (0, 0))
        reaped = await provider.reap()
        assert not begun.exists()
        assert (reaped.seeds, reaped.caches, reaped.environments) == (1, 1, 0)
        assert [seed.name for seed in (tmp_path / "home/seeds").glob("*/[0-9a-f]*")] == [held.commit]
        await provider.release("e1")
        assert (await provider.reap()).seeds == 1


class TestDiffAndApply:
    async def test_every_kind_of_change(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "change.py": "a\nb\nc\n", "delete.py": "x\n", "mode.sh": "echo\n", "binary.bin": bytes(range(256)),
            "rename/old.py": "long enough\n" * 20, "no-newline": "x", "crlf.txt": "a\r\nb\r\n",
            "latin.txt": b"caf\xe9\n", "becomes-link": "x", "becomes-dir": "x", "dir/becomes-file/x": "x",
        }  # fmt: skip
        repo = make_repository(tmp_path / "kinds", files)
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", pinned, BARE) as clone, provider.open("e1", "b", pinned, BARE) as clean:
            root = clone.root
            (root / "change.py").write_text("a\nB\nc\nd\n")
            (root / "delete.py").unlink()
            (root / "mode.sh").chmod(0o755)
            (root / "binary.bin").write_bytes(bytes(reversed(range(256))))
            (root / "rename/old.py").rename(root / "rename/new name.py")
            (root / "no-newline").write_text("y")
            (root / "crlf.txt").write_bytes(b"a\r\nB\r\n")
            (root / "latin.txt").write_bytes(b"caf\xe8\n")
            (root / "link").symlink_to("/etc/passwd")
            (root / "becomes-link").unlink()
            (root / "becomes-link").symlink_to("dir")
            (root / "becomes-dir").unlink()
            (root / "dir/becomes-file/x").unlink()
            (root / "dir/becomes-file").rmdir()
            write_files(root, {"becomes-dir/x": "x", "dir/becomes-file": "x", "empty": "", "tab\tand\nbreak": "x"})
            # A file that no line but the header names, and a name that git's own reader takes apart wrongly.
            write_files(root, {"- /-": "", "a b/x b/a b/x": "", 'q"uo\\te': "x", "é .\t'/ é": b"\x00\x01", ".-": ""})
            Path(os.fsdecode(os.fsencode(root) + b"/not-utf8-\xff")).write_bytes(b"\xff\x00")
            diff = await clone.diff()
            assert diff == await clone.diff()
            assert diff.insertions >= 20
            assert diff.deletions >= 20
            assert "not-utf8-\\xff" in diff.files
            await clean.apply(diff.patch)
            assert contents(clean.root) == contents(root)
            assert await sh(clean, "git status --porcelain --untracked-files=all | grep -cv '^[AMDRT] '; true") == "0"
            assert (await clean.diff()).patch == diff.patch

    async def test_committed_staged_and_loose_changes_all_count(
        self, provider: GitWorkspaceProvider, repo: Path
    ) -> None:
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", pinned, BARE) as clone:
            await sh(clone, "echo 1 > a && git add a && git commit -q -m a && echo 2 > b && git add b && echo 3 > c")
            await sh(
                clone, "echo ignored > x.log && mkdir __pycache__ node_modules && touch __pycache__/a node_modules/b"
            )
            diff = await clone.diff()
            assert diff.files == ("a", "b", "c")
            assert (diff.insertions, diff.deletions, diff.lines) == (3, 0, 3)
            await sh(clone, "git reset -q --hard HEAD~1 && git clean -qfdx")
            assert (await clone.diff()).patch == b""

    async def test_nested_repositories_are_files(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", pinned, BARE) as clone, provider.open("e1", "b", pinned, BARE) as clean:
            await sh(clone, "git init -q empty && echo 1 > empty/f && echo no > empty/x.log")
            assert (await clone.diff()).files == ("empty/f",)
            await sh(clone, "git init -q full && echo 1 > full/g && cd full && git add g && git $ID commit -q -m g")
            await sh(clone, "git init -q full/deeper && echo 1 > full/deeper/h; git init -q --bare bare")
            await sh(
                clone, "git init -q nothing; git init -q ignored && touch ignored/a.log; mkdir odd && touch odd/.git"
            )
            diff = await clone.diff()
            assert {"empty/f", "full/g", "full/deeper/h", "bare/HEAD"} <= set(diff.files)
            assert not any("/.git/" in name for name in diff.files)
            await clean.apply(diff.patch)
            assert (clean.root / "full/deeper/h").read_text() == "1\n"
            await sh(clone, "rm full/g && echo 2 > full/new")
            files = (await clone.diff()).files
            assert "full/new" in files
            assert "full/g" not in files

    async def test_submodules_stay_as_they_are(
        self, provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
    ) -> None:
        library = make_repository(tmp_path / "library", {"lib.py": ""})
        git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
        git(repo, "commit", "-q", "-m", "submodule")
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", pinned, BARE) as clone:
            assert [path.name for path in (clone.root / "lib").iterdir()] == ["lib.py"]
            await sh(clone, "git init -q lib && cd lib && echo 1 > f && git add f && git $ID commit -q -m f")
            assert (await clone.diff()).files == ()
            await sh(clone, "rm -rf lib")
            assert (await clone.diff()).files == ("lib",)

    async def test_a_patch_that_does_not_fit_changes_nothing(self, provider: GitWorkspaceProvider, repo: Path) -> None:
        pinned = await provider.pin("default", ref(repo))
        stale = GOOD.replace(b"41", b"40")
        outside = new_file("../evil", "100644")
        hook = new_file(".git/hooks/post-checkout", "100755")
        through = new_file("l", "120000", b"/tmp") + new_file("l/x", "100644")
        async with provider.open("e1", "a", pinned, BARE) as clone:
            before = snapshot(clone.root)
            for patch in (b"nonsense", stale, GOOD + stale, outside, hook, through):
                with pytest.raises(PatchRejected):
                    await clone.apply(patch)
                assert contents(clone.root) == {
                    name: facts[:2] for name, facts in before.items() if name in contents(clone.root)
                }
            await clone.apply(b"")
            await clone.apply(GOOD)
            assert await sh(clone, "cat app.py; git diff --cached --stat | tail -1") != ""
            with pytest.raises(PreconditionFailed, match="before anything has run"):
                await clone.apply(GOOD)

    async def test_a_patch_can_be_too_large(self, repo: Path, tmp_path: Path) -> None:
        small = provider_at(tmp_path, bounds=Bounds(patch_bytes=10_000))
        async with small.open("e1", "a", await small.pin("default", ref(repo)), BARE) as clone:
            (clone.root / "large").write_text("some words\n" * 1000)
            with pytest.raises(ResourceExhausted, match="10000 bytes"):
                await clone.diff()
            (clone.root / "large").unlink()
            assert (await clone.diff()).patch == b""

    async def test_attributes_do_not_bend_a_patch(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        repo = make_repository(
            tmp_path / "attributes",
            {
                ".gitattributes": "*.txt text eol=crlf\n*.bin -diff\n*.x diff=python filter=lfs\n",
                "a.txt": "a\nb\n",
                "b.x": "x\n",
            },
        )
        pinned = await provider.pin("default", ref(repo))
        async with provider.open("e1", "a", pinned, BARE) as clone, provider.open("e1", "b", pinned, BARE) as clean:
            assert (await clone.diff()).patch == b""
            assert (clone.root / "a.txt").read_bytes() == b"a\r\nb\r\n"
            write_files(clone.root, {"a.txt": b"a\r\nc\r\n", "n.bin": "text\n", "b.x": "y\n"})
            diff = await clone.diff()
            await clean.apply(diff.patch)
            assert contents(clean.root) == contents(clone.root)


def new_file(name: str, mode: str, content: bytes = b"x") -> bytes:
    lines = (
        f"diff --git a/{name} b/{name}", f"new file mode {mode}", "--- /dev/null", f"+++ b/{name}", "@@ -0,0 +1 @@",
    )  # fmt: skip
    return "\n".join(lines).encode() + b"\n+" + content + b"\n\\ No newline at end of file\n"


# --- delivery: one branch more, and otherwise not a byte changed ---

PATCH = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
OTHER = PATCH.replace(b"+a = 2", b"+a = 3")
DELIVERY = Delivery(
    branch="fleet/task-1",
    author_name="Ada",
    author_email="ada@example.org",
    message="Change a\n\nFleet-Execution: e1",
    push=True,
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"app.py": "a = 1\n", "other.py": "b = 1\n"})


@pytest.fixture
async def pinned(provider: GitWorkspaceProvider, target: Path) -> PinnedRepository:
    return await provider.pin("default", RepoRef(location=str(target)))


def state(target: Path) -> dict[str, tuple[int, bytes]]:
    """All files of a repository but its objects and the fleet's branches."""
    found: dict[str, tuple[int, bytes]] = {}
    for folder, _, names in os.walk(target):
        for name in names:
            path = Path(folder, name)
            key = str(path.relative_to(target))
            if not key.startswith((".git/objects", ".git/refs/heads/fleet", ".git/logs/refs/heads/fleet")):
                found[key] = (path.stat().st_mtime_ns, path.read_bytes())
    return found


async def test_a_commit_on_a_branch_and_nothing_else(
    provider: GitWorkspaceProvider, pinned: PinnedRepository, target: Path
) -> None:
    with pytest.raises(PatchRejected):
        await provider.deliver("e1", pinned, PATCH.replace(b"-a = 1", b"-a = 9"), DELIVERY)
    assert git(target, "branch", "--list", "fleet/*") == ""
    write_files(target, {"other.py": "being edited\n", "loose.txt": "x"})
    before = state(target)
    delivered = await provider.deliver("e1", pinned, PATCH, DELIVERY)
    assert state(target) == before
    assert (delivered.branch, delivered.pushed) == ("fleet/task-1", False)
    assert git(target, "rev-parse", "fleet/task-1", "fleet/task-1~1").split() == [delivered.commit_sha, pinned.commit]
    shown = git(target, "log", "-1", "--format=%an <%ae>|%cn|%B", "fleet/task-1")
    assert shown == "Ada <ada@example.org>|Ada|Change a\n\nFleet-Execution: e1"
    assert git(target, "show", "fleet/task-1:app.py") == "a = 2"
    git(target, "fsck", "--strict")
    # Twice is once.
    objects = git(target, "count-objects", "-v")
    assert await provider.deliver("e1", pinned, PATCH, DELIVERY) == delivered
    assert git(target, "count-objects", "-v") == objects
    # A branch with other content is left alone.
    with pytest.raises(PreconditionFailed, match="other content") as caught:
        await provider.deliver("e2", pinned, OTHER, DELIVERY)
    assert caught.value.field == "delivery.branch"
    assert git(target, "rev-parse", "fleet/task-1") == delivered.commit_sha
    with pytest.raises(PreconditionFailed, match="cannot be used"):
        await provider.deliver("e2", pinned, OTHER, Delivery(branch="fleet/task-1/below"))
    git(target, "branch", "-q", "-D", "fleet/task-1")
    together = await asyncio.gather(*(provider.deliver("e1", pinned, PATCH, DELIVERY) for _ in range(4)))
    assert len(set(together)) == 1
    # So is one that is checked out.
    git(target, "worktree", "add", "-q", "-b", "linked", str(target.parent / "linked"))
    git(target, "symbolic-ref", "HEAD", "refs/heads/unborn")
    for branch in ("linked", "unborn"):
        with pytest.raises(PreconditionFailed, match="checked out") as caught:
            await provider.deliver("e1", pinned, PATCH, Delivery(branch=branch))
        assert caught.value.field == "delivery.branch"


async def test_a_snapshot_is_the_parent(provider: GitWorkspaceProvider, target: Path, tmp_path: Path) -> None:
    write_files(target, {"loose.py": "l = 1\n"})
    before = state(target)
    pinned = await provider.pin("default", RepoRef(location=str(target), uncommitted=UncommittedChanges.INCLUDE))
    delivered: Delivered = await provider.deliver("e1", pinned, PATCH, DELIVERY)
    assert state(target) == before
    assert git(target, "rev-parse", "fleet/task-1~1", "fleet/task-1~2").split() == [pinned.commit, pinned.snapshot_of]
    assert git(target, "show", f"{delivered.commit_sha}:loose.py") == "l = 1"
    git(target, "fsck", "--strict")


async def test_a_base_that_the_repository_has_lost(
    provider: GitWorkspaceProvider, pinned: PinnedRepository, target: Path
) -> None:
    git(target, "checkout", "-q", "--orphan", "anew")
    commit_files(target, {"app.py": "z\n"})
    git(target, "branch", "-q", "-D", "main")
    git(target, "reflog", "expire", "--expire=now", "--all")
    git(target, "gc", "-q", "--prune=now")
    with pytest.raises(PreconditionFailed, match="no longer in the repository"):
        await provider.deliver("e1", pinned, PATCH, DELIVERY)
