"""Changes of several passages or files at once, and their undoing: whole or not at all, and never outside."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.testing.repositories import git, make_repository
from swe_ai_fleet.tools import FileTool
from tests.tables import table
from tests.unit.test_file_tool import PYTHON, failed, refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("[core]\n")
    (root / "src/double.py").write_text(PYTHON)
    (root / "README.md").write_text("# Doubling\n\nDouble things.\n")
    (root / "link").symlink_to("README.md")
    (root / "out").symlink_to(tmp_path)
    (tmp_path / "secret.txt").write_text("outside\n")
    return root


@pytest.fixture
def files(root: Path) -> FileTool:
    return FileTool(root)


def content(root: Path) -> dict[str, object]:
    """Everything beneath the root and beside it: bytes, modes, links."""

    def state(path: Path) -> object:
        if path.is_symlink():
            return path.readlink()
        return path.stat().st_mode, path.read_bytes() if path.is_file() else None

    return {str(path): state(path) for path in sorted(root.parent.rglob("*"))}


def edit(old: str, new: str, replace_all: bool = False) -> dict[str, object]:
    return {"old": old, "new": new, "replace_all": replace_all}


async def multi_edit(files: FileTool, path: str, edits: list[dict[str, object]], **more: str) -> ToolResult:
    return await files.call("multi_edit", {"path": path, "edits": edits, **more})


async def patch_of(path: str, before: str, after: str) -> str:
    """The patch of one file as the tool itself writes it; empty where nothing differs."""
    with tempfile.TemporaryDirectory() as name:
        for side, text in (("a", before), ("b", after)):
            place = Path(name, side, path)
            place.parent.mkdir(parents=True)
            place.write_bytes(text.encode())
        said = (await FileTool(name).diff_files(f"a/{path}", f"b/{path}")).content
    return said.replace("--- a/a/", "--- a/", 1).replace("+++ b/b/", "+++ b/", 1) + "\n" if before != after else ""


NEW, README = "diff --git a/l b/l\nnew file mode {}\n", "diff --git a/README.md b/README.md\n"


class TestMultiEdit:
    async def test_one_that_does_not_fit_undoes_all(self, files: FileTool, root: Path) -> None:
        before = content(root)
        edits = [edit("x + x", "2 * x"), edit("absent", "y")]
        failed(await multi_edit(files, "src/double.py", edits), "edit 2 of 2, so none was made")
        failed(await multi_edit(files, "src/double.py", edits[:1], expected_sha256="0" * 64), "has changed")
        refused(files, await multi_edit(files, ".git/config", [edit("core", "x")]), ".git")
        assert (await multi_edit(files, "src/double.py", [])).outcome is Outcome.INVALID
        assert content(root) == before


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40) | st.lists(
    st.sampled_from(
        ["a", "b", "", "c\r", "- d", "+++ e", "--- f", "@@ -1 +1 @@", "\\ g", "\ufeffh", "\x0ci", "\u2028"]
    ),
    max_size=30,
).map("\n".join)
LINE_ENDS = st.sampled_from(["\n", "\r\n"])


class TestPatch:
    @settings(max_examples=25)
    @given(before=TEXTS, after=TEXTS, ending=LINE_ENDS, last=LINE_ENDS)
    async def test_the_diff_from_a_to_b_makes_b_of_a(self, before: str, after: str, ending: str, last: str) -> None:
        # A mark of the encoding at the beginning is the file's, no text.
        before = before.lstrip("\ufeff").replace("\n", ending)
        after = after.lstrip("\ufeff").replace("\n", last)
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "f")
            path.write_bytes(before.encode())
            patch = await patch_of("f", before, after)
            if not patch:
                return
            result = await FileTool(name).apply_patch(patch)
            assert result.success, result.error
            assert path.read_bytes() == after.encode()

    async def test_what_git_writes_is_applied_as_git_does(self, root: Path, tmp_path: Path) -> None:
        made = make_repository(
            tmp_path / "made", {"src/double.py": PYTHON, "README.md": "# Doubling\n", "tool.sh": "#!/bin/sh\n"}
        )
        files = FileTool(shutil.copytree(made, tmp_path / "patched"))
        (made / "src/double.py").rename(made / "src/twice é.py")
        (made / "src/twice é.py").write_text(PYTHON.replace("x + x", "2 * x"))
        (made / "README.md").unlink()
        (made / "tool.sh").chmod(0o755)
        (made / "new").mkdir()
        (made / "new/run.sh").write_text("no end")
        (made / "new/run.sh").chmod(0o755)
        git(made, "add", "-A")
        result = await files.apply_patch(git(made, "diff", "--cached", "-M") + "\n")
        assert "Renamed src/double.py to src/twice é.py (+1 -1)." in result.content, result.error
        for path in ("src/twice é.py", "tool.sh", "new/run.sh"):
            there = tmp_path / "patched" / path
            assert there.read_bytes() == (made / path).read_bytes()
            assert os.access(there, os.X_OK) == os.access(made / path, os.X_OK)
        assert not (tmp_path / "patched/README.md").exists()
        assert not (tmp_path / "patched/src/double.py").exists()

    async def test_all_or_nothing(self, files: FileTool, root: Path) -> None:
        good = await patch_of("src/double.py", PYTHON, PYTHON.replace("x + x", "2 * x"))
        before = content(root)
        unfit = await files.apply_patch(good + await patch_of("README.md", "other\n", "x\n"))
        failed(unfit, "hunk 1 does not fit", "README.md")
        failed(await files.apply_patch(good + good), "twice")
        failed(await files.apply_patch(good, {"src/double.py": "0" * 64}), "has changed")
        failed(await files.apply_patch(good, {"README.md": "0" * 64}), "does not read")
        # The directory is made, then the name turns out to be too long for the file system.
        long = f"--- /dev/null\n+++ b/deep/er/{'n' * 300}\n@@ -0,0 +1 @@\n+x\n"
        failed(await files.apply_patch(good + long), "too long")
        assert content(root) == before
        failed(await files.undo_edit("src/double.py"), "no change")
        digest = hashlib.sha256(PYTHON.encode()).hexdigest()
        assert (await files.apply_patch(good, {"src/double.py": digest})).success

    @pytest.mark.parametrize(
        "name",
        ["../secret.txt", "src/../../secret.txt", "/etc/passwd", ".git/config", "src/.git/hooks/x"],
    )
    async def test_no_patch_leaves_the_workspace(self, files: FileTool, root: Path, name: str) -> None:
        before = content(root)
        octal = "".join(f"\\{byte:03o}" for byte in name.encode())
        change, same = "@@ -1 +1 @@\n-outside\n+inside\n", "\nsimilarity index 100%\n"
        for patch in (
            f"--- a/{name}\n+++ b/{name}\n{change}",
            f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+inside\n",
            f"--- a/{name}\n+++ /dev/null\n@@ -1 +0,0 @@\n-outside\n",
            f'--- "a/{octal}"\n+++ "b/{octal}"\n{change}',
            f"diff --git a/README.md b/{name}{same}rename from README.md\nrename to {name}\n",
            f"diff --git a/{name} b/mine{same}copy from {name}\ncopy to mine\n",
        ):
            result = await files.apply_patch(patch)
            refused(files, result)
            assert "outside the workspace" in result.error or ".git" in result.error, result.error
        assert content(root) == before

    @pytest.mark.parametrize(
        ("patch", "said"),
        [
            ("--- a/link\n+++ b/link\n@@ -1 +1 @@\n-# Doubling\n+x\n", "symbolic link"),
            ("--- /dev/null\n+++ b/out/new\n@@ -0,0 +1 @@\n+x\n", "symbolic link"),
            (NEW.format("120000") + "--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "symbolic link"),
            (NEW.format("160000") + "--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+Subproject\n", "submodule"),
            (f"{README}old mode 100644\nnew mode 104755\n", "no ordinary file"),
            ("diff --git a/b b/b\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n", "binary"),
            ("--- /dev/null\n+++ b/README.md\n@@ -0,0 +1 @@\n+x\n", "already exists"),
            ("--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-# Doubling\n+x\n+y\n", "belongs to no hunk"),
            ("--- a/README.md\n+++ b/README.md\n@@ -1,9 +1 @@\n-# Doubling\n+x\n", "can't be read"),
            ("prose without a patch\n", "names no file"), ("diff --git " + ":// " * 5_000 + "\n", "names no files"),
            ("Binary files " + "x " * 500_000, "binary"), ("x" * 1_100_000, "at most"),
        ],
    )  # fmt: skip
    async def test_what_no_patch_may_do(self, files: FileTool, root: Path, patch: str, said: str) -> None:
        before = content(root)
        result = await files.apply_patch(patch)
        if said in ("symbolic link", "submodule", "no ordinary file"):
            refused(files, result, said)
        else:
            failed(result, said)
        assert content(root) == before


class TestUndo:
    async def test_step_by_step_back_to_the_beginning(self, files: FileTool, root: Path) -> None:
        (root / "src/double.py").chmod(0o755)
        before = content(root)
        await files.edit_file("src/double.py", "x + x", "2 * x")
        await files.append_file("src/double.py", "# end")
        await multi_edit(files, "src/double.py", [edit("# end", "# END")])
        await files.apply_patch("--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n")
        await files.write_file("a", "y")
        await files.move_file("src/double.py", "b.py")
        await files.delete_file("README.md")
        paths = ("README.md", "b.py", "a", "a", "src/double.py", "src/double.py", "src/double.py")
        assert [(await files.undo_edit(path)).metadata["undone"] for path in paths] == [
            "delete_file", "move_file", "write_file", "apply_patch", "multi_edit", "append_file", "edit_file",
        ]  # fmt: skip
        assert content(root) == before
        failed(await files.undo_edit("src/double.py"), "git_checkout")

    async def test_a_change_by_others_is_not_lost(self, files: FileTool, root: Path) -> None:
        await files.edit_file("src/double.py", "x + x", "2 * x")
        (root / "src/double.py").write_text("theirs\n")
        failed(await files.undo_edit("src/double.py"), "changed by something else")
        assert (root / "src/double.py").read_text() == "theirs\n"


MODULE = """\
import os


def load(path):
    with open(path) as file:
        return file.read()


def save(path, text):
    with open(path, "w") as file:
        file.write(text)
"""
SLIP = "def save(path, txt):\n    with open(path, 'w') as file:\n"
LOAD = "def load(path):\n    with open(path) as file:\n"


async def edited(text: str, old: str, new: str, replace_all: bool = False) -> tuple[str, ToolResult]:
    """A file's text after one edit, and what the tool said."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "a.txt")
        path.write_bytes(text.encode())
        result = await FileTool(name).edit_file("a.txt", old, new, replace_all)
        after = path.read_bytes().decode()
        assert result.success or after == text
        return after, result


@table(
    ("text", "old", "new", "after"),
    [
        (MODULE, "return file.read()\n", "return file\n", MODULE.replace("file.read()", "file")),
        ("a\nb\nc\n", "b\n", "", "a\nc\n"),
        # White space at the ends of lines is overlooked where the passage is unique, in the file and in what was asked.
        ("a\nb  \nc\t\nd\n", "b\nc\n", "x\n", "a\nx\nd\n"),
        ("a \nb \nc\n", "a\nb", "x\ny", "x\ny\nc\n"),
        ("a\nb\r\nc\r\nd\n", "b\nc\n", "x\ny\n", "a\nx\r\ny\r\nd\n"),
    ],
)
async def test_a_passage_is_replaced_and_nothing_else(text: str, old: str, new: str, after: str) -> None:
    found, result = await edited(text, old, new)
    assert (found, result.metadata["count"]) == (after, 1)


@table(
    ("text", "old", "new", "said"),
    [
        (MODULE, "    with open(path", "x", "occurs 2 times, at lines 5, 10; add lines"),
        ("b \nx\nb\t\nx\n", "b\nx", "y", "2 times, at lines 1, 3"),
        # Indentation is never overlooked.
        (MODULE, f"{LOAD}    return file.read()\n", "", "line 6 differs in white space: the file has '        return"),
        (MODULE, "class Unheard(Of):\n    pass\n", "", "nothing in it comes near"),
        (MODULE, SLIP, "", "first difference in line 9: old has 'def save(path, txt):'"),
    ],
)  # fmt: skip
async def test_what_cannot_be_replaced_says_what_would_work(text: str, old: str, new: str, said: str) -> None:
    _, result = await edited(text, old, new)
    assert said in result.error


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("a.py", "def f(:\n", "line 1"), ("a.py", "x = 1\n", ""), ("a.json", "{,}", "line 1 column 2"),
        ("a.txt", "def f(:", ""), ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.py", "-" * 100_000 + "1", "nested too deeply"), ("a.py", "x = (" * 200_000, ""),
    ],
)  # fmt: skip
async def test_syntax_errors_are_named_and_bombs_are_harmless(tmp_path: Path, path: str, content: str, said: str):
    result = await FileTool(tmp_path).write_file(path, content)
    assert said in result.content
    assert (result.success, "does not parse" in result.content) == (True, bool(said))
