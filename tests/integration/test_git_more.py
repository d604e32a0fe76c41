"""git blame, stash, merge and revert through the real sandbox: what they do, and what they must not be tricked into."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.shell import ShellTool

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap (bwrap) on PATH")

BASE = "one\ntwo\nthree\n"


def git(root: Path, *arguments: str) -> str:
    """Git on the host, as a person would use it on the clone before an agent gets it."""
    command = ["git", "-c", "safe.directory=*", "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A branch `clean` that merges with main, and a branch `other` that does not."""
    path = tmp_path / "clone"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")

    def commit(message: str, **files: str) -> None:
        for name, content in files.items():
            (path / name).write_text(content)
        git(path, "add", ".")
        git(path, "commit", "-q", "-m", message)

    commit("first", app=BASE)
    git(path, "checkout", "-q", "-b", "clean")
    commit("clean", more="more\n")
    git(path, "checkout", "-q", "-b", "other", "main")
    commit("other", app=BASE.replace("two", "their two"))
    git(path, "checkout", "-q", "main")
    commit("second", app=BASE.replace("two", "our two"))
    return path


@pytest.fixture
async def workspace(root: Path) -> AsyncIterator[Workspace]:
    async with open_workspace(root) as opened:
        yield opened


async def ok(call: Awaitable[ToolResult]) -> ToolResult:
    result = await call
    assert result.success, result.observation()
    return result


async def refused(call: Awaitable[ToolResult], *said: str) -> ToolResult:
    result = await call
    assert not result.success, result.observation()
    for text in said:
        assert text in result.observation()
    return result


async def test_blame(workspace: Workspace) -> None:
    tool = GitTool(workspace)
    lines = (await ok(tool.blame("app"))).content.splitlines()
    assert [line.partition(") ")[2] for line in lines] == ["one", "our two", "three"]
    assert (await ok(tool.blame("app", 2, 2))).content.endswith("our two")
    await refused(tool.blame("app", 3, 2), "before start_line")
    await refused(tool.blame("app", 9), "3 lines")
    for path in ("absent", "../outside", "/etc/passwd", "--contents=/etc/passwd", "-L1", ":(top)app"):
        await refused(tool.blame(path))


async def test_stash(workspace: Workspace, root: Path) -> None:
    tool = GitTool(workspace)
    await refused(tool.stash("push"), "nothing to put aside")
    await refused(tool.stash("pop"), "Nothing is stashed")
    (root / "app").write_text("changed\n")
    assert (await ok(tool.stash("push", "--all"))).metadata["clean"]
    assert (await ok(tool.stash("list"))).content == "stash@{0}: On main: --all"
    assert (await ok(tool.stash("pop"))).metadata["files"] == ["app"]
    assert (root / "app").read_text() == "changed\n"
    await ok(tool.stash())
    (root / "app").write_text("another\n")
    await refused(tool.stash("pop"), "Commit your changes first")
    await ok(tool.add(["app"]))
    await ok(tool.commit("another"))
    result = await refused(tool.stash("pop"), "conflicts in 1 file", "git_stash(action='drop')")
    assert result.metadata["conflicts"] == ["app"]
    await ok(tool.stash("drop"))
    assert git(root, "stash", "list") == ""
    await refused(tool.stash("push", "two\nlines"), "one line")
    assert (await tool.call("stash", {"action": "--help"})).outcome is Outcome.INVALID


async def test_merge(workspace: Workspace, root: Path) -> None:
    tool = GitTool(workspace)
    await ok(tool.merge("clean"))
    assert (root / "more").read_text() == "more\n"
    assert len(git(root, "rev-list", "--parents", "-1", "HEAD").split()) == 3
    result = await refused(tool.merge("other"), "conflicts in 1 file", "app", "git_commit", "abort=true")
    assert (result.metadata["conflicts"], result.outcome) == (["app"], Outcome.ERROR)
    assert "<<<<<<<" in (root / "app").read_text()
    await refused(tool.merge("clean"), "abort=true")
    assert (await ok(tool.merge(abort=True))).metadata["clean"]
    await refused(tool.merge(abort=True), "No merge is going on")
    await refused(tool.merge("other"), "conflicts")
    (root / "app").write_text("both\n")
    await ok(tool.add(["app"]))
    await ok(tool.commit("Both"))
    assert len(git(root, "rev-list", "--parents", "-1", "HEAD").split()) == 3


async def test_merge_without_a_commit(workspace: Workspace, root: Path) -> None:
    tool = GitTool(workspace)
    head = git(root, "rev-parse", "HEAD")
    assert (await ok(tool.merge("clean", no_commit=True))).metadata["files"] == ["more"]
    assert git(root, "rev-parse", "HEAD") == head
    await ok(tool.merge(abort=True))
    (root / "app").write_text("changed\n")
    await refused(tool.merge("other"), "changes")
    assert (root / "app").read_text() == "changed\n"


async def test_revert(workspace: Workspace, root: Path) -> None:
    tool = GitTool(workspace)
    await ok(tool.revert("HEAD"))
    assert (root / "app").read_text() == BASE
    assert (await ok(tool.revert("HEAD", no_commit=True))).metadata["files"] == ["app"]
    await ok(tool.commit("again"))
    await ok(tool.merge("clean"))
    await ok(tool.revert("HEAD"))
    assert not (root / "more").exists()
    await refused(tool.revert("other"), "conflicts in 1 file", "git_revert(abort=true)")
    assert (await ok(tool.revert(abort=True))).metadata["clean"]
    await refused(tool.revert(abort=True), "No revert")
    await refused(tool.revert("absent"), "no commit 'absent'")


async def test_an_option_is_no_ref(workspace: Workspace, root: Path) -> None:
    tool = GitTool(workspace)
    head = git(root, "rev-parse", "HEAD")
    for text in (
        "--exec=touch pwned", "-Xpwned", "-sevil", "--strategy=evil", "-m1", "HEAD --abort", "", "HEAD\n-x", "HEAD:app",
        "..",
    ):  # fmt: skip
        said_no = Outcome.REFUSED if text.startswith("-") else Outcome.ERROR
        for call in (tool.merge, tool.revert):
            for no_commit in (False, True):
                await refused(call(text, no_commit=no_commit))
                assert tool.pipeline.trail.entries[-1].outcome is said_no, text
    await refused(tool.merge(), "name the branch")
    await refused(tool.revert(), "name the commit")
    assert git(root, "rev-parse", "HEAD") == head
    assert not git(root, "status", "--porcelain")


HOOKS = (
    "pre-commit prepare-commit-msg commit-msg post-commit post-checkout post-index-change reference-transaction "
    "pre-merge-commit post-merge post-rewrite"
)
# Each is set up by the agent itself in its shell; the second is plain git stepping into it, proof that it works.
TRAPS = {
    "hooks": (f"for h in {HOOKS}; do cp {{trap}} .git/hooks/$h; done", "git merge -q clean"),
    "fsmonitor": ("git config core.fsmonitor {trap}", "git status"),
    "merge driver": (
        "git config merge.evil.driver {trap}; echo 'app merge=evil' > .git/info/attributes",
        "git merge -q other",
    ),
    "merge driver with an odd name": (
        "git config merge.e=v.il.driver {trap}; git config merge.default e=v.il",
        "git merge -q other",
    ),
    "included merge driver": (
        "git config -f .git/more merge.evil.driver {trap}; git config include.path more; git config merge.default evil",
        "git merge -q other",
    ),
    "editor": ("git config core.editor {trap}; git config sequence.editor {trap}", "git revert --edit HEAD"),
    "text conversion": ("git config diff.x.textconv {trap}; echo 'app diff=x' > .git/info/attributes", "git blame app"),
    "signing": (
        "git config commit.gpgSign true; git config gpg.program {trap}; git config user.signingKey x; "
        "git config user.name n; git config user.email n@example.org",
        "git merge -q clean -m x",
    ),
    "signature check": (
        "git config gpg.program {trap}; git config merge.verifySignatures true; "
        "signature='gpgsig -----BEGIN PGP SIGNATURE-----\\n \\n x\\n -----END PGP SIGNATURE-----'; "
        'git cat-file commit clean | sed "/^committer/a $signature" > .git/signed; '
        "git update-ref refs/heads/clean $(git hash-object -t commit -w .git/signed)",
        "git merge -q clean",
    ),
    "merge options": (
        "git config user.name n; git config user.email n@example.org; git config gpg.program {trap}; "
        "git config branch.main.mergeOptions '-S --squash=false'; git config branch.main.mergeOptions -S",
        "git merge -q clean -m x",
    ),
    "submodule": (
        "git init -q sub && git -C sub -c user.name=n -c user.email=n@x commit -q --allow-empty -m s && "
        "git add sub 2>/dev/null && git -c user.name=n -c user.email=n@x commit -qm sub && "
        "git -C sub config core.fsmonitor {trap}",
        "git status",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
async def test_nothing_of_a_hostile_configuration_runs(workspace: Workspace, root: Path, trap: str) -> None:
    tool, shell = GitTool(workspace), ShellTool(workspace)
    script = f"{workspace.mount}/.git/trap"
    marker = root / "pwned"
    armed = (
        f"printf '#!/bin/sh\\ntouch {workspace.mount}/pwned; exit 0\\n' > {script}; chmod +x {script}; "
        f"{TRAPS[trap][0].format(trap=script)}; rm -f pwned; git rev-parse HEAD > .git/start"
    )
    await ok(shell.run_command(armed))

    async def no_trap(call: Awaitable[ToolResult], *, success: bool = True) -> None:
        result = await call
        assert result.success == success, result.observation()
        assert not marker.exists(), f"{result.operation} stepped into it: {result.observation()}"
        entry = tool.pipeline.trail.entries[-1]
        assert (f"git_{entry.operation}", entry.outcome) == (result.operation, result.outcome)

    await no_trap(tool.blame("app"))
    (root / "app").write_text("one\nour two\nthree\nfour\n")
    await no_trap(tool.stash("push", "mine"))
    await no_trap(tool.stash("list"))
    await no_trap(tool.stash("pop"))
    await no_trap(tool.stash("push"))
    await no_trap(tool.stash("drop"))
    await no_trap(tool.merge("clean"))
    await no_trap(tool.revert("HEAD"))
    await no_trap(tool.merge("other"), success=False)
    assert "<<<<<<<" in (root / "app").read_text()
    await no_trap(tool.merge(abort=True))
    await no_trap(tool.revert("other"), success=False)
    await no_trap(tool.revert(abort=True))
    who = "GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=n@x GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=n@x"
    who = f"export {who}; unset GIT_EDITOR"
    await shell.run_command(f"{who}; git reset -q --hard $(cat .git/start); rm -f pwned; {TRAPS[trap][1]}")
    assert marker.exists(), "the trap does not work, so this test proves nothing"
