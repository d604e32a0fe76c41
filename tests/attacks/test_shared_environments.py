"""Code of one repository's build, aimed at the environment in which other repositories and candidates are tested."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, keys
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.environments import RepositoryFiles, commands, python_recipe
from swe_ai_fleet.environments.project_code import project_code
from swe_ai_fleet.environments.recipe import Recipe
from swe_ai_fleet.environments.requirements import is_plain
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


async def _pin(provider: GitWorkspaceProvider, root: Path, backend: str, project: str = PYPROJECT) -> PinnedRepository:
    return await pin(
        provider, root.parent, {"pyproject.toml": project, "backend.py": backend, "src/a.py": ""}, root.name
    )


async def _pytest(provider: GitWorkspaceProvider, repository: PinnedRepository, environment: Environment) -> str:
    async with provider.open("e", "a", repository, environment) as clone:
        return await sh(clone, "python3 -m pytest --version")


def _adding(name: str, text: str, after: int = 0) -> bytes:
    """A patch that adds lines behind so many of a file, or a file."""
    added = "".join(f"+{line}\n" for line in text.splitlines())
    old, mode = (f"a/{name}", "") if after else ("/dev/null", "new file mode 100644\n")
    hunk = f"@@ -{after},0 +{after + 1 if after else 1},{added.count(chr(10))} @@\n{added}"
    return f"diff --git a/{name} b/{name}\n{mode}--- {old}\n+++ b/{name}\n{hunk}".encode()


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
        candidate = await provider.patched("e", honest, _adding("backend.py", HOSTILE, BACKEND.count("\n")))
        # Nor a candidate's, even where nobody has built the untouched commit's before.
        tested = await provider.environment(candidate, EnvironmentSpec())
        assert EVIL not in await _pytest(provider, candidate, tested)
        environment = await provider.environment(honest, EnvironmentSpec())
        assert environment.key == tested.key
        # The package was had once; what was made of it has nothing of the fork's.
        assert [path for path in index.asked[len(asked) :] if "thing" in path] == []
        async with provider.open("e", "a", honest, environment) as clone:
            assert await sh(clone, "python3 -c 'import thing; print(thing.answer)'") == "7"
        assert EVIL not in await _pytest(provider, honest, environment)
    purposes = [step.purpose for step in tested.report.steps]
    assert "packages of the index" in purposes
    assert len(built(tmp_path)) == 3


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
CUSTOM: Files = {name: HOSTILE.replace("pytest", "poison") for name in ("sitecustomize.py", "pip.py")}


@pytest.mark.slow  # quick: what comes from an index
@needs_bwrap
async def test_no_build_imports_from_a_directory_of_the_repository(tmp_path: Path) -> None:
    files: Files = {"pyproject.toml": SETUPTOOLS, "src/a.py": "", "tests/test_a.py": ""}
    files["Makefile"] = "test:\n\tPYTHONPATH=. pytest tests\n"
    both = "(cd / && python3 -c 'import poison'); python3 -c ''"
    said = await _said(make_provider(tmp_path), tmp_path, files, CUSTOM, both)
    assert all("No module named 'poison'" in answer for _, answer in said.values())
    # The control: what tests and agents run does import from there.
    assert [name for name, (_, answer) in said.items() if "sitecustomize" in answer] == ["fork"]
    assert set(built(tmp_path)) == {key for key, _ in said.values()}


# With a stand-in for the build backend of that name, which reads a project and puts `src` on the path.
WHEELS = {
    "thing-1.0-py3-none-any.whl": wheel("thing", 7),
    "setuptools-1.0-py3-none-any.whl": wheel(
        "setuptools", 0, **{"setuptools/__init__.py": "", "setuptools/build_meta.py": BACKEND}
    ),
}


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


@pytest.mark.slow  # quick: a lock says which packages run scripts
@needs_bwrap
async def test_what_a_script_of_a_package_makes_of_a_fork_is_its_own(tmp_path: Path) -> None:
    settled, plain = npm_package("settled", "1.0.0", SETTLE), npm_package("plain", "1.0.0")
    with NpmRegistry({"settled-1.0.0.tgz": settled, "plain-1.0.0.tgz": plain}) as registry:
        provider = make_provider(tmp_path, setup=registry.setup)
        said = await _said(provider, tmp_path, NODE, SETTINGS, "node -p 'require(`plain`)'")
    assert [answer for _, answer in said.values()] == [EVIL, "1.0.0"]


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


@pytest.mark.slow  # quick: integration/test_environments.py
@needs_bwrap
async def test_what_an_editable_installation_puts_on_the_path_is_in_nobodys_environment(tmp_path: Path) -> None:
    files: Files = {"pyproject.toml": SETUPTOOLS, "requirements.txt": "thing", "src/a.py": "", "tests/test_a.py": ""}
    custom: Files = {"src/sitecustomize.py": CUSTOM["sitecustomize.py"]}
    with Index(WHEELS) as index:
        provider = make_provider(tmp_path, setup=index.setup)
        said = await _said(provider, tmp_path, files, custom, "python3 -c 'import a, thing, poison'")
    # The control: from there on Python imports it at its start. The project comes last, behind all that is shared.
    assert "sitecustomize" in said["fork"][1]
    assert "No module named 'poison'" in said["fork"][1] and "No module named 'poison'" in said["honest"][1]
    assert said["fork"][0] == said["honest"][0]


def _vendored(answer: int) -> Files:
    """A repository that has a package's next version beside its constraints."""
    return {
        "requirements.txt": "-c requirements/constraints.txt\nthing\n",
        "requirements/constraints.txt": "--find-links hidden\n",
        "hidden/thing-1.1-py3-none-any.whl": wheel("thing", answer, "1.1"),
    }


@pytest.mark.slow  # quick: what comes from an index
@needs_bwrap
@pytest.mark.parametrize("how", ["not known by name", "known by name", "control"])
async def test_no_variable_of_a_repository_decides_where_shared_packages_come_from(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_variables(recipe: Recipe) -> Recipe:
        steps = tuple(step for step in recipe.steps if step.third_party)
        return replace(recipe, steps=(*steps, *((recipe.packages,) if recipe.packages else ())))

    if how != "known by name":
        # As any other would be that nobody has thought of.
        monkeypatch.setattr(commands, "_PLACES", re.compile("PIP_.*"))
    if how == "control":
        monkeypatch.setattr(Recipe, "third_party", property(with_variables))
    assert (await _answers(tmp_path, HIDDEN))[1] == ("666" if how == "control" else "7")


@pytest.mark.slow  # quick: test_no_build_imports_from_a_directory_of_the_repository
@needs_bwrap
async def test_the_pip_that_is_started_is_no_file_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a Python that is older than our pip asks for: then the virtual environment's own pip is brought up to date.
    monkeypatch.setattr(keys, "_pip", lambda: (">=4", "0"))
    provider = make_provider(tmp_path)
    pinned = await pin(provider, tmp_path, {"a.py": "", "pip.py": HOSTILE.replace("pytest", "poison") + "print(site)"})
    environment = await provider.environment(pinned, EnvironmentSpec())
    steps = [step.purpose for step in environment.report.steps]
    assert any(purpose.startswith("the newest pip") for purpose in steps), steps
    async with provider.open("e", "a", pinned, environment) as clone:
        assert "No module named 'poison'" in await sh(clone, "python3 -c 'import poison'")
        # The control: Python puts the directory that it is started in before everything else.
        assert "poison.py" in await sh(clone, "python3 -m pip")


@needs_bwrap
@pytest.mark.slow  # quick: a variable that leads there, above, and what is not plain, below
@pytest.mark.parametrize("control", [False, True])
async def test_what_constraints_lead_to_in_a_repository_is_shared_with_nobody(
    control: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if control:
        monkeypatch.setattr(python_recipe, "is_plain", bool)
    assert (await _answers(tmp_path, _vendored(666), _vendored(7)))[1] == ("666" if control else "7")
