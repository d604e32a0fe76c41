"""FileTool through its whole pipeline: what it does, what it says, what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.command import Command, CommandResult, Output
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.sandbox import IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy
from swe_ai_fleet.tools import FileTool, Pipeline, ToolLimits

PYTHON = "def double(x):\n    return x + x\n\n\nprint(double(2))\n"
MIB = 1024 * 1024


SEGMENTS = st.sampled_from(["..", ".", "", "src", "main.py", "out", "back", "up", "new", "deep", ".git", "...", "/"])


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("maze")
    root = base / "work"
    (root / "src/deep").mkdir(parents=True)
    (root / "src/main.py").write_text("x")
    (root / "src/deep/main.py").write_text("y")
    (root / "src/deep/up").symlink_to("../..")
    (root / "src/out").symlink_to("../../..")
    (root / "back").symlink_to("src/deep/up/src")
    (root / "out").symlink_to(base)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / "src/double.py").write_text(PYTHON)
    (root / "README.md").write_text("# Doubling\n\nDouble things.\n")
    (tmp_path / "secret.txt").write_text("outside")
    return root


@pytest.fixture
def files(root: Path) -> FileTool:
    return FileTool(root)


def failed(result: ToolResult, *said: str) -> str:
    assert result.outcome is Outcome.ERROR, result
    assert all(text in result.error for text in said), result.error
    return result.error


def refused(files: FileTool, result: ToolResult, *said: str) -> None:
    """The call was refused by a rule, changed nothing, and stands so in the audit."""
    entry = files.pipeline.trail.entries[-1]
    assert (result.outcome, entry.outcome, entry.decision) == (Outcome.REFUSED, Outcome.REFUSED, PolicyDecision.REFUSED)
    assert all(text in result.error for text in said), result.error
    assert f"{entry.tool}_{entry.operation}" == result.operation


class TestReadFile:
    async def test_a_long_file_comes_in_whole_lines_until_all_is_seen(self, root: Path) -> None:
        lines = [f"line {number} {'x' * (number % 60)}" for number in range(1, 1001)]
        (root / "long.txt").write_text("\n".join(lines) + "\n")
        files = FileTool(root, Pipeline(limits=ToolLimits(observation_chars=4000)))
        seen: list[str] = []
        while len(seen) < 1000:
            start = str(len(seen) + 1)
            result = await files.read_file("long.txt", f"{start}-")
            *rows, note = result.content.split("\n")
            seen += [row.split("\t", 1)[1] for row in rows]
            assert (result.truncated, "more: lines=" in note) == (False, len(seen) < 1000)
        assert seen == lines
        # Parts of a file in one call, however a model writes them.
        for asked in ("2-3, 999-", "[2-3; 999:1000]", "2..3 999-2000"):
            *rows, note = (await files.read_file("long.txt", asked)).content.split("\n")
            assert [row.partition("\t")[0].strip() for row in rows] == ["2", "3", "...", "999", "1000"]
            assert note == "[lines 2-3, 999-1000 of 1000]"
        for asked, words in (("0-3", "not a range"), ("5-4", "before start_line"), ("2000-", "1000 lines")):
            failed(await files.read_file("long.txt", asked), words)

    async def test_binary_files_are_named_not_shown(self, files: FileTool, root: Path) -> None:
        kinds = {
            b"\x89PNG\r\n\x1a\n\0\0\0": "starts with 89 50",
            b"a\0b": "starts with 61 00 62",
            b"\xfe\x01\xff\x02": "starts with",
        }
        for data, kind in kinds.items():
            (root / "blob").write_bytes(data)
            failed(await files.read_file("blob"), "binary", f"{len(data)} bytes", kind)
        assert {entry.outcome for entry in files.pipeline.trail.entries} == {Outcome.ERROR}
        failed(await files.append_file("blob", "x"), "binary")

    async def test_a_file_over_the_limit(self, files: FileTool, root: Path) -> None:
        with (root / "big").open("wb") as file:
            file.truncate(11 * MIB)
        failed(await files.read_file("big"), f"{11 * MIB} bytes", f"at most {10 * MIB}")


class TestWriteFile:
    async def test_what_is_new_and_what_is_there(self, files: FileTool, root: Path) -> None:
        result = await files.write_file(path="a/b/new.py", content="x = 1\n")
        assert result.content == "Created a/b/new.py: 1 line, 6 bytes."
        assert (root / "a/b/new.py").read_text() == "x = 1\n"
        assert result.metadata["sha256"] == hashlib.sha256(b"x = 1\n").hexdigest()
        path = root / "old.txt"
        path.write_bytes(b"\xff\xfe" + "a\r\nb\r\n".encode("utf-16-le"))
        path.chmod(0o640)
        assert (await files.write_file("old.txt", "\u00e9\n")).content.startswith("Replaced old.txt")
        assert path.read_bytes() == b"\xff\xfe" + "\u00e9\r\n".encode("utf-16-le")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        # What its encoding cannot hold makes it UTF-8.
        path.write_bytes("caf\u00e9".encode("latin-1"))
        await files.write_file("old.txt", "caf\u00e9 \u2192 tea")
        assert path.read_text(encoding="utf-8") == "caf\u00e9 \u2192 tea"

    async def test_more_than_the_limit(self, root: Path) -> None:
        files = FileTool(root, Pipeline(limits=ToolLimits(max_file_bytes=10)))
        failed(await files.write_file("x", "\u00e9" * 6), "12 bytes", "at most 10")
        assert files.pipeline.trail.entries[-1].outcome is Outcome.ERROR
        assert not (root / "x").exists()


class TestEditFile:
    async def test_the_file_must_be_the_one_that_was_read(self, files: FileTool, root: Path) -> None:
        digest = str((await files.read_file("README.md")).metadata["sha256"])
        assert (await files.edit_file("README.md", "Double", "Twice", True, digest)).success
        error = failed(await files.edit_file("README.md", "Twice", "Double", True, digest), "has changed")
        assert hashlib.sha256((root / "README.md").read_bytes()).hexdigest() in error


@pytest.fixture(params=["ripgrep", "git"])
async def searching(
    request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FileTool]:
    """The file tool where ripgrep is installed and where it is not."""
    if request.param == "ripgrep" and shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    (root / ".gitignore").write_text("generated.py\n/out/\n")
    for path in ("generated.py", "out/x.py", ".hidden.py", "src/deep/c.py", ".git/config.py", "src/empty.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("" if "empty" in path else f"double = '{path}'\n")
    (root / "src/blob.bin").write_bytes(b"double\0")
    async with Sandbox(SandboxPolicy(level=IsolationLevel.NONE)).workspace(root) as workspace:

        async def without(command: Command) -> CommandResult:
            absent = CommandResult(exit_code=127, stdout=Output(), stderr=Output(), duration_ms=0)
            return absent if command.argv[0] == "rg" else await LocalWorkspace.run(workspace, command)

        if request.param == "git":
            monkeypatch.setattr(workspace, "run", without)
        yield FileTool(workspace)


class TestSearching:
    async def test_matches_have_path_line_and_text(self, searching: FileTool) -> None:
        told = "src/double.py:\n1:def double(x):\n5:print(double(2))\n[2 matches in 1 file]"
        assert (await searching.search_in_files("double\\(")).content == told
        around = "1:def double(x):\n2-    return x + x\n  ...\n4-\n5:print(double(2))"
        found = await searching.search_in_files("double\\(", context=1)
        assert (found.content, found.metadata["matches"]) == (f"src/double.py:\n{around}\n[2 matches in 1 file]", 2)
        first = await searching.search_in_files("double\\(", context=1, max_results=1)
        assert first.metadata == {"matches": 1, "files": 1, "complete": False}

    async def test_patterns_and_globs_are_never_options(self, searching: FileTool, root: Path) -> None:
        for pattern in ("--pre=touch owned", "-f/etc/passwd", "--files", "-e", "--open-files-in-pager=touch owned"):
            assert "No line matches" in (await searching.search_in_files(pattern)).content
        (root / "-x").write_text("-e is an option\n")
        assert "-x:\n1:-e is an option" in (await searching.search_in_files("^-e is", "-x")).content
        for glob in ("--pre=touch owned", ":(top)", "*.py --no-ignore"):
            result = await searching.list_files(glob=glob)
            assert not result.success or "no files" in result.content
        assert not (root / "owned").exists()

    async def test_outside_of_the_workspace_is_nothing_to_find(self, searching: FileTool, root: Path) -> None:
        (root / "out-link").symlink_to(root.parent)
        for path in ("..", "/etc", "out-link", ".git", "missing"):
            assert not (await searching.search_in_files("outside", path)).success
            assert not (await searching.list_files(path)).success
        assert "secret.txt" not in (await searching.list_files()).content


class TestOtherOperations:
    async def test_deleting(self, files: FileTool, root: Path) -> None:
        assert (await files.delete_file("README.md")).content == "Deleted the file README.md."
        assert not (root / "README.md").exists()
        failed(await files.delete_file("src"), "not empty")
        for root_itself in (".", "", "/workspace", "src/.."):
            refused(files, await files.delete_file(root_itself), "workspace itself")
        failed(await files.delete_file("README.md"), "there is no 'README.md'")


async def everything_at(files: FileTool, path: str) -> AsyncIterator[ToolResult]:
    """What each operation that takes one path says to this one."""
    attempts: tuple[tuple[str, dict[str, object]], ...] = (
        ("read_file", {}), ("write_file", {"content": "x"}), ("append_file", {"content": "x"}),
        ("edit_file", {"old": "outside", "new": "inside"}),
        ("multi_edit", {"edits": [{"old": "outside", "new": "inside"}]}), ("delete_file", {}), ("mkdir", {}),
        ("file_info", {}), ("list_files", {}), ("search_in_files", {"pattern": "x"}), ("undo_edit", {}),
        ("repo_map", {}),
    )  # fmt: skip
    for name, arguments in attempts:
        yield await files.call(name, {"path": path} | arguments)


async def swapped(swap: Callable[[], None], attack: Callable[[set[str]], Awaitable[None]]) -> None:
    """Attacks while a thread swaps what is attacked, until it met both ends: a success and a refusal."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            swap()

    thread = threading.Thread(target=go_on)
    thread.start()
    seen: set[str] = set()
    started = time.monotonic()
    try:
        while (elapsed := time.monotonic() - started) < 0.5 or (not seen >= {"success", "refused"} and elapsed < 10):
            await attack(seen)
    finally:
        stop.set()
        thread.join()
    assert seen >= {"success", "refused"}


class TestAttacks:
    """Every attack on the files, through the whole pipeline: refused, recorded as refused, nothing touched."""

    @pytest.mark.parametrize(
        "path",
        [
            "../secret.txt", "src/../../secret.txt", "absent/../../secret.txt", "/etc/passwd",
            "/workspace/../secret.txt", "/workspace-other/secret.txt", "link/secret.txt", "link/new",
            "deep/chain/secret.txt", ".git/config", ".GIT/config", "git~1/hooks/x", "src/.git/config", "absent/.git/x",
            "hidden/config", ".git ", ".git.", ".g\u200cit/x", "GIT~1", ".git::$DATA", "..", "/", "//etc/passwd",
            "absent/new/../../../new", "src/../.git/hooks/pre-commit", "new/.git/x",
        ],
    )  # fmt: skip
    async def test_no_operation_leaves_the_workspace_or_enters_git(
        self, files: FileTool, root: Path, path: str
    ) -> None:
        (root / ".git").mkdir()
        (root / ".git/config").write_text("[core]\n")
        (root / "link").symlink_to(root.parent)
        (root / "hidden").symlink_to(".git")
        (root / "deep").mkdir()
        (root / "deep/chain").symlink_to("../link")
        before = sorted(str(entry) for entry in root.parent.rglob("*"))
        count = len(files.pipeline.trail.entries)
        async for result in everything_at(files, path):
            refused(files, result)
            assert "outside the workspace" in result.error or ".git" in result.error
        recorded = [entry for entry in files.pipeline.trail.entries[count:] if entry.outcome is Outcome.REFUSED]
        assert len(recorded) == 12
        for name in ("copy_file", "move_file"):
            refused(files, await files.call(name, {"source": path, "destination": "x"}))
            refused(files, await files.call(name, {"source": "README.md", "destination": path}))
        for pair in ((path, "README.md"), ("README.md", path)):
            refused(files, await files.diff_files(*pair))
        assert (root.parent / "secret.txt").read_text() == "outside"
        assert (root / ".git/config").read_text() == "[core]\n"
        assert sorted(str(entry) for entry in root.parent.rglob("*")) == before

    async def test_links_that_lead_out_are_neither_read_nor_written_nor_moved(
        self, files: FileTool, root: Path
    ) -> None:
        (root / "out.txt").symlink_to(root.parent / "secret.txt")
        refused(files, await files.read_file("out.txt"), "outside")
        refused(files, await files.write_file("out.txt", "x"), "outside")
        refused(files, await files.edit_file("out.txt", "outside", "x"), "outside")
        refused(files, await files.move_file("out.txt", "x"), "outside")
        refused(files, await files.copy_file("README.md", "out.txt", overwrite=True), "outside")
        assert (root.parent / "secret.txt").read_text() == "outside"
        assert (await files.delete_file("out.txt")).success  # the link itself lies inside
        assert (root.parent / "secret.txt").exists()

    async def test_pipes_sockets_and_devices_are_never_opened(
        self, files: FileTool, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(root / "pipe")
        monkeypatch.chdir(root)  # the path of a socket must be short
        special = ["pipe", "sock"]
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("sock")
            if os.geteuid() == 0:
                with contextlib.suppress(PermissionError):
                    os.mknod(root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
                    special.append("zero")
            for name in special:
                async with asyncio.timeout(5):
                    refused(files, await files.read_file(name), f"{name!r} is a ")
                    refused(files, await files.write_file(name, "x"), f"{name!r} is a ")
                    refused(files, await files.append_file(name, "x"))
                    refused(files, await files.edit_file(name, "a", "b"))
                    refused(files, await files.copy_file(name, "x"))
                    refused(files, await files.move_file("README.md", name, overwrite=True))
                    refused(files, await files.diff_files("README.md", name))
                    refused(files, await files.search_in_files("x", name))
                    refused(files, await files.apply_patch(f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-a\n+b\n"))
        assert (root / "README.md").exists()
        assert stat.S_ISFIFO((root / "pipe").stat().st_mode)

    async def test_a_link_swapped_in_between_check_and_open(self, files: FileTool, root: Path) -> None:
        outside, target = root.parent / "secret.txt", root / "target"

        def swap() -> None:
            (root / "swap").symlink_to(outside)
            (root / "swap").rename(target)
            (root / "swap").write_text("inside")
            (root / "swap").rename(target)

        target.write_text("inside")

        async def attack(seen: set[str]) -> None:
            for name, arguments in (("read_file", {}), ("append_file", {"content": "attacked"})):
                result = await files.call(name, {"path": "target"} | arguments)
                seen.add(result.outcome.value)
                assert "1\toutside" not in result.content
                if not result.success:
                    refused(files, result)

        await swapped(swap, attack)
        assert outside.read_text() == "outside"


@given(parts=st.lists(SEGMENTS, max_size=8))
async def test_no_path_whatever_reaches_outside(maze: Path, parts: list[str]) -> None:
    path = "/".join(parts)
    result = await FileTool(maze).file_info(path)
    if not result.success or result.metadata["type"] == "symbolic link":
        return
    found = Path(str(result.metadata["path"]))
    real = (maze / path.removeprefix("/")).resolve()
    assert real == (maze / found).resolve()
    assert real.is_relative_to(maze.resolve())
    assert ".git" not in found.parts
