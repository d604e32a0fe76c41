"""How a selection becomes a command: nothing of it is run here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.tools import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.tests.runners.cargo import cargo_plan
from swe_ai_fleet.tools.tests.runners.frameworks import framework_of
from swe_ai_fleet.tools.tests.runners.go import go_plan
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.javascript import JavaScript
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, checked_keyword, checked_path
from swe_ai_fleet.tools.tests.runners.scripts import Script, read_line
from swe_ai_fleet.tools.tests.runners.shell_lines import ShellLine, read_shell_line
from swe_ai_fleet.tools.tests.runners.unittests import checked_name, unittest_plan


def inventory(root: Path, files: dict[str, str]) -> Inventory:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Inventory(Tree(root), files)


def package(script: str, **others: str) -> str:
    return json.dumps({"scripts": {"test": script, **others}})


def npm(found: Inventory, *paths: str, keyword: str = "", deselect: tuple[str, ...] = ()) -> Plan:
    package = JavaScript(inventory=found, root=".", mount="/workspace", programs="/programs")
    return package.plan(Selection(paths=paths, keyword=keyword, deselect=deselect))


def script_of(plan: Plan) -> str:
    """What the shell runs, without what it sets up."""
    assert plan.argv[:2] == ("sh", "-c")
    return plan.argv[2].partition("\n")[2]


SCRIPTS = {
    "lint": "eslint .",
    "types": "tsc --noEmit",
    "build": "tsc",
    "test:unit": "jest --coverage",
    "test:node": "node --test",
    "style": "ecl $(git ls-files)",
    "cov": "(cd x; y)",
    "verify": "npm run build && npm run test:unit",
    "pretest": "npm run lint",
    "test": "npm run verify",
}


@pytest.mark.parametrize(
    ("line", "runners", "before", "left_out"),
    [
        ("jest", ["jest"], [], []),
        ("npx jest --coverage", ["jest"], [], []),
        ("NODE_ENV=test jest", ["jest"], [], []),
        ("cross-env CI=1 mocha test", ["mocha"], [], []),
        ("c8 --check-coverage mocha", ["mocha"], [], []),
        ("node --experimental-vm-modules node_modules/jest/bin/jest.js", ["jest"], [], []),
        ("node --import tsx --test 'src/*.test.ts'", ["node"], [], []),
        ("react-scripts test", ["jest"], [], []),
        ("eslint . && jest", ["jest"], [], ["eslint ."]),
        ("npm run lint && npm run test:unit", ["jest"], [], ["npm run lint"]),
        ("xo && ava", ["ava"], [], ["xo"]),
        ("tsc && mocha", ["mocha"], ["tsc"], []),
        ("tsc --noEmit && vitest run", ["vitest"], [], ["tsc --noEmit"]),
        ("jest && codecov", ["jest"], [], ["codecov"]),
        ("jest || true", ["jest"], [], []),
        ("tape test/*.js | tap-spec", ["tape"], [], []),
        ("mocha > log 2>&1", ["mocha"], [], []),
        ("run-s lint types test:*", ["jest", "node"], [], ["npm run lint", "npm run types"]),
        ("A=1 npm run test:node", ["node"], [], []),
        ("nyc --all npm run test:node", ["node"], [], []),
        ("npm run style && npm run cov && ava", ["ava"], ["npm run cov"], ["npm run style"]),
        ("npm test", ["jest"], ["tsc"], ["npm run lint"]),
        ("eslint . && node test.js", [""], [], ["eslint ."]),
        ("node test.js --test", [""], [], []),
        ("npm test --workspaces", [""], [], []),
        ("npm run absent", [""], [], []),
    ],
)
def test_a_script_is_read_as_far_as_its_runner(
    line: str, runners: list[str], before: list[str], left_out: list[str]
) -> None:
    read = read_line(line, SCRIPTS)
    assert isinstance(read, Script)
    assert [part.runner for part in read.runners] == runners
    assert [part.text for part in read.before] == before
    assert list(read.left_out) == left_out


@pytest.mark.parametrize("line", ["", "serve & jest", "$(npm bin)/jest", "(cd a; jest)", "eslint ."])
def test_lines_that_only_a_shell_understands(line: str) -> None:
    assert read_line(line, SCRIPTS) is None


def test_variables_before_a_script_hold_for_its_commands() -> None:
    read = read_line("A='1 2' npm run test:unit -- --ci", SCRIPTS)
    assert read is not None
    assert read.runners[0].text == "A='1 2' jest --coverage --ci"
    wrapped = read_line("nyc --all npm run test:node", SCRIPTS)
    assert wrapped is not None
    assert wrapped.runners[0].head == "nyc --all node"


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    plan = npm(inventory(tmp_path, {"package.json": package("eslint . && tsc && mocha", posttest="x")}))
    assert plan.notes == ("left out, since it tests nothing: eslint .",)
    assert script_of(plan).startswith("tsc\nmocha ")
    with pytest.raises(ToolFailure, match="no test script"):
        npm(inventory(tmp_path, {"package.json": package('echo "Error: no test specified" && exit 1')}))


@pytest.mark.parametrize("reporter", ["-R min", "-Rdot", "--reporter=terse", "--reporter spec"])
def test_tap_names_what_passes(reporter: str, tmp_path: Path) -> None:
    plan = npm(inventory(tmp_path, {"package.json": package(f"tap {reporter} test && npm run lint")}))
    assert "tap -R tap test" in script_of(plan)
    found = inventory(tmp_path, {"package.json": package("tap test")})
    assert "tap test" in script_of(npm(found))
    assert script_of(npm(found, "test/a.js", "test/b.js")).endswith("tap test/a.js test/b.js")
    with pytest.raises(ToolFailure, match="no paths or keyword"):
        npm(found, keyword="one")


@pytest.mark.parametrize(
    ("script", "files", "option"),
    [
        ("jest", {}, "${N:+--testTimeout=$((5000*N))}"),
        ("jest --testTimeout=800 a", {}, "--testTimeout=$((800*N)) a"),
        ("jest --testTimeout 800", {}, "--testTimeout $((800*N))"),
        ("jest", {"jest.config.ts": "export default {preset: 'ts-jest', testTimeout: 20_000}"}, "=$((20000*N))"),
        ("jest -c a.js", {"a.js": "module.exports = {testTimeout: 7000}", "jest.config.js": ""}, "=$((7000*N))"),
        ("jest", {"jest.config.js": "module.exports = {testTimeout: 20 * 1000}"}, ""),
        ("jest", {"jest.config.js": "module.exports = {...require('../jest.base.js')}"}, ""),
        ("tap", {}, "${N:+--timeout=$((30*N))}"),
        ("tap", {".taprc": "jobs: 2\ntimeout: 120\n"}, "${N:+--timeout=$((120*N))}"),
        ("tap --timeout=60 test", {}, "--timeout=$((60*N)) test"),
        ("ava", {}, "${N:+--timeout=$((10*N))s}"),
        ("ava --timeout=2m", {}, "--timeout=$((2*N))m"),
        ("ava", {"ava.config.js": "export default {timeout: '1m'}"}, "${N:+--timeout=$((1*N))m}"),
        ("tape test", {}, ""),
    ],
)
def test_a_runners_own_limit_is_longer_by_as_much_as_the_supervisors(
    tmp_path: Path, script: str, files: dict[str, str], option: str
) -> None:
    text = script_of(npm(inventory(tmp_path, {"package.json": package(script), **files})))
    assert option in text.replace("${FLEET_TEST_LONGER:-1}", "N").replace("FLEET_TEST_LONGER", "N")
    assert bool(option) == ("imeout" in text)


def test_tests_that_a_script_names_are_replaced_by_the_selection(tmp_path: Path) -> None:
    files = {"package.json": package("mocha -r ts-node 'test/**/all.js'"), "test/one.js": ""}
    found = inventory(tmp_path, files)
    assert "all.js" not in script_of(npm(found, "test/one.js"))
    assert script_of(npm(found, "test/one.js")).startswith("mocha -r ts-node --require=/programs/")
    assert npm(found, "test/one.js").told == ("npm", "test", "--", "--recursive", "test/one.js")
    assert "'test/**/all.js'" in script_of(npm(found))
    assert npm(found).told == ("npm", "test")


@pytest.mark.parametrize(
    ("runner", "one", "without"),
    [
        ("jest", "--testNamePattern=^(?:g inner \\(x\\))$", "--testNamePattern=^(?!(?:g slow)$)"),
        ("vitest run", "--testNamePattern=^(?:g inner \\(x\\))$", "--testNamePattern=^(?!(?:g slow)$)"),
        ("mocha", "--grep=^(?:g inner \\(x\\))$", ""),
        ("node --test", "", None),
    ],
)
def test_ids_select_and_leave_out_tests(tmp_path: Path, runner: str, one: str, without: str | None) -> None:
    found = inventory(tmp_path, {"package.json": package(runner), "a.test.js": ""})
    chosen = npm(found, "a.test.js::g > inner (x)").told
    assert "a.test.js" in chosen
    assert not one or one in chosen
    if without is None:
        with pytest.raises(ToolFailure, match="cannot leave out"):
            npm(found, deselect=("a.test.js::g > slow",))
        return
    plan = npm(found, deselect=("a.test.js::g > slow",))
    assert not without or without in plan.told
    assert "g > slow" in plan.variables["FLEET_TEST_OPTIONS"]


@pytest.mark.parametrize(
    ("line", "argv", "directory", "before"),
    [
        ("pytest -q", "pytest -q", "", ""),
        ("cd web && npm test", "npm test", "web", ""),
        ("cd a && cd ../b && A=1 python -m pytest -q", "A=1 python -m pytest -q", "b", ""),
        ("pip install -e . && uv run pytest", "uv run pytest", "", "pip install -e ."),
        ("npx jest --ci", "npx jest --ci", "", ""),
        ("poetry run pytest", "poetry run pytest", "", ""),
        ("go test ./...", "go test ./...", "", ""),
    ],
)
def test_callers_lines_that_start_a_runner(line: str, argv: str, directory: str, before: str) -> None:
    assert read_shell_line(line) == ShellLine(argv=tuple(argv.split()), directory=directory, before=before)


@pytest.mark.parametrize(
    "line",
    [
        *("", "true", "make -C x", "pytest | tee log", "pytest; true", "pytest || true", "pytest tests/*.py"),
        *("pytest $ARGS", "cd .. && pytest", "cd /tmp && pytest", "echo `pytest`", "sh -c 'pytest'", "echo 'pytest"),
    ],
)
def test_callers_lines_that_are_judged_by_their_end(line: str) -> None:
    assert isinstance(read_shell_line(line), str)


def test_names_that_look_like_options_stay_names(tmp_path: Path) -> None:
    files = {"--config=evil": "", "-x/a.js": "", "-p/a_test.go": "", "go.mod": "", "Cargo.toml": "", "src/-x.rs": ""}
    for script in ("jest", "vitest", "mocha", "ava", "node --test"):
        found = inventory(tmp_path, files | {"package.json": package(script)})
        for path in ("--config=evil", "-x/a.js"):
            words = script_of(npm(found, path)).split()
            assert path not in words
            assert f"./{path}" in words
    found = inventory(tmp_path, files | {"package.json": package("jest")})
    assert script_of(npm(found, "-x")).endswith(" /-x")
    assert "'$(touch pwned) wr;ong'" in script_of(npm(found, keyword="$(touch pwned) wr;ong")).replace(
        "--testNamePattern=", ""
    )
    assert go_plan(found, ".", Selection(paths=("-p/a_test.go",))).argv[-1] == "./-p"
    with pytest.raises(ToolFailure, match="no module"):
        cargo_plan(found, ".", Selection(paths=("src/-x.rs",)), "/tmp")


def test_what_go_is_told(tmp_path: Path) -> None:
    found = inventory(tmp_path, {"m/go.mod": "module example.org/m\n", "m/a/a_test.go": "", "m/b/b_test.go": ""})

    def told(*paths: str, base: str = "go test ./...") -> str:
        return " ".join(go_plan(found, "m", Selection(paths=paths), tuple(base.split())).told[2:])

    assert told(base="go test -run Foo -race -count 1 ./a -args -x y") == "-run=Foo -race -count=1 ./a -args -x y"
    assert told("m/a/a_test.go", "m/b") == "./a ./b/..."
    assert told("m/a/a_test.go::TestX/a.b") == "-run=^TestX$/^a\\.b$ ./a"
    assert told("example.org/m/a::TestX", "example.org/m/b::TestY") == (
        "-run=^TestX$|^TestY$ example.org/m/a example.org/m/b"
    )
    assert told("example.org/m/a") == "example.org/m/a"
    for paths in (("m/a/a_test.go::TestX", "m/b"), ("m/a/a_test.go::a b",)):
        with pytest.raises(ToolFailure):
            told(*paths)
    with pytest.raises(ToolFailure, match="leave out"):
        go_plan(found, "m", Selection(deselect=("example.org/m/a::TestX",)))


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
    assert plan.stream == "output"
    assert plan.transient == ("crate/Cargo.lock", "Cargo.lock")
    assert plan.variables["CARGO_TARGET_DIR"].startswith("/tmp/")


def test_what_cargo_is_told_in_a_workspace(tmp_path: Path) -> None:
    files = {"Cargo.toml": "[workspace]", "one/src/lib.rs": "", "one/src/a/b.rs": "", "one/tests/x.rs": ""}
    found = inventory(tmp_path, files | {"one/Cargo.toml": '[package]\nname = "first"\n'})

    def plan(*paths: str, keyword: str = "") -> Plan:
        return cargo_plan(found, ".", Selection(paths=paths, keyword=keyword), "/tmp", programs="/programs", mount="/w")

    def told(*paths: str) -> str:
        return " ".join(plan(*paths).told[2:])

    assert told("one") == "--package=first"
    assert told("one/tests/x.rs") == "--package=first --test=x"
    assert told("one/src/a/b.rs") == "--package=first -- a::b::"
    assert told("one/src/lib.rs::a::b::tests::adds") == "--package=first --lib -- --exact a::b::tests::adds"
    assert told("one/src/a/b.rs::tests::adds") == "--package=first -- --exact a::b::tests::adds"
    both = plan("one/tests/x.rs", "one/src/a/b.rs")
    assert both.told[2:] == ("--package=first", "--test=x", "--lib")
    assert json.loads(both.variables["FLEET_TEST_OPTIONS"])["modules"] == ["a::b::"]
    with pytest.raises(ToolFailure, match="cannot combine"):
        plan("one/src/a/b.rs", keyword="adds")


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


@pytest.mark.parametrize(
    ("line", "selection", "told"),
    [
        ("python3 manage.py test --parallel 4 app -v 2", Selection(), "python3 manage.py test app"),
        ("python3 manage.py test --parallel app", Selection(), "python3 manage.py test app"),
        ("python3 -m django test --settings a.b -t .", Selection(), "python3 -m django test --settings a.b -t ."),
        (
            "python3 manage.py test --failfast --settings=a app",
            Selection(paths=("app/tests/test_x.py", "app/test_y.py::T::test_it", "app.test_z.T"), keyword="w"),
            "python3 manage.py test --settings=a -k=w app.tests.test_x app.test_y.T.test_it app.test_z.T",
        ),
    ],
)
def test_what_django_is_told(line: str, selection: Selection, told: str) -> None:
    plan = unittest_plan(selection, tuple(line.split()), program_directory="/programs")
    assert " ".join(plan.told) == told
    assert plan.argv == ("python3", "/programs/fleet_unittest.py", "--django", *plan.told[1:], "--noinput")


def test_which_framework_a_command_is() -> None:
    commands = {
        "pytest": ["uv run pytest -q", "python -m pytest", "env A=1 pytest", "A=1 pytest", "poetry run pytest"],
        "unittest": [
            "python3 -m unittest discover -s tests",
            "python3 -m django test --settings=a",
            "A=1 python3 manage.py test app",
        ],
        "go": ["go test ./..."],
        "cargo": ["cargo test"],
        "npm": [
            "npm test --silent",
            "npm run unit",
            "yarn test",
            "npx --no -- jest",
            "env A=1 npx mocha",
            "node --test",
        ],
        "make": ["make test"],
    }
    for framework, lines in commands.items():
        for line in lines:
            assert framework_of(tuple(line.split())) == framework, line
    for command in ("", "make -C x test", "sh check.sh", "npm install", "python3 test.py", "node test.js", "echo jest"):
        assert framework_of(tuple(command.split())) == ""
