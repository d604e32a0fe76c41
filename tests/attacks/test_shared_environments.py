"""Code of one repository's build, aimed at the environment in which other repositories and candidates are tested."""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, keys, machine
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.environments import commands, python_recipe
from swe_ai_fleet.environments.project_code import project_code
from swe_ai_fleet.environments.recipe import Recipe
from swe_ai_fleet.environments.repository_files import RepositoryFiles
from swe_ai_fleet.environments.requirement_files import is_plain
from tests.confinement import needs_bwrap
from tests.environments import BACKEND, PYPROJECT, Index, NpmRegistry, built, make_provider, npm_package, pin, sh, wheel

EVIL = "999 passed"
# A pytest of the repository's own making, put where every clone will find it.
HOSTILE = f"""
import glob
for site in glob.glob("/environment/venv/lib/python3*/site-packages"):
    with open(site + "/pytest.py", "w") as module:
        module.write("print({EVIL!r})")
"""


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return make_provider(tmp_path)


async def _pin(provider: GitWorkspaceProvider, root: Path, backend: str, project: str = PYPROJECT) -> PinnedRepository:
    return await pin(
        provider, root.parent, {"pyproject.toml": project, "backend.py": backend, "src/a.py": ""}, root.name
    )


async def _pytest(provider: GitWorkspaceProvider, repository: PinnedRepository, environment: Environment) -> str:
    async with provider.open("e", "a", repository, environment) as clone:
        return await sh(clone, "python3 -m pytest --version")


async def _forked(provider: GitWorkspaceProvider, root: Path) -> tuple[Environment, Environment, PinnedRepository]:
    """The environments of a hostile fork and, made after it, of the repository that it was forked from."""
    fork = await _pin(provider, root / "fork", BACKEND + HOSTILE)
    honest = await _pin(provider, root / "honest", BACKEND)
    spec = EnvironmentSpec()
    return await provider.environment(fork, spec), await provider.environment(honest, spec), honest


@needs_bwrap
async def test_control_by_manifests_alone_a_fork_makes_the_environment_of_others(
    provider: GitWorkspaceProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs_nothing(files: RepositoryFiles, directory: str) -> str:
        return ""

    monkeypatch.setattr(keys, "project_code", runs_nothing)
    theirs, ours, honest = await _forked(provider, tmp_path)
    assert theirs.key == ours.key
    assert EVIL in await _pytest(provider, honest, ours)


@needs_bwrap
async def test_a_fork_makes_no_environment_but_its_own(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    theirs, ours, honest = await _forked(provider, tmp_path)
    assert theirs.key != ours.key
    assert EVIL not in await _pytest(provider, honest, ours)
    reasons = [decision.what for decision in ours.report.decisions]
    assert any("built for this commit, since its own code may run" in what for what in reasons)


@needs_bwrap
async def test_a_candidates_build_is_in_nobodys_environment(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    honest = await _pin(provider, tmp_path / "honest", BACKEND)
    added = "".join(f"+{line}\n" for line in HOSTILE.splitlines())
    lines = BACKEND.count("\n")
    hunk = f"@@ -{lines},0 +{lines + 1},{HOSTILE.count(chr(10))} @@\n{added}"
    patch = f"diff --git a/backend.py b/backend.py\n--- a/backend.py\n+++ b/backend.py\n{hunk}"
    candidate = await provider.patched("e", honest, patch.encode())
    # Even where nobody has built the untouched commit's before.
    tested = await provider.environment(candidate, EnvironmentSpec())
    assert EVIL not in await _pytest(provider, candidate, tested)
    assert (await provider.environment(honest, EnvironmentSpec())).key == tested.key
    assert built(tmp_path) == [tested.key]


@needs_bwrap
async def test_what_comes_from_an_index_is_shared_and_no_build_writes_to_it(tmp_path: Path) -> None:
    needing = PYPROJECT + 'dependencies = ["thing"]\n'
    with Index({"thing-1.0-py3-none-any.whl": wheel("thing", 7)}) as index:
        provider = make_provider(tmp_path, setup=index.setup)
        fork = await _pin(provider, tmp_path / "fork", BACKEND + HOSTILE, needing)
        poisoned = await provider.environment(fork, EnvironmentSpec())
        assert EVIL in await _pytest(provider, fork, poisoned)
        asked = list(index.asked)
        honest = await _pin(provider, tmp_path / "honest", BACKEND, needing)
        environment = await provider.environment(honest, EnvironmentSpec())
        # The package was had once; what was made of it has nothing of the fork's.
        assert [path for path in index.asked[len(asked) :] if "thing" in path] == []
        async with provider.open("e", "a", honest, environment) as clone:
            assert await sh(clone, "python3 -c 'import thing; print(thing.answer)'") == "7"
        assert EVIL not in await _pytest(provider, honest, environment)
    purposes = [step.purpose for step in environment.report.steps]
    assert "packages of the index" in purposes
    assert len(built(tmp_path)) == 3


@needs_bwrap
async def test_the_pip_that_is_started_is_no_file_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a Python that is older than our pip asks for: then the virtual environment's own pip is brought up to date.
    monkeypatch.setattr(machine, "_pip", lambda: (">=4", "0"))
    provider = make_provider(tmp_path)
    pinned = await pin(provider, tmp_path, {"a.py": "", "pip.py": HOSTILE.replace("pytest", "poison") + "print(site)"})
    environment = await provider.environment(pinned, EnvironmentSpec())
    steps = [step.purpose for step in environment.report.steps]
    assert any(purpose.startswith("the newest pip") for purpose in steps), steps
    async with provider.open("e", "a", pinned, environment) as clone:
        assert "No module named 'poison'" in await sh(clone, "python3 -c 'import poison'")
        # The control: Python puts the directory that it is started in before everything else.
        assert "poison.py" in await sh(clone, "python3 -m pip")


Files = dict[str, str | bytes]

# By a variable of its tests pip reads settings of the repository, which say where packages come from.
HIDDEN: Files = {
    "tox.ini": "[testenv]\nsetenv = XDG_CONFIG_HOME=/workspace/settings\ncommands = pytest\n",
    "settings/pip/pip.conf": "[global]\nno-index = true\nfind-links = /workspace/hidden\n",
    "hidden/thing-1.0-py3-none-any.whl": wheel("thing", 666),
}


NONE: Files = {}
Said = dict[str, tuple[str, str]]


async def _said(
    provider: GitWorkspaceProvider, root: Path, files: Files, fork: Files, question: str, *, honest: Files = NONE
) -> Said:
    """A fork's environment and answer to a question, and those of the repository, which is built after it."""
    said: Said = {}
    for name, more in (("fork", fork), ("honest", honest)):
        pinned = await pin(provider, root, {**files, **more}, name)
        environment = await provider.environment(pinned, EnvironmentSpec())
        async with provider.open("e", name, pinned, environment) as clone:
            said[name] = environment.key, await sh(clone, question)
    return said


async def _answers(root: Path, fork: Files, honest: Files = NONE) -> list[str]:
    """What a package of the index says in a fork that hides another one, and in the repository."""
    project = PYPROJECT + 'dependencies = ["thing"]\n'
    files = {"pyproject.toml": project, "backend.py": BACKEND, "src/a.py": "", "tests/test_a.py": "def test_a(): ...\n"}
    with Index({"thing-1.0-py3-none-any.whl": wheel("thing", 7)}) as index:
        provider = make_provider(root, setup=index.setup)
        question = "python3 -c 'import thing; print(thing.answer)'"
        return [answer for _, answer in (await _said(provider, root, files, fork, question, honest=honest)).values()]


@needs_bwrap
async def test_control_with_a_repositorys_variables_everybody_gets_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_variables(recipe: Recipe) -> Recipe:
        steps = tuple(step for step in recipe.steps if step.third_party)
        return replace(recipe, steps=(*steps, *((recipe.packages,) if recipe.packages else ())))

    monkeypatch.setattr(commands, "_PLACES", re.compile("PIP_.*"))
    monkeypatch.setattr(Recipe, "third_party", property(with_variables))
    assert await _answers(tmp_path, HIDDEN) == ["666", "666"]


@needs_bwrap
@pytest.mark.parametrize("named", [True, False], ids=["known by name", "not known by name"])
async def test_no_variable_of_a_repository_decides_where_shared_packages_come_from(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not named:
        # As any other would be that nobody has thought of.
        monkeypatch.setattr(commands, "_PLACES", re.compile("PIP_.*"))
    assert (await _answers(tmp_path, HIDDEN))[1] == "7"


def _vendored(answer: int) -> Files:
    """A repository that has a package's next version beside its constraints."""
    return {
        "requirements.txt": "-c requirements/constraints.txt\nthing\n",
        "requirements/constraints.txt": "--find-links hidden\n",
        "hidden/thing-1.1-py3-none-any.whl": wheel("thing", answer, "1.1"),
    }


@needs_bwrap
async def test_control_what_constraints_lead_to_is_had_from_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_recipe, "is_plain", bool)
    assert await _answers(tmp_path, _vendored(666), _vendored(7)) == ["666", "666"]


@needs_bwrap
async def test_what_constraints_lead_to_in_a_repository_is_shared_with_nobody(tmp_path: Path) -> None:
    assert (await _answers(tmp_path, _vendored(666), _vendored(7)))[1] == "7"


def test_a_list_that_leads_to_other_files_is_not_plain() -> None:
    plain = 'a==1  # the first\nb[x]>=2; python_version > "3"\n\nc==1 --hash=sha256:aa \\\n  --hash=sha256:bb\nd.e==1\n'
    assert is_plain(plain)
    leading = [
        "-c x.txt", "--find-links x", "a @ file:///x", "./x", "x/y", "a.zip", "a.zip[x]",
        "a-1.tar.gz ; os_name == 'x'",
    ]  # fmt: skip
    assert [line for line in leading if is_plain(f"{plain}{line}\n")] == []


# A module that Python imports before everything else, from any directory of PYTHONPATH.
SETUPTOOLS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "project"
version = "1.0"
"""
CUSTOM: Files = {"sitecustomize.py": HOSTILE.replace("pytest", "poison")}


@needs_bwrap
@pytest.mark.parametrize("by", ["Makefile", "caller"])
async def test_no_build_imports_from_a_directory_of_the_repository(by: str, tmp_path: Path) -> None:
    files: Files = {"pyproject.toml": SETUPTOOLS, "src/a.py": "", "tests/test_a.py": ""}
    if by == "Makefile":
        files["Makefile"] = "test:\n\tPYTHONPATH=. pytest tests\n"
    spec = EnvironmentSpec(variables={"PYTHONPATH": "."} if by == "caller" else {})
    provider = make_provider(tmp_path)
    keys: set[str] = set()
    for name, more in (("fork", CUSTOM), ("honest", {})):
        (tmp_path / name).mkdir()
        pinned = await pin(provider, tmp_path / name, {**files, **more})
        environment = await provider.environment(pinned, spec)
        keys.add(environment.key)
        async with provider.open("e", name, pinned, environment) as clone:
            assert "No module named 'poison'" in await sh(clone, "cd / && python3 -c 'import poison'")
            # The control: what tests and agents run does import from there.
            assert ("sitecustomize" in await sh(clone, "python3 -c ''")) is (name == "fork")
    assert set(built(tmp_path)) == keys


def _setuptools() -> bytes:
    """A stand-in for the build backend of that name, which reads a project and puts `src` on the path."""
    about = "setuptools-1.0.dist-info"
    files = {
        "setuptools/__init__.py": "",
        "setuptools/build_meta.py": BACKEND,
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: setuptools\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return buffer.getvalue()


@needs_bwrap
@pytest.mark.parametrize(
    ("needed", "shared"),
    [("thing", True), ("thing\nabsent", False)],
    ids=["the project comes last", "packages come one by one behind it"],
)
async def test_what_an_editable_installation_puts_on_the_path_is_in_nobodys_environment(
    needed: str, shared: bool, tmp_path: Path
) -> None:
    files: Files = {"pyproject.toml": SETUPTOOLS, "requirements.txt": needed, "src/a.py": "", "tests/test_a.py": ""}
    wheels = {"thing-1.0-py3-none-any.whl": wheel("thing", 7), "setuptools-1.0-py3-none-any.whl": _setuptools()}
    custom: Files = {"src/sitecustomize.py": CUSTOM["sitecustomize.py"]}
    with Index(wheels) as index:
        provider = make_provider(tmp_path, setup=index.setup)
        said = await _said(provider, tmp_path, files, custom, "python3 -c 'import a, thing, poison'")
    # The control: from there on Python imports it at its start, and a build that goes on is the fork's alone.
    assert "sitecustomize" in said["fork"][1]
    assert ("No module named 'poison'" in said["fork"][1]) is shared
    assert "No module named 'poison'" in said["honest"][1]
    assert (said["fork"][0] == said["honest"][0]) is shared


@needs_bwrap
async def test_a_candidate_is_not_tested_in_what_its_own_modules_made(tmp_path: Path) -> None:
    """Also where the build went on behind the project: the environment is that of the commit that it stands on."""
    files: Files = {"pyproject.toml": SETUPTOOLS, "requirements.txt": "thing\nabsent", "src/a.py": ""}
    wheels = {"thing-1.0-py3-none-any.whl": wheel("thing", 7), "setuptools-1.0-py3-none-any.whl": _setuptools()}
    hostile = str(CUSTOM["sitecustomize.py"]).lstrip()
    added = "".join(f"+{line}\n" for line in hostile.splitlines())
    hunk = f"--- /dev/null\n+++ b/src/sitecustomize.py\n@@ -0,0 +1,{added.count(chr(10))} @@\n{added}"
    patch = f"diff --git a/src/sitecustomize.py b/src/sitecustomize.py\nnew file mode 100644\n{hunk}"
    with Index(wheels) as index:
        provider = make_provider(tmp_path, setup=index.setup)
        honest = await pin(provider, tmp_path, files)
        candidate = await provider.patched("e", honest, patch.encode())
        # Even where nobody has built the untouched commit's before.
        tested = await provider.environment(candidate, EnvironmentSpec())
        async with provider.open("e", "a", candidate, tested) as clone:
            told = await sh(clone, "python3 -c 'import a, thing, poison'")
        assert "sitecustomize" in told
        assert "No module named 'poison'" in told
        assert (await provider.environment(honest, EnvironmentSpec())).key == tested.key


# A package's own script that takes settings from the project, as those of browsers' drivers and of hooks do.
SETTLE = """node -e "try { require(process.env.INIT_CWD + '/settled.cjs') } catch {}" """
SETTINGS: Files = {
    "settled.cjs": f"""
const place = process.env.INIT_CWD + "/node_modules/plain/index.js";
require("fs").writeFileSync(place, "module.exports = '{EVIL}'");
"""
}
NODE: Files = {
    "package.json": json.dumps(
        {"name": "project", "version": "1.0.0", "dependencies": {"settled": "1.0.0", "plain": "1.0.0"}}
    )
}


async def _node_answers(root: Path) -> list[str]:
    packages = {
        "settled-1.0.0.tgz": npm_package("settled", "1.0.0", SETTLE),
        "plain-1.0.0.tgz": npm_package("plain", "1.0.0"),
    }
    with NpmRegistry(packages) as registry:
        provider = make_provider(root, setup=registry.setup)
        said = await _said(provider, root, NODE, SETTINGS, "node -p 'require(`plain`)'")
    return [answer for _, answer in said.values()]


@needs_bwrap
async def test_control_a_script_of_a_package_reads_the_settings_of_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "project_code", lambda files, directory: "")
    assert await _node_answers(tmp_path) == [EVIL, EVIL]


@needs_bwrap
async def test_what_a_script_of_a_package_makes_of_a_fork_is_its_own(tmp_path: Path) -> None:
    assert await _node_answers(tmp_path) == [EVIL, "1.0.0"]


def test_a_lock_says_which_packages_run_scripts() -> None:
    def lock(place: str, **entry: object) -> dict[str, object]:
        return {"package-lock.json": {"node_modules/a": {}, place: {"hasInstallScript": True, **entry}}}

    cases: tuple[tuple[dict[str, object], str], ...] = (
        (lock("node_modules/a/node_modules/esbuild"), ""),
        (lock("node_modules/@x/driver"), "@x/driver runs a script"),
        (lock("node_modules/esbuild", name="b"), "b runs a script"),
        ({"package-lock.json": {}}, "does not say"),
        ({"yarn.lock": {}}, "yarn.lock does not say"),
        ({}, "package.json does not say"),
    )
    for locks, reason in cases:
        texts = {"package.json": str(NODE["package.json"])} | {
            name: json.dumps({"lockfileVersion": 3, "packages": entries}) for name, entries in locks.items()
        }
        said = project_code(RepositoryFiles(files=dict.fromkeys(texts, ""), texts=texts))
        assert reason in said and bool(reason) is bool(said), locks
