"""git, shell and tests through the real sandbox: what they do, and what hostile repositories and arguments try."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.sandbox import LocalWorkspace, open_workspace
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from swe_ai_fleet.tools import GitTool, Pipeline, ShellTool, TestTool, ToolLimits
from tests.confinement import needs_bwrap
from tests.environments import WITH_PYTEST
from tests.tool_doubles import failed, ok

pytestmark = needs_bwrap


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit on main, the branch `other`, and `theirs` that has changed the same file."""
    path = make_repository(tmp_path / "clone", {"app.py": "def double(x):\n    return x + x\n"}, message="first")
    git(path, "branch", "other")
    git(path, "checkout", "-q", "-b", "theirs")
    commit_files(path, {"app.py": "def double(x):\n    return 2 * x\n"})
    git(path, "checkout", "-q", "main")
    return path


@pytest.fixture
async def workspace(root: Path) -> AsyncIterator[LocalWorkspace]:
    async with open_workspace(root, environment=WITH_PYTEST) as opened:
        yield opened


NO_REFS = [
    *("--output=pwned", "--upload-pack=touch pwned", "-Opwned", "--orphan=pwned", "-bpwned", "--exec=touch pwned"),
    *("HEAD --output=pwned", "HEAD\n--output=pwned", "HEAD\0", "", ":/first", "..", "/etc/passwd", "HEAD:../x"),
]


class TestGit:
    async def test_a_change_from_edit_to_branch(self, workspace: LocalWorkspace) -> None:
        tool, shell = GitTool(workspace), ShellTool(workspace)
        assert (await ok(tool.status())).metadata == {"branch": "main", "clean": True, "files": []}
        await ok(shell.run_command("printf 'x = 1\\n' > 'new file.py'; printf '# end\\n' >> app.py"))
        status = await ok(tool.status())
        assert set(status.content.splitlines()) == {"## main", " M app.py", "?? new file.py"}
        assert not status.metadata["clean"]

        diff = await ok(tool.diff())
        assert diff.content.startswith("1\t0\tapp.py\n\n--- a/app.py\n+++ b/app.py\n@@ ")
        assert diff.content.endswith("\n     return x + x\n+# end")
        assert diff.metadata == {"files": ["app.py"], "insertions": 1, "deletions": 0}

        await ok(tool.checkout("feature", create=True))
        await ok(tool.add(["."]))
        assert (await ok(tool.diff(staged=True))).metadata["files"] == ["app.py", "new file.py"]
        commit = await ok(tool.commit("Add an end\n\nBecause."))
        assert commit.metadata["files"] == ["app.py", "new file.py"]
        assert (await ok(tool.diff())).content.startswith("No differences")

        log = await ok(tool.log())
        assert [line.partition(": ")[2] for line in log.content.splitlines()] == ["Add an end", "first"]
        assert str(commit.metadata["commit_sha"]).startswith(log.metadata["commits"][0])  # type: ignore[index]
        assert "agent@swe-ai-fleet.invalid" in (await ok(tool.show("HEAD"))).content
        assert (await ok(tool.show("main", "app.py"))).content == "def double(x):\n    return x + x"

        await ok(tool.checkout("main"))
        await ok(tool.checkout("feature", paths=["app.py"]))
        await ok(tool.checkout("HEAD", paths=["app.py"]))
        assert (await ok(tool.status())).metadata["clean"]
        assert "feature" in (await ok(tool.branch())).content
        await ok(tool.branch("spare"))
        assert "spare" not in (await ok(tool.branch("spare", delete=True))).content

    async def test_an_option_is_no_ref(self, workspace: LocalWorkspace, root: Path) -> None:
        tool = GitTool(workspace)
        for text in NO_REFS:
            calls = [tool.show(text), tool.show(text, "app.py"), tool.checkout(text), tool.branch(text)]
            calls += [tool.checkout(text, create=True), tool.checkout(text, paths=["app.py"])]
            calls += [tool.merge(text), tool.revert(text), tool.merge(text, no_commit=True)]
            calls += [tool.branch(text, delete=True), *([tool.log(ref=text), tool.diff(base=text)] if text else [])]
            for call in calls:
                await failed(call)
        assert not list(root.glob("*pwned*"))
        assert git(root, "branch", "--format=%(refname:short)").split() == ["main", "other", "theirs"]

    async def test_an_option_is_a_path_like_any_other(self, workspace: LocalWorkspace, root: Path) -> None:
        tool = GitTool(workspace)
        for path in ("--output=pwned", "--pathspec-from-file=app.py", "-A", "--chmod=+x", ":(top)", ":!app.py", "a\nb"):
            await failed(tool.add([path]))
            await failed(tool.diff([path]))
            await failed(tool.log(path=path))
            await failed(tool.show("HEAD", path))
            await failed(tool.checkout(paths=[path]))
        assert not list(root.glob("*pwned*"))
        (root / "-A").write_text("a file of that name\n")
        assert (await ok(tool.add(["-A"]))).metadata["files"] == ["-A"]
        await ok(tool.commit("--amend"))
        assert git(root, "log", "--format=%s").splitlines() == ["--amend", "first"]


TRAP = "touch {mount}/pwned; exit 0"
HOOKS = (
    "pre-commit commit-msg post-commit post-checkout post-index-change reference-transaction "
    "pre-merge-commit post-merge"
)
# Each is set up by the agent itself in its shell; `control` is plain git stepping into the trap, proof that it works.
TRAPS = {
    "fsmonitor": ("git config core.fsmonitor {trap}", "git status"),
    "hooks": (f"for h in {HOOKS}; do cp {{trap}} .git/hooks/$h; done", "git checkout -q other"),
    "diff driver": ("git config diff.x.command {trap}; echo '*.py diff=x' > .git/info/attributes", "git diff"),
    "text conversion": ("git config diff.x.textconv {trap}; echo '*.py diff=x' > .git/info/attributes", "git diff"),
    "signing": (
        "git config commit.gpgSign true; git config gpg.program {trap}; git config user.signingKey x; "
        "git config user.name n; git config user.email n@example.org",
        "git commit -qm signed --allow-empty",
    ),
    # A clone that lacks a file's content and believes that its origin has it.
    "lazy fetch": (
        'git config remote.origin.url "ext::{trap}"; git config protocol.ext.allow always; '
        "git config core.repositoryFormatVersion 1; git config extensions.partialClone origin; "
        "git config remote.origin.promisor true; "
        "rm -f .git/objects/$(git rev-parse HEAD:app.py | sed 's,..,&/,')",
        "git show other:app.py",
    ),
    "alias and pager": (
        "for c in status diff log show commit; do git config alias.$c '!{trap}'; git config pager.$c {trap}; done; "
        "git config core.pager {trap}; git config alias.trap '!{trap}'",
        "git trap",
    ),
    "submodule": (
        "git init -q sub && git -C sub -c user.name=n -c user.email=n@x commit -q --allow-empty -m s && "
        "git add sub 2>/dev/null && git -C sub config core.fsmonitor {trap}",
        "git status",
    ),
    "merge driver with an odd name, included": (
        "git config -f .git/more merge.e=v.il.driver {trap}; git config include.path more; "
        "git config merge.default e=v.il",
        "git checkout -q app.py; git -c user.name=n -c user.email=n@x merge -q theirs",
    ),
}
MERGING = ("hooks", "merge driver with an odd name, included")


class TestHostileConfiguration:
    @pytest.mark.parametrize("trap", TRAPS)
    async def test_nothing_of_it_runs(self, workspace: LocalWorkspace, root: Path, trap: str) -> None:
        tool, shell = GitTool(workspace), ShellTool(workspace)
        script = f"{workspace.mount}/.git/trap"
        set_up = (
            f"printf '#!/bin/sh\\n{TRAP.format(mount=workspace.mount)}\\n' > {script}; chmod +x {script}; "
            f"{TRAPS[trap][0].format(trap=script)}; rm -f pwned; echo '# changed' >> app.py"
        )
        await ok(shell.run_command(set_up))
        marker = root / "pwned"
        for call in (
            tool.status(), tool.diff(), tool.diff(base="HEAD"), tool.log(), tool.show("HEAD"),
            tool.show("HEAD", "app.py"), tool.add(["."]), tool.diff(staged=True), tool.commit("changed"),
            tool.checkout("fresh", create=True), tool.branch("another"), tool.checkout("other"),
            tool.checkout("main", paths=["app.py"]), *(() if trap not in MERGING else (
                tool.blame("app.py"), tool.stash("push"), tool.stash("pop"), tool.checkout("main"),
                tool.merge("theirs"), tool.merge(abort=True), tool.revert("theirs"), tool.revert(abort=True),
            )),
        ):  # fmt: skip
            result = await call
            assert not marker.exists(), f"{result.operation} stepped into it: {result.observation()}"
            entry = tool.pipeline.trail.entries[-1]
            assert (f"git_{entry.operation}", entry.outcome) == (result.operation, result.outcome)
        await shell.run_command(f"git checkout -qf main; echo >> app.py; {TRAPS[trap][1]}")
        assert marker.exists(), "the trap does not work, so this test proves nothing"

    async def test_a_filter_runs_in_the_sandbox_alone(
        self, workspace: LocalWorkspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Large-file storage needs filters, so they run as any command of the agent's does: what they reach is its."""
        secret, outside = f"secret-{uuid.uuid4().hex}", tmp_path / "pwned"
        monkeypatch.setenv("FLEET_TEST_SECRET", secret)
        tool, shell = GitTool(workspace), ShellTool(workspace)
        script = f"{workspace.mount}/.git/filter"
        lines = f"env >{workspace.mount}/ran; touch {outside}; exec 3<>/dev/tcp/127.0.0.1/1; cat"
        (root / ".git/filter").write_text(f"#!/bin/bash\n{lines}\n")
        (root / ".git/filter").chmod(0o755)
        configured = f"git config filter.x.clean {script}; git config filter.x.smudge {script}"
        changed = "echo '*.py filter=x' > .git/info/attributes; echo '# changed' >> app.py"
        await ok(shell.run_command(f"{configured}; {changed}"))
        for call in (tool.add(["app.py"]), tool.commit("changed"), tool.checkout("other"), tool.checkout("main")):
            await ok(call)
        assert "HOME=" in (root / "ran").read_text(), "the filter does not run, so this test proves nothing"
        assert secret not in (root / "ran").read_text()
        assert not outside.exists()


class TestShell:
    async def test_output_exit_codes_and_time_limits(self, workspace: LocalWorkspace) -> None:
        tool = ShellTool(workspace, Pipeline(limits=ToolLimits(command_timeout_seconds=0.5)))
        result = await ok(tool.run_command("pwd; echo to stderr >&2; [[ a == a ]] && echo bash"))
        assert result.content.splitlines() == [workspace.mount, "to stderr", "bash"]
        result = await failed(tool.run_command("echo before; exit 3"), "Error: exit code 3", "before")
        assert (result.exit_code, result.outcome) == (3, Outcome.ERROR)
        await failed(tool.run_command("kill -SEGV $$"), "SIGSEGV")
        assert (await ok(tool.run_command('cat; read x; echo "end $x"'))).content == "end "
        late = await failed(tool.run_command("echo partial; sleep 600", timeout_seconds=500), "partial", "time limit")
        idle = tool.run_command("echo partial; sleep 600", idle_timeout_seconds=0.2)
        assert late.outcome is (await failed(idle, "partial", "printed nothing")).outcome is Outcome.TIMEOUT

    async def test_of_a_long_output_the_middle_can_be_read_in_a_file(
        self, workspace: LocalWorkspace, root: Path
    ) -> None:
        tool = ShellTool(workspace)
        whole = [f"{number:06} \u00e9" for number in range(1, 20_001)]
        result = await ok(tool.run_command("for n in $(seq 20000); do printf '%06d \u00e9\\n' $n; done"))
        assert len(result.content) < 6_200 and result.truncated
        head, note, tail = result.content.partition(" lines left out; all of it: /tmp/output-1.txt ...]\n")
        assert note and head.startswith(whole[0]) and tail.endswith(whole[-1])
        assert (await ok(tool.run_command("sed -n 10000,10002p /tmp/output-1.txt"))).content.split("\n") == whole[
            9999:10002
        ]
        assert (await ok(GitTool(workspace).status())).metadata["clean"]
        await ok(tool.run_command("seq 5000"))
        assert "/tmp/output-2.txt" in (await ok(tool.run_command("ls /tmp/output-*"))).content


class TestTests:
    async def test_no_tests_is_no_success(self, workspace: LocalWorkspace, root: Path) -> None:
        tool = TestTool(workspace)
        assert (await failed(tool.pytest(), "no tests were collected")).exit_code == 5
        (root / "test_app.py").write_text("import nosuchmodule\n")
        await failed(tool.pytest(), "FAILED test_app.py", "nosuchmodule")
