"""Paths from a model: whatever they say, nothing outside the workspace is touched."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.tools import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import MAX_LINKS, Tree, is_git_directory

LIMIT = 1024 * 1024
SECRET = b"outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_bytes(SECRET)
    (tmp_path / "work-sibling").mkdir()
    (tmp_path / "work-sibling" / "secret.txt").write_bytes(SECRET)
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print(1)\n")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("[core]\n")
    return root


@pytest.fixture
def tree(root: Path) -> Tree:
    return Tree(root)


def everything(path: Path) -> dict[str, bytes]:
    """All files below a directory with their content, and directories, links left out."""
    found = [p for p in path.rglob("*") if not p.is_symlink() and (p.is_file() or p.is_dir())]
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else b"" for p in found}


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    before = everything(path)
    yield
    assert everything(path) == before


def attempts(tree: Tree, path: str) -> dict[str, Callable[[], object]]:
    return {
        "read": lambda: tree.read(path, limit=LIMIT),
        "write": lambda: tree.write(path, b"attacked", limit=LIMIT),
        "make_directory": lambda: tree.make_directory(path),
        "remove": lambda: tree.remove(path),
        "find": lambda: tree.find(path),
        "info": lambda: tree.info(path),
        "count": lambda: tree.count(path),
    }


class TestPlainUse:
    @pytest.mark.parametrize(
        "path",
        ["src/main.py", "./src//main.py", "src/../src/main.py", "/workspace/src/main.py", "/workspace//src/./main.py"],
    )
    def test_one_file_has_many_names(self, tree: Tree, path: str) -> None:
        content = tree.read(path, limit=LIMIT)
        assert (content.path, content.data) == ("src/main.py", b"print(1)\n")

    def test_the_root_itself_can_be_looked_at(self, tree: Tree) -> None:
        assert tree.find("/workspace") == "."
        assert tree.info(".")[0] == "directory"
        assert tree.count("src/..") == 2

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_what_root_creates_belongs_to_the_owner_of_the_directory(self, tree: Tree, root: Path) -> None:
        os.chown(root, 4711, 4712)
        tree.write("new/file.txt", b"x", limit=LIMIT)
        for path in (root / "new", root / "new/file.txt"):
            assert (path.stat().st_uid, path.stat().st_gid) == (4711, 4712)

    def test_links_inside_the_workspace_are_followed(self, tree: Tree, root: Path) -> None:
        (root / "lib").symlink_to("src")
        (root / "src/alias.py").symlink_to("/workspace/src/main.py")
        assert tree.read("lib/alias.py", limit=LIMIT).path == "src/main.py"
        assert tree.write("lib/alias.py", b"print(2)\n", limit=LIMIT) == "src/main.py"
        assert (root / "src/alias.py").is_symlink()
        assert (root / "src/main.py").read_bytes() == b"print(2)\n"

    def test_removing_a_link_leaves_its_target(self, tree: Tree, root: Path) -> None:
        (root / "alias").symlink_to("src/main.py")
        assert tree.remove("alias") == "symbolic link"
        assert (root / "src/main.py").exists()


class TestEscapes:
    @pytest.mark.parametrize("target", ["{outside}", "../..", "../../secret.txt", "/etc", "/workspace/../secret.txt"])
    def test_links_that_lead_out(self, tree: Tree, root: Path, target: str) -> None:
        link = root / "src/link"
        link.symlink_to(target.format(outside=root.parent))
        (root / "chain").symlink_to("src/link")
        with unchanged(root.parent):
            for path in ("src/link", "src/link/secret.txt", "chain", "chain/secret.txt", "src/link/new/file"):
                for name, attempt in attempts(tree, path).items():
                    if "/" in path.removeprefix("src/") or name not in ("remove", "info"):
                        with pytest.raises(ToolRefusal):
                            attempt()
        assert tree.info("src/link")[0] == "symbolic link"
        assert tree.remove("src/link") == "symbolic link"

    def test_links_in_a_circle_and_long_chains_of_links(self, tree: Tree, root: Path) -> None:
        (root / "a").symlink_to("b")
        (root / "b").symlink_to("a")
        with pytest.raises(ToolFailure, match="symbolic links"):
            tree.read("a", limit=LIMIT)
        (root / "link0").symlink_to("src/main.py")
        for number in range(MAX_LINKS + 1):
            (root / f"link{number + 1}").symlink_to(f"link{number}")
        assert tree.read(f"link{MAX_LINKS - 1}", limit=LIMIT).path == "src/main.py"
        with pytest.raises(ToolFailure, match="symbolic links"):
            tree.read(f"link{MAX_LINKS + 1}", limit=LIMIT)

    @pytest.mark.parametrize("name", [".git", ".GIT", ".git ", ".git.", ".g\u200cit", "git~1", "GIT~1", ".git::$DATA"])
    def test_spellings_that_some_file_system_takes_for_git(self, name: str) -> None:
        assert is_git_directory(name)

    @pytest.mark.parametrize("name", [".gitignore", ".github", "git", ".gitmodules", "x.git", "..git"])
    def test_names_that_only_look_like_it(self, name: str) -> None:
        assert not is_git_directory(name)

    @pytest.mark.parametrize("path", ["src/a\0b", "\0", "x" * 300, "a/" * 3000, "\ud800", "src/main.py/x"])
    def test_paths_that_no_file_can_have(self, tree: Tree, root: Path, path: str) -> None:
        with unchanged(root):
            for attempt in attempts(tree, path).values():
                with pytest.raises(ToolFailure) as caught:
                    attempt()
                assert len(caught.value.message) < 600


class TestSpecialFiles:
    def test_proc_like_files_that_lie_about_their_size_are_bounded(self) -> None:
        with pytest.raises(ToolFailure, match="bytes"):
            Tree(Path("/proc/self")).read("maps", limit=64)


class TestRaces:
    """A thread swaps what lies at a path as fast as it can, for a second at most."""

    @contextmanager
    def swapping(self, *swaps: Callable[[], object]) -> Iterator[None]:
        stop = threading.Event()

        def loop() -> None:
            while not stop.is_set():
                for swap in swaps:
                    swap()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def test_a_parent_swapped_for_a_link(self, tree: Tree, root: Path) -> None:
        parent, spare, outside = root / "parent", root / "spare", root.parent / "work-sibling"
        parent.mkdir()
        (parent / "secret.txt").write_bytes(b"inside")

        def out() -> None:
            parent.rename(spare)
            with suppress(FileExistsError):
                parent.symlink_to(outside)

        def back() -> None:
            while spare.exists():
                with suppress(OSError):  # a write may have made the directory anew
                    parent.unlink() if parent.is_symlink() else shutil.rmtree(parent)
                with suppress(OSError):
                    spare.rename(parent)

        with self.swapping(out, back):
            seen = self.what_is_seen(tree, "parent/secret.txt")
        assert {b"inside", b"refused"} <= seen
        assert SECRET not in seen
        assert everything(outside) == {"secret.txt": SECRET}

    def what_is_seen(self, tree: Tree, path: str) -> set[bytes]:
        """Read and write for a third of a second, longer (5 s) only until the race has shown both its sides."""
        seen = set[bytes]()
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < 0.3 or (not seen >= {b"inside", b"refused"} and elapsed < 5):
            try:
                seen.add(tree.read(path, limit=LIMIT).data)
            except ToolFailure as failure:
                seen.add(b"refused" if isinstance(failure, ToolRefusal) else b"failed")
            try:
                tree.write(path, b"inside", limit=LIMIT)
            except ToolFailure as failure:
                seen.add(b"refused" if isinstance(failure, ToolRefusal) else b"failed")
        return seen


SEGMENTS = st.sampled_from(["..", ".", "", "src", "main.py", "out", "back", "up", "new", "deep", ".git", "...", "/"])


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with links in all directions."""
    base = tmp_path_factory.mktemp("maze")
    (base / "secret.txt").write_bytes(SECRET)
    root = base / "work"
    (root / "src/deep").mkdir(parents=True)
    (root / "src/main.py").write_text("x")
    (root / "src/deep/main.py").write_text("y")
    (root / "src/deep/up").symlink_to("../..")
    (root / "src/out").symlink_to("../../..")
    (root / "back").symlink_to("src/deep/up/src")
    (root / "out").symlink_to(base)
    return root


@given(parts=st.lists(SEGMENTS, max_size=8))
def test_no_path_whatever_reaches_outside(maze: Path, parts: list[str]) -> None:
    tree = Tree(maze)
    path = "/".join(parts)
    try:
        found = tree.find(path)
    except ToolFailure:
        return
    real = (maze / path.removeprefix("/")).resolve()
    assert real == (maze / found).resolve()
    assert real.is_relative_to(maze.resolve())
    assert ".git" not in Path(found).parts


def test_descriptors_are_given_back(tree: Tree, root: Path) -> None:
    (root / "loop").symlink_to("loop")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("src/main.py", "missing", "../x", "loop", "src", "a/b/c", ".git", "/workspace/src/../src/main.py"):
        for attempt in attempts(tree, path).values():
            with suppress(ToolFailure):
                attempt()
    assert len(os.listdir("/proc/self/fd")) == before
