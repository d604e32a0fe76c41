"""What policy says about patches that real git wrote."""

from __future__ import annotations

import random
import string
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.task import Constraints, Role, Task
from swe_ai_fleet.orchestrator.evidence import (
    Patch,
    PatchUnreadable,
    parse_patch,
    patch_violations,
    policy_results,
    tree_violations,
)
from swe_ai_fleet.tools.secrets import Secrets
from tests.tables import table
from tests.unit.test_executions import a_task

Files = Mapping[str, str | bytes | None]
TEXTS = (".py", ".go", ".toml", ".json", ".cfg", ".proto")


def changed(root: Path, before: Files, after: Files, *git_options: str) -> bytes:
    """The patch from one set of files to another, as git writes it; None removes a file."""
    _git(root, "init", "--quiet")
    _write(root, before)
    _git(root, "add", "--all")
    tree = _git(root, "write-tree").decode().strip()
    _write(root, after)
    _git(root, "add", "--all")
    return _git(root, "diff", "--cached", "--binary", "--full-index", *(git_options or ("--no-renames",)), tree)


def _write(root: Path, files: Files) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        elif isinstance(content, str) and content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(("git", *arguments), cwd=root, check=True, capture_output=True).stdout


def task(role: Role = Role.DEV, **constraints: object) -> Task:
    return a_task(role=role, constraints=Constraints(**constraints))


def found(data: bytes, of: Task | None = None, *, tree: Path | None = None) -> list[str]:
    """The violations, each with `!` in front where it rules the candidate out."""
    patch = parse_patch(data)
    violations = list(patch_violations(patch, of or task(), Secrets()))
    if tree is not None:
        listed = [
            str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() and ".git/" not in str(path)
        ]
        texts = {name: (tree / name).read_text() for name in listed if name in patch.paths or name.endswith(TEXTS)}
        violations += tree_violations(patch, listed, lambda name: texts.get(name, ""))
    return [f"{'!' if one.required else ''}{one}" for one in violations]


PYTHON_TESTS = """\
import pytest
from app import add


def test_adds():
    assert add(1, 2) == 3


def test_adds_nothing():
    assert add(0, 0) == 0
    assert add(1, 0) == 1


class TestMore:
    def test_negative(self):
        assert add(-1, 1) == 0
"""


# The patch as git reads it


@table(
    "data",
    [
        b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n",
        b"diff --git a/x b/x\n--- a/x\n+++ b/z\n@@ -1 +1 @@\n-1\n+2\n",
        b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-1\n+2\n-3\n",
        b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-1\n+2\n",
        b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,9999999999 @@\n-1\n+2\n",
    ],
)
def test_refuses_what_git_does_not_write(data: bytes) -> None:
    with pytest.raises(PatchUnreadable, match="line "):
        parse_patch(data)


# What rules a candidate out


PROJECT = '[project]\nname = "a"\nversion = "1"\n\n[tool.ruff]\nselect = ["F"]\n'
GENERATED = "// Code generated. DO NOT EDIT.\n" + "x\n" * 30
LINES = "".join(f"{number}\n" for number in range(6_000))
OUTSIDE = "is a symbolic link that leads outside the repository"
DECIDES = "which decides what checks say"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            {"app.py": "def add(a, b):\n    return a - b\n", "tests/test_app.py": PYTHON_TESTS},
            {
                "app.py": "def add(a, b):\n    return a + b\n",
                "tests/test_app.py": PYTHON_TESTS
                + "\n\n@pytest.mark.skipif(True, reason='x')\ndef test_new():\n    1\n",
                "tests/test_other.py": "import pytest\n\n\n@pytest.mark.xfail\ndef test_open():\n    assert False\n",
                "README.md": "Use `# noqa`, and token = 'secret'.\n",
            },
            [],
            id="a plain change",
        ),
        pytest.param({"a": "x"}, {"data.py": LINES}, ["!6000 changed lines; at most 5000 are accepted"], id="lines"),
        pytest.param(
            {"b": "x"},
            {"a/in": "-> ../b", "a/out": "-> ../../b", "abs": "-> /etc/passwd"},
            [f"a/out: {OUTSIDE}", f"abs: {OUTSIDE}"],
            id="links",
        ),
        pytest.param(
            {
                "pyproject.toml": PROJECT,
                "setup.cfg": "[metadata]\nname = a\n[tool:pytest]\naddopts = -q\n",
                "package.json": '{"name": "a", "scripts": {"test": "jest", "build": "x"}}\n',
                "tests/conftest.py": "import pytest\n",
                "app.py": "import os  # noqa\nx = 1\n",
            },
            {
                "pyproject.toml": PROJECT.replace('["F"]', "[]"),
                "setup.cfg": "[metadata]\nname = a\n[tool:pytest]\naddopts = -q --deselect x\n",
                "package.json": '{"name": "a", "scripts": {"test": "true", "build": "y"}}\n',
                "tests/conftest.py": "import pytest\n\n\ndef pytest_collection_modifyitems():\n    pass\n",
                "app.py": "x = 1\nimport os  # noqa\nimport sys  # noqa: F401\n",
                ".flake8": "[flake8]\nmax-line-length = 200\n",
                ".github/workflows/ci.yml": "on: push\n",
                ".gitattributes": "* -text\n",
            },
            [
                f".flake8:1: changes the settings, {DECIDES}",
                ".gitattributes: changes git's settings for files of the repository",
                ".github/workflows/ci.yml: changes what the repository's build or review pipelines run",
                "app.py:3: silences a check with '# noqa'",
                f"package.json:1: changes the settings of the script test, {DECIDES}",
                f"pyproject.toml:6: changes the settings of ruff, {DECIDES}",
                f"setup.cfg:4: changes the settings of tool:pytest, {DECIDES}",
                f"tests/conftest.py:2: changes pytest's hooks, {DECIDES}",
            ],
            id="settings of checks, and silencers",
        ),
        pytest.param(
            {"pyproject.toml": '[project]\nname = "a"\n'},
            # TOML for pytest, and more dots than are read here.
            {"pyproject.toml": f'[project]\nname = "a"\n# {"." * 300}\n[tool.pytest.ini_options]\naddopts = "-k no"\n'},
            [f"pyproject.toml:3: changes the settings of an unreadable file, {DECIDES}"],
            id="settings that cannot be read",
        ),
        pytest.param(
            {"gen.go": GENERATED},
            {"gen.go": GENERATED.removesuffix("x\n") + "y\n", "poetry.lock": "x\n"},
            [
                "gen.go: a file that says it is generated changes without its source",
                "poetry.lock: a lock file changes without pyproject.toml",
            ],
            id="files that tools write",
        ),
    ],
)
def test_what_policy_says_of_a_change(tmp_path: Path, before: Files, after: Files, expected: list[str]) -> None:
    data = changed(tmp_path, before, after)
    assert sorted(found(data, tree=tmp_path)) == expected
    assert not any("ci.yml" in one for one in found(data, task(Role.DEVOPS)))


def test_paths_binaries_and_modes(tmp_path: Path) -> None:
    before: Files = {"src/a.py": "", "logo.png": b"\0old", "old.bin": b"\0"}
    after: Files = {"src/a.py": "x = 1\n", "other.py": "x = 1\n", "logo.png": b"\0new", "old.bin": None}
    data = changed(tmp_path, before, after)
    assert found(data, task(allowed_paths=("src",))) == [
        "!logo.png: lies outside the allowed paths",
        "!logo.png: is a binary file",
        "!old.bin: lies outside the allowed paths",
        "!other.py: lies outside the allowed paths",
    ]
    setuid = data.replace(b"new file mode 100644", b"new file mode 104755")
    assert "!other.py: has the mode '104755', which git does not use" in found(setuid)


def test_a_task_may_allow_a_concern_but_not_all(tmp_path: Path) -> None:
    data = changed(tmp_path, {"a.png": b"\0"}, {"a.png": b"\0\1", "b.py": "x\n"})
    allowing = task(allowed_paths=("a.png",), metadata={"policy.allow": "Binaries, paths"})
    required, warnings = policy_results(list(patch_violations(parse_patch(data), allowing, Secrets())), allowing)
    assert (required.problems, required.passed) == (("b.py: lies outside the allowed paths",), False)
    assert (warnings.problems, warnings.required) == (("a.png: is a binary file",), False)


# Secrets


def _drawn(seed: int, alphabet: str, length: int) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


_ALNUM = string.ascii_letters + string.digits
PLANTED = {
    "a private key": "-----BEGIN " + "OPENSSH PRIVATE KEY-----",
    "an AWS access key": "AKIA" + _drawn(1, string.ascii_uppercase + string.digits, 16),
    "a GitHub token": "ghp_" + _drawn(2, _ALNUM, 36),
    "an API key": "sk-" + _drawn(6, _ALNUM, 40),
    "a random value under a secret's name": 'DB_PASSWORD = "' + _drawn(9, _ALNUM, 24) + '"',
}
_places = st.lists(st.sampled_from(["x = 1", "", "# words", "{'a': 'b'}", "...", "\t\x0c"]), max_size=8)


@given(
    st.sampled_from(sorted(PLANTED)),
    _places,
    _places,
    st.sampled_from(["", "key = '", "\t", "a, "]),
    st.integers(1, 10**6),
)
def test_a_planted_secret_is_found_and_never_shown(
    what: str, before: list[str], behind: list[str], lead: str, start: int
) -> None:
    texts = [*before, lead + PLANTED[what], *behind]
    said = secrets("src/app.py", *texts, start=start)
    assert any(one.startswith(f"!src/app.py:{start + len(before)}: adds what looks like {what}") for one in said)
    assert PLANTED[what].split('"')[-2 if '"' in PLANTED[what] else -1] not in "".join(said)


def secrets(path: str, *texts: str, start: int = 1) -> list[str]:
    """What is said of secrets in lines that are added."""
    added = "".join(f"+{text}\n" for text in texts)
    said = found(f"{_head(path)}@@ -{start},0 +{start},{len(texts)} @@\n{added}".encode())
    return [one for one in said if "adds what looks like" in one]


def test_what_only_resembles_a_secret() -> None:
    lines = (
        'API_KEY = "your-api-key-here-1234567890"',
        'api_key = os.environ["SERVICE_API_KEY_2"]',
        'SECRET = "${VAULT_SECRET_9f8a7b6c5d}"',
        'aws_access_key_id = "AKIAIOSFODNN7EXAMPLE"',
    )
    assert secrets("src/app.py", *lines) == []


@table(
    ("mark", "paths"),
    [
        # In tests, which are known by name and directory, and in documents they are only warned of.
        ("", ("tests/a.py", "pkg/test_a.py", "test.js", "test.py", "lib/a_spec.ts", "lib/a-test.mjs", "docs/a.md")),
        ("!", ("cmd/toml-test/main.go", "src/contests/app.py", "src/pkg/testing/doubles.py", "src/latest.js")),
    ],
)
def test_random_values_in_tests_are_only_warned_of(mark: str, paths: tuple[str, ...]) -> None:
    what = "a random value under a secret's name"
    for path in paths:
        assert secrets(path, PLANTED[what], start=3) == [f"{mark}{path}:3: adds what looks like {what}"]


# Tests that are taken away


def _tests(root: Path, before: str, after: str | None, name: str = "tests/test_app.py") -> list[str]:
    return found(changed(root, {"keep": "x", name: before}, {name: after}))


ADDS = "def test_adds():"
OF_ONE = "    assert add(1, 0) == 1\n"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (f"{ADDS}\n    assert add(1, 2) == 3\n\n\n", "", "!tests/test_app.py:5: removes the tests test_adds"),
        ("def test_negative(", "# def test_negative(", "!tests/test_app.py:15: removes the tests test_negative"),
        (ADDS, "def test_sums():", "tests/test_app.py:5: other tests take the place of test_adds"),
        (ADDS, "def test_adds(tmp_path):", ""),
        (ADDS, f"@pytest.mark.skip\n{ADDS}", "!tests/test_app.py:5: switches test_adds off"),
        (f"{ADDS}\n", f"{ADDS}\n    pytest.skip('later')\n", "!tests/test_app.py:6: switches test_adds off"),
        ("class TestM", "@unittest.skip('x')\nclass TestM", "!tests/test_app.py:14: switches TestMore off"),
        ("pytest\n", "pytest\npytestmark = pytest.mark.skip\n", "!tests/test_app.py:2: switches tests off"),
        (OF_ONE, "", "tests/test_app.py:11: 1 assertions go and 0 come"),
    ],
)
def test_weakened_python_tests(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in PYTHON_TESTS
    assert _tests(tmp_path, PYTHON_TESTS, PYTHON_TESTS.replace(old, new, 1)) == ([expected] if expected else [])


def test_tests_that_move_are_still_there_and_a_removed_file_names_its_own(tmp_path: Path) -> None:
    before: Files = {"tests/test_app.py": PYTHON_TESTS, "keep": "x"}
    moved = changed(tmp_path, before, {"tests/test_app.py": None, "tests/unit/test_sums.py": PYTHON_TESTS})
    assert found(moved) == []
    (tmp_path / "removed").mkdir()
    named = "!tests/test_app.py:5: removes the tests test_adds, test_adds_nothing, test_negative"
    assert _tests(tmp_path / "removed", PYTHON_TESTS, None) == [named]


RUST = "fn helper() {}\n\n#[test]\nfn adds() {\n    assert_eq!(1, 1);\n}\n"
GO = "package a\n\nfunc TestAdd(t *testing.T) {\n\tif add(1, 2) != 3 {\n\t\tt.Fatal(1)\n\t}\n}\n"
TYPESCRIPT = "it('adds', () => {\n  expect(add(1, 2)).toBe(3);\n});\nit('more', () => {});\n"


@pytest.mark.parametrize(
    ("name", "before", "old", "new", "expected"),
    [
        ("add.test.ts", TYPESCRIPT, "it('adds", "it.skip('adds", "!add.test.ts:1: switches adds off"),
        ("add_test.go", GO, ") {\n", ") {\n\tt.Skip()\n", "!add_test.go:4: switches TestAdd off"),
        ("src/lib.rs", RUST, "[test]\n", "[test]\n#[ignore]\n", "!src/lib.rs:4: switches adds off"),
        ("src/lib.rs", RUST, "#[test]\n", "", "!src/lib.rs: removes the tests adds"),
        ("src/db.py", "def test_connection():\n    return 1\n", "test_connection", "ping", ""),
    ],
)
def test_weakened_tests_of_other_languages(
    tmp_path: Path, name: str, before: str, old: str, new: str, expected: str
) -> None:
    assert _tests(tmp_path, before, before.replace(old, new, 1), name) == ([expected] if expected else [])


# What is warned of


HOSTILE = (
    "token: " * 5_000,
    'secret = "' + "a1" * 4_000,
    "-----BEGIN " * 4_000,
    "\n".join(["def test_a():", "@skip"] * 2_000),
    "\n".join(f"def test_{number}(): assert 1" for number in range(1_500)),
    "\n".join(['    it("a")'] * 3_000),
)


def test_hostile_lines_and_many_files_and_hunks_take_no_time() -> None:
    patches: list[tuple[str, str]] = []
    for text in HOSTILE:
        lines = text.split("\n")
        removed = "".join(f"-{line}\n" for line in lines[: len(lines) // 2 + 1])
        added = "".join(f"+{line}x\n" for line in lines)
        hunk = f"@@ -1,{removed.count(chr(10))} +1,{len(lines)} @@\n"
        patches.append((f"{_head('tests/test_a.py')}{hunk}{removed}{added}", text))
    files = (
        f"{_head(f'tests/test_{at}.py')}@@ -1 +1 @@\n-def test_a{at}():\n+def test_b{at}():\n" for at in range(700)
    )
    hunks = (f"@@ -{3 * at} +{3 * at} @@\n-a\n+b\n" for at in range(1, 2_000))
    patches += [("".join(files), "b\n" * 7_000), (_head("pyproject.toml") + "".join(hunks), "b\n" * 7_000)]
    mask = Secrets(["entrusted-value-1"])
    for data, text in patches:
        started_at = time.process_time()
        patch = parse_patch(data.encode())
        # All that policy has to say of a patch, and of its lines in a file of settings.
        list(patch_violations(patch, task(), mask))
        list(tree_violations(patch, ["tests/test_a.py"], lambda name, text=text: text))
        list(patch_violations(Patch((replace(patch.files[0], path="a.yml"),)), task(), mask))
        assert time.process_time() - started_at < 10, text[:20]


def _head(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
