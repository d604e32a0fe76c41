"""Pinning, clones, and delivery: real git, real sandbox."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone, GitWorkspaceProvider
from swe_ai_fleet.adapters.git_workspace.git import Git
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, PatchRejected, PreconditionFailed
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, RepoRef, UncommittedChanges
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository, write_files
from tests.confinement import living, needs_bwrap, token, until
from tests.environments import provider_at

FILES = {"app.py": "answer = 41\n", "docs/guide.md": "# Guide\n", ".gitignore": "*.log\n"}
GOOD = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-answer = 41\n+answer = 42\n"
BARE = Environment()


def environ_of(root: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(root / "user")}


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return provider_at(tmp_path, environ=environ_of(tmp_path))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", FILES)


async def sh(clone: GitClone, line: str) -> str:
    identity = {"ID": "-c user.name=a -c user.email=a@example.org"}
    result = await clone.run(Command(argv=("sh", "-c", line), variables=identity, merge_stderr=True))
    assert result.ok, result.stdout.text()
    return result.stdout.text().strip()


async def pin(provider: GitWorkspaceProvider, repo: Path, **options: object) -> PinnedRepository:
    return await provider.pin("default", RepoRef(location=str(repo), **options))


@asynccontextmanager
async def cloned(provider: GitWorkspaceProvider, repo: Path, **options: object) -> AsyncGenerator[GitClone]:
    async with provider.open("e1", "a", await pin(provider, repo, **options), BARE) as clone:
        yield clone


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


async def test_head_a_branch_a_tag_a_commit_a_directory(provider: GitWorkspaceProvider, repo: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    git(repo, "tag", "-a", "v1", "-m", "one")
    git(repo, "branch", "side")
    second = commit_files(repo, {"app.py": "answer = 42\n"})
    head = await pin(provider, repo)
    assert (head.commit, head.branch, head.location, head.snapshot_of) == (second, "main", str(repo), "")
    for named, branch in (("side", "side"), ("v1", ""), ("main~1", ""), (first[:10], "")):
        pinned = await pin(provider, repo, ref=named)
        assert (pinned.commit, pinned.branch) == (first, branch)
    by_commit = await pin(provider, repo, ref="main", commit=first[:12])
    assert (by_commit.commit, by_commit.branch) == (first, "")
    pinned = await pin(provider, repo / "docs")
    assert (pinned.location, pinned.subdirectory) == (str(repo), "docs")
    assert (await pin(provider, repo, subdirectory="./docs/")).subdirectory == "docs"


async def test_what_cannot_be_pinned(provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
    for field, options in WRONG:
        with pytest.raises((InvalidRequest, PreconditionFailed)) as caught:
            await pin(provider, repo, **options)
        assert caught.value.field == f"repo.{field}", options
    (tmp_path / "plain").mkdir()
    for place, words, hint in (
        (repo / ".git" / "refs", "git directory", ""), (tmp_path / "plain", "not a git repository", "git init"),
        (make_repository(tmp_path / "empty"), "no commit", ""),
    ):  # fmt: skip
        with pytest.raises(PreconditionFailed, match=words) as caught:
            await pin(provider, place)
        assert hint in caught.value.hint
    # Parts of it that lie outside of the allowed roots.
    inside = tmp_path / "inside"
    elsewhere = make_repository(inside / "elsewhere", FILES)
    git(elsewhere, "config", "core.worktree", str(repo))
    git(tmp_path, "clone", "-q", "--shared", str(repo), str(inside / "borrows"))
    git(repo, "worktree", "add", "-q", "-b", "other", str(inside / "linked"))
    for place in ("elsewhere", "borrows", "linked"):
        with pytest.raises(InvalidRequest, match="outside the allowed roots"):
            await pin(provider_at(inside), inside / place)


async def test_shallow_and_sha256(provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
    commit_files(repo, {"b": "b"})
    commit = commit_files(repo, {"c": "c"})
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "shallow")
    git(tmp_path, "init", "-q", "--object-format=sha256", "wide")
    git(tmp_path / "wide", "commit", "-q", "--allow-empty", "-m", "wide")
    pinned = await pin(provider, tmp_path / "shallow")
    assert pinned.commit == commit
    async with cloned(provider, tmp_path / "shallow") as clone:
        assert await sh(clone, "git log --oneline | wc -l") == "1"
    delivered = await provider.deliver("e1", pinned, GOOD, Delivery(branch="fleet/shallow"))
    assert git(tmp_path / "shallow", "rev-parse", "fleet/shallow") == delivered.commit_sha
    async with cloned(provider, tmp_path / "wide") as clone:
        (clone.root / "new").write_text("x")
        assert (await clone.diff()).files == ("new",)
        assert (len((await clone.head())[0]), (await clone.head())[1]) == (64, "fleet/work")


async def test_uncommitted_changes_are_refused_or_ignored(
    provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
) -> None:
    # What the user's own files ignore is no change.
    write_files(tmp_path, {"user/.config/git/ignore": ".env\n"})
    write_files(repo, {".env": "TOKEN=1"})
    assert (await pin(provider, repo, uncommitted=UncommittedChanges.INCLUDE)).snapshot_of == ""
    # A change of the same size in the same instant is seen.
    commit_files(repo, {"app.py": "answer = 40\n"})
    index = (repo / ".git/index").stat()
    (repo / "app.py").write_text("answer = 41\n")
    os.utime(repo / "app.py", ns=(index.st_atime_ns, index.st_mtime_ns))
    write_files(repo, {"new.py": "", "debug.log": "ignored"})
    with pytest.raises(PreconditionFailed, match=r"app\.py, new\.py") as caught:
        await pin(provider, repo)
    assert "debug.log" not in caught.value.message
    assert "--include-dirty" in caught.value.hint and "--ignore-dirty" in caught.value.hint
    async with cloned(provider, repo, uncommitted=UncommittedChanges.IGNORE) as clone:
        assert (clone.root / "app.py").read_text() == "answer = 40\n"
    # They belong to HEAD only.
    with pytest.raises(PreconditionFailed, match="belong to HEAD"):
        await pin(provider, repo, ref="main~1", uncommitted=UncommittedChanges.INCLUDE)


async def test_they_can_be_included_without_a_trace(provider: GitWorkspaceProvider, repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    write_files(repo, {"app.py": "answer = 42\n", "staged.py": "s = 1\n", "new.py": "n = 1\n", "debug.log": "x"})
    git(repo, "add", "staged.py")
    (repo / "docs/guide.md").unlink()
    before = snapshot(repo)
    pinned = await pin(provider, repo, uncommitted=UncommittedChanges.INCLUDE)
    assert pinned == await pin(provider, repo, uncommitted=UncommittedChanges.INCLUDE)
    assert snapshot(repo) == before
    assert (pinned.snapshot_of, pinned.branch) == (head, "main")
    async with provider.open("e1", "a", pinned, BARE) as clone:
        assert sorted(contents(clone.root)) == [b".gitignore", b"app.py", b"new.py", b"staged.py"]
        assert await sh(clone, "git rev-parse HEAD~1") == head
        assert (await clone.diff()).patch == b""
    # It is what a delivery builds on.
    fix = GOOD.replace(b"answer = 42", b"answer = 43").replace(b"answer = 41", b"answer = 42")
    delivered = await provider.deliver("e1", pinned, fix, DELIVERY)
    assert git(repo, "rev-parse", "fleet/task-1~1", "fleet/task-1~2").split() == [pinned.commit, head]
    assert git(repo, "show", f"{delivered.commit_sha}:new.py") == "n = 1"


async def test_what_an_agent_finds(provider: GitWorkspaceProvider, repo: Path) -> None:
    async with cloned(provider, repo) as clone:
        assert (clone.base_commit, clone.mount) == (git(repo, "rev-parse", "HEAD"), "/workspace")
        assert await sh(clone, "pwd; git status --porcelain; git remote; git branch -a") == "/workspace\n* fleet/work"
        assert await sh(clone, "git config user.name; git config user.email") == "SWE AI Fleet\nfleet@localhost"
        await sh(clone, "git checkout -q -b mine && echo 1 > x && git add x && git commit -q -m x && git gc -q")
        commit, branch = await clone.head()
        assert (branch, commit) == ("mine", await sh(clone, "git rev-parse HEAD"))
        assert commit != clone.base_commit
        await sh(clone, "rm -rf .git")
        assert await clone.head() == ("", "")
        for execution, name in (("../x", "a"), ("e1", "../../a"), ("", "a")):
            with pytest.raises(InvalidRequest):
                await provider.open(execution, name, await pin(provider, repo), BARE).__aenter__()
        assert (await clone.diff()).files == ("x",)


async def test_no_later_commit_can_be_reached(provider: GitWorkspaceProvider, repo: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    future = commit_files(repo, {"app.py": "the future fix\n"})
    git(repo, "tag", "solution")
    git(repo, "gc", "-q")
    await pin(provider, repo)
    async with cloned(provider, repo, commit=first) as clone:
        assert await sh(clone, "git log --all --oneline | wc -l") == "1"
        objects = await sh(clone, "git cat-file --batch-all-objects --batch-check='%(objectname)'")
        assert first in objects
        for thing in (future, git(repo, "rev-parse", "solution:app.py")):
            assert thing not in objects
            assert not (await clone.run(Command(argv=("git", "cat-file", "-e", thing)))).ok
        # The store that it borrows from lies beside others, which must not be there, and cannot be written.
        around = await sh(clone, 'cat .git/objects/info/alternates; ls "$(cat .git/objects/info/alternates)/../.."')
        assert future not in around
        line = 'cd "$(cat .git/objects/info/alternates)" && { touch x; rm -f pack/*; chmod 777 pack; } 2>&1 | wc -l'
        assert int(await sh(clone, line)) >= 3
    async with cloned(provider, repo, commit=first) as clone:
        assert await sh(clone, "git fsck --full 2>&1") == ""


async def test_nothing_is_left(provider: GitWorkspaceProvider, repo: Path, tmp_path: Path) -> None:
    async with cloned(provider, repo) as clone:
        await sh(clone, "mkdir -p locked/deep && touch locked/deep/x && chmod 000 locked/deep && chmod 500 locked")
        await sh(clone, f"ln -s / rootlink; mkfifo pipe; python3 -c '{DEEP}'")
    assert not [*(tmp_path / "home/workspaces").iterdir(), *(tmp_path / "home/scratch").iterdir()]
    # Nor of one whose opening is cancelled.
    for delay in (0.001, 0.02, 0.1):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay), cloned(provider, repo) as clone:
                await clone.run(Command(argv=("sleep", "60"), light=True))
        assert not list((tmp_path / "home/workspaces").glob("*/*"))


@needs_bwrap
async def test_git_that_is_cancelled_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    namespace = (
        "--unshare-user",
        "--unshare-pid",
        "--bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--setenv",
        "PROBE",
        str(tmp_path),
    )
    confining = ("bwrap", *namespace, "--")
    async with asyncio.timeout(60):
        for number in range(100):
            with suppress(TimeoutError):
                async with asyncio.timeout(number % 25 * 0.0005):
                    await Git(os.environ).run("version", cwd=tmp_path, confining=confining)
    assert not living(str(tmp_path))


DEEP = """
import os
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
"""

HOLDER = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy

async def main():
    root, script = Path(sys.argv[1]), f"setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}"
    provider = GitWorkspaceProvider(
        root / "home", Sandbox(SandboxPolicy()), allowed_roots=(root,), allow_local_paths=True
    )
    pinned = await provider.pin("default", RepoRef(location=str(root / "repo")))
    async with provider.open("e1", "a", pinned, Environment()) as clone:
        await clone.run(Command(argv=("sh", "-c", script)))

asyncio.run(main())
"""


async def test_a_killed_process_takes_its_commands_along_and_is_tidied_up_after(
    provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
) -> None:
    workspaces, sleeper = tmp_path / "home/workspaces", token()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path), sleeper]) as holder:
        # The script itself and the shell carry the token, too.
        await until(lambda: len(living(sleeper)) >= 4)
        assert (await provider.reap()).workspaces == 0
        await provider.release("e1")
        assert len(list(workspaces.glob("e1/*/tree/app.py"))) == 1
        holder.kill()
    await until(lambda: not living(sleeper))
    assert (await provider.reap()).workspaces == 1
    assert not list(workspaces.iterdir())


async def test_every_kind_of_change(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "change.py": "a\nb\nc\n", "delete.py": "x\n", "mode.sh": "echo\n", "binary.bin": bytes(range(256)),
        "rename/old.py": "long enough\n" * 20, "no-newline": "x", "crlf.txt": "a\r\nb\r\n",
        "latin.txt": b"caf\xe9\n", "becomes-link": "x", "becomes-dir": "x", "dir/becomes-file/x": "x",
        # Attributes do not bend a patch.
        ".gitattributes": "*.eol text eol=crlf\n*.bin2 -diff\n*.x diff=python filter=lfs\n", "a.eol": "a\nb\n",
        "b.x": "x\n",
    }  # fmt: skip
    repo = make_repository(tmp_path / "kinds", files)
    async with cloned(provider, repo) as clone, cloned(provider, repo) as clean:
        root = clone.root
        assert (await clone.diff()).patch == b""
        assert (root / "a.eol").read_bytes() == b"a\r\nb\r\n"
        for gone in ("delete.py", "becomes-link", "becomes-dir", "dir/becomes-file/x"):
            (root / gone).unlink()
        (root / "dir/becomes-file").rmdir()
        (root / "mode.sh").chmod(0o755)
        (root / "rename/old.py").rename(root / "rename/new name.py")
        (root / "link").symlink_to("/etc/passwd")
        (root / "becomes-link").symlink_to("dir")
        write_files(root, {"change.py": "a\nB\nc\nd\n", "binary.bin": bytes(reversed(range(256))), "no-newline": "y"})
        write_files(root, {"crlf.txt": b"a\r\nB\r\n", "latin.txt": b"caf\xe8\n", "a.eol": b"a\r\nc\r\n", "b.x": "y\n"})
        write_files(root, {"becomes-dir/x": "x", "dir/becomes-file": "x", "empty": "", "tab\tand\nbreak": "x"})
        # A file that no line but the header names, and a name that git's own reader takes apart wrongly.
        write_files(root, {"- /-": "", "a b/x b/a b/x": "", 'q"uo\\te': "x", "é .\t'/ é": b"\x00\x01", ".-": ""})
        Path(os.fsdecode(os.fsencode(root) + b"/not-utf8-\xff")).write_bytes(b"\xff\x00")
        diff = await clone.diff()
        assert diff == await clone.diff()
        assert diff.insertions >= 20 and diff.deletions >= 20
        assert "not-utf8-\\xff" in diff.files
        await clean.apply(diff.patch)
        assert contents(clean.root) == contents(root)
        assert await sh(clean, "git status --porcelain --untracked-files=all | grep -cv '^[AMDRT] '; true") == "0"
        assert (await clean.diff()).patch == diff.patch


async def test_nested_repositories_are_files_and_submodules_stay(
    provider: GitWorkspaceProvider, repo: Path, tmp_path: Path
) -> None:
    library = make_repository(tmp_path / "library", {"lib.py": ""})
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    git(repo, "commit", "-q", "-m", "submodule")
    async with cloned(provider, repo) as clone, cloned(provider, repo) as clean:
        await sh(clone, "git init -q empty && echo 1 > empty/f && echo no > empty/x.log")
        await sh(clone, "git init -q full && echo 1 > full/g && cd full && git add g && git $ID commit -q -m g")
        await sh(clone, "git init -q full/deeper && echo 1 > full/deeper/h; mkdir odd && touch odd/.git")
        diff = await clone.diff()
        assert {"empty/f", "full/g", "full/deeper/h"} <= set(diff.files)
        assert not any("/.git/" in name for name in diff.files)
        await clean.apply(diff.patch)
        assert (clean.root / "full/deeper/h").read_text() == "1\n"
        assert [path.name for path in (clean.root / "lib").iterdir()] == ["lib.py"]


async def test_a_patch_that_does_not_fit_changes_nothing(provider: GitWorkspaceProvider, repo: Path) -> None:
    stale = GOOD.replace(b"41", b"40")
    outside, hook = new_file("../evil", "100644"), new_file(".git/hooks/post-checkout", "100755")
    through = new_file("l", "120000", b"/tmp") + new_file("l/x", "100644")
    async with cloned(provider, repo) as clone:
        before = contents(clone.root)
        for patch in (b"nonsense", stale, GOOD + stale, outside, hook, through):
            with pytest.raises(PatchRejected):
                await clone.apply(patch)
            assert contents(clone.root) == before
        await clone.apply(b"")
        await clone.apply(GOOD)
        assert "app.py" in await sh(clone, "git diff --cached --stat")
        with pytest.raises(PreconditionFailed, match="before anything has run"):
            await clone.apply(GOOD)


def new_file(name: str, mode: str, content: bytes = b"x") -> bytes:
    lines = (
        f"diff --git a/{name} b/{name}", f"new file mode {mode}", "--- /dev/null", f"+++ b/{name}", "@@ -0,0 +1 @@",
    )  # fmt: skip
    return "\n".join(lines).encode() + b"\n+" + content + b"\n\\ No newline at end of file\n"


# --- delivery: one branch more, and otherwise not a byte changed ---

MESSAGE = "Change a\n\nFleet-Execution: e1"
DELIVERY = Delivery(
    branch="fleet/task-1", author_name="Ada", author_email="ada@example.org", message=MESSAGE, push=True
)


def state(repo: Path) -> dict[bytes, tuple[object, ...]]:
    """All files of a repository but its objects and the fleet's branches."""
    ours = (b".git/objects", b".git/refs/heads/fleet", b".git/logs/refs/heads/fleet")
    return {name: facts for name, facts in snapshot(repo).items() if not name.startswith(ours)}


async def test_a_commit_on_a_branch_and_nothing_else(provider: GitWorkspaceProvider, repo: Path) -> None:
    pinned = await pin(provider, repo)
    with pytest.raises(PatchRejected):
        await provider.deliver("e1", pinned, GOOD.replace(b"-answer = 41", b"-answer = 9"), DELIVERY)
    assert git(repo, "branch", "--list", "fleet/*") == ""
    write_files(repo, {"docs/guide.md": "being edited\n", "loose.txt": "x"})
    before = state(repo)
    delivered = await provider.deliver("e1", pinned, GOOD, DELIVERY)
    assert state(repo) == before
    assert (delivered.branch, delivered.pushed) == ("fleet/task-1", False)
    assert git(repo, "rev-parse", "fleet/task-1", "fleet/task-1~1").split() == [delivered.commit_sha, pinned.commit]
    shown = git(repo, "log", "-1", "--format=%an <%ae>|%cn|%B", "fleet/task-1")
    assert shown == f"Ada <ada@example.org>|Ada|{MESSAGE}"
    assert git(repo, "show", "fleet/task-1:app.py") == "answer = 42"
    git(repo, "fsck", "--strict")
    # Twice is once, also at once.
    together = await asyncio.gather(*(provider.deliver("e1", pinned, GOOD, DELIVERY) for _ in range(2)))
    assert set(together) == {delivered}
    # A branch with different content is left alone, and so is one that is checked out.
    git(repo, "worktree", "add", "-q", "-b", "linked", str(repo.parent / "linked"))
    git(repo, "symbolic-ref", "HEAD", "refs/heads/unborn")
    for branch, words in (
        ("fleet/task-1", "different content"), ("fleet/task-1/below", "cannot be used"), ("linked", "checked out"),
        ("unborn", "checked out"),
    ):  # fmt: skip
        with pytest.raises(PreconditionFailed, match=words) as caught:
            await provider.deliver("e2", pinned, GOOD.replace(b"42", b"43"), Delivery(branch=branch))
        assert caught.value.field == "delivery.branch"
    assert git(repo, "rev-parse", "fleet/task-1") == delivered.commit_sha
