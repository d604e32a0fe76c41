"""How a selection becomes a command: nothing of it is run here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.tools.failure import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.tests.runners.cargo import cargo_plan
from swe_ai_fleet.tools.tests.runners.frameworks import framework_of
from swe_ai_fleet.tools.tests.runners.go import go_plan
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.javascript import npm_plan, read_script
from swe_ai_fleet.tools.tests.runners.plan import Selection, checked_keyword, checked_path
from swe_ai_fleet.tools.tests.runners.unittests import checked_name


def inventory(root: Path, files: dict[str, str]) -> Inventory:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Inventory(Tree(root), files)


def package(script: str, **others: str) -> str:
    return json.dumps({"scripts": {"test": script, **others}})


@pytest.mark.parametrize(
    ("script", "runner", "alone"),
    [
        ("jest", "jest", True),
        ("npx jest --coverage", "jest", True),
        ("NODE_ENV=test jest", "jest", False),
        ("cross-env CI=1 mocha test", "mocha", False),
        ("tsc && vitest run", "vitest", False),
        ("c8 mocha", "mocha", False),
        ("node --test", "node", True),
        ("node --import tsx --test src/*.test.ts", "node", False),
        ("node test.js", "", True),
        ("jest | tee log", "", False),
        ("jest || true", "", False),
        ("react-scripts test", "jest", False),
        ("echo 'unbalanced", "", True),
    ],
)
def test_which_runner_a_script_starts(script: str, runner: str, alone: bool) -> None:
    found = read_script(package(script))
    assert (found.runner, found.alone) == (runner, alone)


def test_scripts_that_call_others_are_followed() -> None:
    found = read_script(package("npm run unit", unit="mocha test"))
    assert (found.name, found.runner) == ("unit", "mocha")
    assert read_script(package("npm run test")).runner == ""
    with pytest.raises(ToolFailure, match="no test script"):
        read_script(package('echo "Error: no test specified" && exit 1'))


def test_tests_that_a_script_names_are_replaced_by_the_selection(tmp_path: Path) -> None:
    found = inventory(tmp_path, {"package.json": package("mocha -r ts-node test/all.js"), "test/one.js": ""})
    plan = npm_plan(found, ".", Selection(paths=("test/one.js",)))
    assert plan.told == ("mocha", "-r", "ts-node", "--recursive", "test/one.js")
    assert npm_plan(found, ".", Selection()).told == ("npm", "test")


def test_names_that_look_like_options_stay_names(tmp_path: Path) -> None:
    files = {"--config=evil": "", "-x/a.js": "", "-p/a_test.go": "", "go.mod": "", "Cargo.toml": "", "src/-x.rs": ""}
    for script in ("jest", "vitest", "mocha", "ava", "node --test"):
        found = inventory(tmp_path, files | {"package.json": package(script)})
        for path in ("--config=evil", "-x/a.js"):
            argv = npm_plan(found, ".", Selection(paths=(path,))).argv
            assert path not in argv
            assert f"./{path}" in argv
    found = inventory(tmp_path, files | {"package.json": package("jest")})
    assert "/-x" in npm_plan(found, ".", Selection(paths=("-x",))).argv
    assert go_plan(found, ".", Selection(paths=("-p/a_test.go",))).argv[-1] == "./-p"
    with pytest.raises(ToolFailure, match="no module"):
        cargo_plan(found, ".", Selection(paths=("src/-x.rs",)), "/tmp")


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("src/lib.rs", ["--lib"]),
        ("src/main.rs", ["--bins"]),
        ("src/bin/tool.rs", ["--bin=tool"]),
        ("src/a/b.rs", ["--", "a::b::"]),
        ("src/a/mod.rs", ["--", "a::"]),
        ("tests/x.rs", ["--test=x"]),
    ],
)
def test_what_a_rust_file_selects(tmp_path: Path, path: str, options: list[str]) -> None:
    found = inventory(tmp_path, {"crate/Cargo.toml": "", f"crate/{path}": "", "Cargo.toml": "[workspace]"})
    plan = cargo_plan(found, "crate", Selection(paths=(f"crate/{path}",)), "/tmp")
    assert list(plan.told[2:]) == options
    assert plan.transient == ("crate/Cargo.lock", "Cargo.lock")
    assert plan.variables["CARGO_TARGET_DIR"].startswith("/tmp/")


def test_the_nearest_manifest_counts(tmp_path: Path) -> None:
    found = inventory(tmp_path, {"a/go.mod": "", "a/x/b.go": "", "b/go.mod": "", "package.json": "{}"})
    assert found.root_for("go", ["a/x/b.go", "a/x"]) == "a"
    for paths in ([], ["a/x", "b"], ["package.json"]):
        with pytest.raises(ToolFailure):
            found.root_for("go", paths)
    assert found.root_for("npm", []) == "."


@given(st.text(max_size=50))
def test_nothing_checked_begins_like_an_option(text: str) -> None:
    for check in (checked_keyword, checked_path):
        try:
            checked = check(text)
        except ToolRefusal:
            assert text.startswith(("-", "@"))
        except ToolFailure:
            continue
        else:
            assert checked == text
            assert not checked.startswith(("-", "@"))
            assert "\0" not in checked and "\n" not in checked


def test_names_of_unittest(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    tree = Tree(tmp_path)
    assert checked_name(tree, "pkg.mod.Class.test_it") == "pkg.mod.Class.test_it"
    assert checked_name(tree, "./a.py::T::test") == "a.py::T::test"
    for name in ("../x", "/etc/passwd", "absent.py", "a b", "a;b", "absent.py::T"):
        with pytest.raises(ToolFailure):
            checked_name(tree, name)


def test_which_framework_a_command_is() -> None:
    commands = {
        "pytest": "uv run pytest -q",
        "unittest": "python3 -m unittest discover -s tests",
        "go": "go test ./...",
        "cargo": "cargo test",
        "npm": "npm test --silent",
        "make": "make test",
    }
    for framework, command in commands.items():
        assert framework_of(tuple(command.split())) == framework
    for command in ("", "make -C x test", "sh check.sh", "npm run x", "python3 test.py"):
        assert framework_of(tuple(command.split())) == ""
