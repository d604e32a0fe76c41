"""How a command and a selection become a plan: nothing of it is run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import write_files
from swe_ai_fleet.tools import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.tests import Selection, SuitePlan, SuitePlanner, checked_keyword, checked_path
from tests.tables import table

NPM = ("npm", "test")
ONE_RULE = "left out, since it tests nothing: {}"


async def plan(
    root: Path, argv: tuple[str, ...] | str, *paths: str, directory: str = ".", **selected: Any
) -> SuitePlan:
    """The plan for a command, or for a shell line, in the directory as it is."""
    selection = Selection(paths=paths, **selected)
    async with Sandbox(SandboxPolicy(level=IsolationLevel.NONE)).workspace(root) as workspace:
        planner = SuitePlanner(workspace=workspace)
        read = planner.line if isinstance(argv, str) else planner.plan
        return await read(argv, selection, directory)


def package(script: str, **others: str) -> dict[str, str]:
    return {"package.json": json.dumps({"scripts": {"test": script, **others}})}


def script_of(plan: SuitePlan) -> str:
    """What the shell runs, without what it sets up."""
    assert plan.argv[:2] == ("sh", "-c")
    return plan.argv[2].partition("\n")[2]


SCRIPTS = {
    "lint": "eslint .", "types": "tsc --noEmit", "build": "tsc", "test:unit": "jest --coverage",
    "test:node": "node --test", "style": "ecl $(git ls-files)", "cov": "(cd x; y)",
    "verify": "npm run build && npm run test:unit", "pretest": "npm run lint", "test": "npm run verify",
    "a": "npm run b && npm run b", "b": "npm run a && npm run a",
}  # fmt: skip


@table(
    ("line", "framework", "before", "left_out"),
    [
        ("jest", "jest", "jest ", ""),
        ("npx jest --coverage", "jest", "jest --coverage ", ""),
        ("cross-env CI=1 mocha test", "mocha", "cross-env CI=1 mocha test ", ""),
        ("node --experimental-vm-modules node_modules/jest/bin/jest.js", "jest", "node --experimental-vm-modules", ""),
        ("node --import tsx --test 'src/*.test.ts'", "node", "node --require=", ""),
        ("npm run lint && npm run test:unit", "jest", "jest --coverage ", "npm run lint"),
        ("tsc --noEmit && vitest run", "vitest", "vitest run ", "tsc --noEmit"),
        ("jest || true", "jest", "jest ", ""),
        ("tape test/*.js | tap-spec", "tape", "tape test/*.js", ""),
        ("run-s lint types test:*", "npm", "s=0\njest ", "npm run lint; npm run types"),
        ("A='1 2' npm run test:unit -- --ci", "jest", "A='1 2' jest --coverage --ci ", ""),
        ("nyc --all npm run test:node", "node", "nyc --all node ", ""),
        ("npm run style && npm run cov && ava", "ava", "npm run cov\nava ", "npm run style"),
        ("eslint . && node test.js", "npm", "node test.js", "eslint ."),
        # What starts no known runner runs as it stands.
        *((line, "npm", None, "") for line in ("node test.js --test", "npm test --workspaces", "npm run absent")),
        *((line, "npm", None, "") for line in ("npm run a", "serve & jest", "$(npm bin)/jest", "(cd a; jest)", "xo")),
    ],
)  # fmt: skip
async def test_a_script_is_read_as_far_as_its_runner(
    tmp_path: Path, line: str, framework: str, before: str | None, left_out: str
) -> None:
    write_files(tmp_path, {"package.json": json.dumps({"scripts": {**SCRIPTS, "main": line}})})
    read = await plan(tmp_path, ("npm", "run", "main"))
    assert read.framework == framework
    assert read.notes == ((ONE_RULE.format(left_out),) if left_out else ())
    if before is None:
        assert read.argv == ("npm", "run", "main")
    else:
        assert script_of(read).startswith(before)


async def test_what_a_script_of_npm_is_told(tmp_path: Path) -> None:
    write_files(tmp_path, package('echo "Error: no test specified" && exit 1'))
    with pytest.raises(ToolFailure, match="no test script"):
        await plan(tmp_path, NPM)
    # Tests that a script names are replaced by the selection.
    write_files(tmp_path, package("mocha -r ts-node 'test/**/all.js'") | {"test/one.js": "", "test/a.js": ""})
    one = await plan(tmp_path, NPM, "test/one.js")
    assert "all.js" not in script_of(one)
    assert one.typed == ("npm", "test", "--", "--recursive", "test/one.js")
    assert "'test/**/all.js'" in script_of(await plan(tmp_path, NPM))
    # Only where tap prints its own protocol do tests that pass have names.
    for reporter in ("-R min", "-Rdot", "--reporter=terse", "--reporter spec"):
        write_files(tmp_path, package(f"tap {reporter} test && npm run lint"))
        assert "tap -R tap test" in script_of(await plan(tmp_path, NPM)), reporter
    write_files(tmp_path, package("tap test"))
    chosen = await plan(tmp_path, NPM, "test/a.js", "test/one.js")
    assert script_of(chosen).endswith("tap test/a.js test/one.js")
    with pytest.raises(ToolFailure, match="no paths or keyword"):
        await plan(tmp_path, NPM, keyword="one")


@pytest.mark.parametrize(
    ("runner", "one", "without"),
    [
        ("jest", "--testNamePattern=^(?:g inner \\(x\\))$", "--testNamePattern=^(?!(?:g slow)$)"),
        ("vitest run", "--testNamePattern=^(?:g inner \\(x\\))$", "--testNamePattern=^(?!(?:g slow)$)"),
        ("mocha", "--grep=^(?:g inner \\(x\\))$", ""),
        ("node --test", "", None),
    ],
)
async def test_ids_select_and_leave_out_tests(tmp_path: Path, runner: str, one: str, without: str | None) -> None:
    write_files(tmp_path, package(runner) | {"a.test.js": ""})
    chosen = (await plan(tmp_path, NPM, "a.test.js::g > inner (x)")).typed
    assert "a.test.js" in chosen
    assert not one or one in chosen
    if without is None:
        with pytest.raises(ToolFailure, match="cannot leave out"):
            await plan(tmp_path, NPM, deselect=("a.test.js::g > slow",))
        return
    left = await plan(tmp_path, NPM, deselect=("a.test.js::g > slow",))
    assert not without or without in left.typed
    assert "g > slow" in left.variables["FLEET_TEST_OPTIONS"]


@pytest.mark.parametrize(
    ("line", "told", "directory", "before"),
    [
        ("pytest -q", "pytest -q", ".", ""), ("cd web && npm test", "npm test", "web", ""),
        ("cd a && cd ../b && A=1 python -m pytest -q", "A=1 python -m pytest -q", "b", ""),
        ("pip install -e . && uv run pytest", "uv run pytest", ".", "pip install -e ."),
        ("npx jest --ci", "npx jest --ci", ".", ""), ("go test ./...", "go test ./...", ".", ""),
    ],
)  # fmt: skip
async def test_callers_lines_that_start_a_runner(
    tmp_path: Path, line: str, told: str, directory: str, before: str
) -> None:
    write_files(
        tmp_path, {**package("jest"), "go.mod": "module m\n", "web/package.json": package("jest")["package.json"]}
    )
    read = await plan(tmp_path, line)
    assert read.framework
    assert (" ".join(read.typed).removesuffix(" ./..."), read.cwd) == (told.removesuffix(" ./..."), directory)
    assert read.before[2:3] == ((f'{before} && exec "$@"',) if before else ())


@table(
    "line",
    [
        *("", "true", "make -C x", "pytest | tee log", "pytest; true", "pytest || true", "pytest tests/*.py"),
        *("pytest $ARGS", "cd .. && pytest", "cd /tmp && pytest", "echo `pytest`", "sh -c 'pytest'", "echo 'pytest"),
    ],
)
async def test_callers_lines_that_are_judged_by_their_end(tmp_path: Path, line: str) -> None:
    read = await plan(tmp_path, line)
    assert (read.framework, read.argv, bool(read.unknown)) == ("", ("sh", "-c", line), True)
    with pytest.raises(ToolFailure, match="takes no selection"):
        await plan(tmp_path, line, "tests")


async def test_names_that_look_like_options_stay_names(tmp_path: Path) -> None:
    files = {"--config=evil": "", "-x/a.js": "", "-p/a_test.go": "", "go.mod": "", "Cargo.toml": "", "src/-x.rs": ""}
    write_files(tmp_path, files)
    for script in ("jest", "vitest", "mocha", "ava", "node --test"):
        write_files(tmp_path, package(script))
        for path in ("--config=evil", "-x/a.js"):
            words = script_of(await plan(tmp_path, NPM, f"./{path}")).split()
            assert path not in words
            assert f"./{path}" in words
    write_files(tmp_path, package("jest"))
    quoted = script_of(await plan(tmp_path, NPM, keyword="$(touch pwned) wr;ong"))
    assert "'$(touch pwned) wr;ong'" in quoted.replace("--testNamePattern=", "")
    assert (await plan(tmp_path, ("go", "test", "./..."), "./-p/a_test.go")).argv[-1] == "./-p"
    with pytest.raises(ToolFailure, match="not a Rust module"):
        await plan(tmp_path, ("cargo", "test"), "src/-x.rs")


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
