"""Repositories that nobody prepared: what is missing is left out and told, what a build makes is there, nothing of the
machine is seen."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, SetupPolicy
from swe_ai_fleet.adapters.git_workspace.setup_network import try_setup_network
from swe_ai_fleet.cli.doctor import examine
from swe_ai_fleet.domain.environment import Environment, StepOutcome
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef
from swe_ai_fleet.sandbox import NetworkGrant, Sandbox, SandboxPolicy
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.environments import BACKEND, PYPROJECT, REQUIREMENTS, UNITTEST, make_provider, pin, run_tests, sh

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

# Refused before anything is connected to.
MIRROR = SetupPolicy(
    network=NetworkGrant(hosts=("*",), private_hosts=("mirror.internal",)),
    variables={"PIP_INDEX_URL": "https://10.20.30.40/simple", "npm_config_registry": "https://10.20.30.40/"},
)
OPENS = "FLEET_SETUP_PRIVATE_HOSTS=mirror.internal,10.20.30.40"
VERSIONED = BACKEND.replace(
    "    return name",
    "    import subprocess\n"
    "    tag = subprocess.run(['git', 'describe', '--tags'], capture_output=True, text=True).stdout.strip()\n"
    "    open('src/_version.py', 'w').write(f'version = {tag!r}\\n')\n"
    "    return name",
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture
def provider(tmp_path: Path, tools: Path) -> GitWorkspaceProvider:
    return make_provider(tmp_path, tools)


class TestWhatIsMissing:
    """One thing that cannot be had does not cost the rest."""

    async def test_a_dependency_for_development(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        project = PYPROJECT + '[dependency-groups]\ntest = ["nowhere>=3", "thing @ file:///workspace/thing.whl"]\n'
        files: dict[str, str | bytes] = {
            "pyproject.toml": project.replace("thing.whl", "wheels/thing-1.0-py3-none-any.whl"),
            "backend.py": BACKEND,
            "src/project.py": "import thing\nanswer = thing.answer\n",
            "tests/test_project.py": UNITTEST.format(module="project", answer=7),
            "wheels/thing-1.0-py3-none-any.whl": REQUIREMENTS["wheels/thing-1.0-py3-none-any.whl"],
        }
        pinned = await pin(provider, tmp_path, files)
        environment = await provider.environment(pinned, EnvironmentSpec())
        async with provider.open("e1", "a", pinned, environment) as clone:
            assert "OK" in (await run_tests(clone)).stdout.text()
        (left_out,) = environment.report.left_out
        assert left_out == "nowhere>=3: ERROR: No matching distribution found for nowhere>=3"
        missing = [step for step in environment.report.steps if step.outcome is StepOutcome.LEFT_OUT]
        assert [(step.purpose, step.source) for step in missing] == [("nowhere>=3", "pyproject.toml")]

    @pytest.mark.skipif(shutil.which("npm", path="/usr/bin:/bin") is None, reason="npm is not installed")
    async def test_a_package_of_node(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        package = {
            "dependencies": {"ok": "file:./ok"},
            "devDependencies": {"gone": "https://gone.example/gone-1.0.0.tgz"},
            "scripts": {"test": "node --test"},
        }
        files: dict[str, str | bytes] = {
            "package.json": json.dumps(package),
            "ok/package.json": '{"name": "ok", "version": "1.0.0"}',
            "ok/index.js": "module.exports = 7;\n",
            "a.test.js": "require('node:assert').equal(require('ok'), 7);\n",
        }
        pinned = await pin(provider, tmp_path, files)
        environment = await provider.environment(pinned, EnvironmentSpec())
        assert [text.partition(":")[0] for text in environment.report.left_out] == ["gone https"]
        async with provider.open("e1", "a", pinned, environment) as clone:
            tested = await run_tests(clone)
            assert tested.ok, tested.stdout.text()
            # Packages are read-only, caches beside them are each clone's own.
            assert (
                await sh(clone, "mkdir -p node_modules/.cache/x node_modules/.vite && touch node_modules/.vite/y") == ""
            )
            assert (await clone.diff()).files == ()
        async with provider.open("e1", "b", pinned, environment) as clone:
            assert await sh(clone, "ls node_modules/.cache node_modules/.vite 2>&1 | wc -l") == "2"


class TestWhatABuildMakes:
    async def test_a_version_from_tags_and_its_ignored_file(
        self, provider: GitWorkspaceProvider, tmp_path: Path
    ) -> None:
        files: dict[str, str | bytes] = {
            "pyproject.toml": PYPROJECT,
            "backend.py": VERSIONED,
            ".gitignore": "_version.py\n",
            "src/project.py": "from _version import version as answer\n",
            "tests/test_project.py": UNITTEST.format(module="project", answer="'v1.2'"),
        }
        repo = make_repository(tmp_path / "repo", files)
        git(repo, "tag", "v1.2")
        pinned = await provider.pin("default", RepoRef(location=str(repo)))
        environment = await provider.environment(pinned, EnvironmentSpec())
        async with provider.open("e1", "a", pinned, environment) as clone:
            tested = await run_tests(clone)
            assert "OK" in tested.stdout.text(), tested.stdout.text()
            assert (await clone.diff()).files == ()
            # A clone may write it anew.
            assert await sh(clone, "echo 'version = 2' > src/_version.py && git status --porcelain") == ""

    async def test_a_commit_with_a_patch_has_the_tags_submodules_and_date_of_its_base(
        self, provider: GitWorkspaceProvider, tmp_path: Path
    ) -> None:
        library = make_repository(tmp_path / "library", {"data.txt": "7\n"})
        repo = make_repository(tmp_path / "repo", {"pyproject.toml": PYPROJECT, "backend.py": VERSIONED})
        git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
        git(repo, "commit", "--quiet", "--message", "A submodule")
        git(repo, "tag", "v1.2")
        pinned = await provider.pin("default", RepoRef(location=str(repo)))
        git(repo, "rm", "--quiet", "backend.py")
        made = await provider.patched("e1", pinned, f"{git(repo, 'diff', '--cached')}\n".encode())
        async with provider.open("e1", "a", made, Environment()) as clone:
            assert (await sh(clone, "git describe --tags")).startswith("v1.2-1-g")
            assert await sh(clone, "cat lib/data.txt") == "7"
            # What releases its environment is made of depends on it.
            assert await sh(clone, "git log -1 --format=%ct") == git(repo, "log", "-1", "--format=%ct").strip()

    async def test_commands_of_a_caller_add_to_what_was_detected(
        self, provider: GitWorkspaceProvider, tmp_path: Path
    ) -> None:
        pinned = await pin(provider, tmp_path, REQUIREMENTS)
        make = "mkdir -p bin && printf '#!/bin/sh\\necho made\\n' > bin/tool && chmod +x bin/tool"
        spec = EnvironmentSpec(setup=("python3 -c 'import thing'", make), path=("bin",))
        environment = await provider.environment(pinned, spec)
        async with provider.open("e1", "a", pinned, environment) as clone:
            assert "OK" in (await run_tests(clone)).stdout.text()
            # What they leave in the checkout is there, and in no diff.
            assert await sh(clone, "tool") == "made"
            assert (await clone.diff()).files == ()

    async def test_releases_until_the_commit_where_an_index_says_when(
        self, provider: GitWorkspaceProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-12-24T00:00:00Z")
        repo = make_repository(tmp_path / "repo", REQUIREMENTS | {"requirements-dev.txt": "attrs\n"})
        pinned = await provider.pin("default", RepoRef(location=str(repo)))
        report = (await provider.environment(pinned, EnvironmentSpec())).report
        (dated,) = [step for step in report.steps if step.purpose == "releases until 2021-01-01"]
        # There is no index here: what can be had is installed all the same.
        assert dated.outcome is StepOutcome.REPLACED
        assert not any("until" in text for text in report.left_out)
        assert any("releases until 2021-01-01" in decision.what for decision in report.decisions)


async def test_a_directory_on_path_that_is_not_there_is_named(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    pinned = await pin(provider, tmp_path, {"tools/x": "", "a.py": ""})
    for entry in ("tols", "/environment/tols", "/usr/nowhere"):
        environment = await provider.environment(pinned, EnvironmentSpec(path=("tools", entry, "/usr/bin")))
        assert [note for note in environment.notes if "PATH" in note] == [f"On PATH, but not there: {entry}."]


class TestNothingOfTheMachine:
    async def test_a_package_and_programs_of_the_host_are_not_seen(
        self, tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = f"fleet_decoy_{uuid4().hex[:8]}"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        places = [Path(sys.base_prefix, "lib", version, "site-packages"), Path(sys.base_prefix, "bin")]
        if not all(os.access(place, os.W_OK) for place in places):
            pytest.skip("needs to write to the interpreter's own installation")
        package, program, shadow = places[0] / f"{name}.py", places[1] / name, tmp_path / "bin"
        shadow.mkdir()
        try:
            package.write_text("")
            for decoy in (program, shadow / "pytest", shadow / "pip"):
                decoy.write_text(f"#!{sys.executable}\nprint('decoy')\n")
                decoy.chmod(0o755)
            monkeypatch.setenv("PATH", f"{shadow}:{os.environ['PATH']}")
            monkeypatch.setenv("PYTHONPATH", str(places[0]))
            provider = make_provider(tmp_path, tools)
            for number, files in enumerate(({"test_a.py": "def test_a():\n    pass\n"}, {"README": ""}, REQUIREMENTS)):
                repo = make_repository(tmp_path / str(number), files)
                pinned = await provider.pin("default", RepoRef(location=str(repo)))
                environment = await provider.environment(pinned, EnvironmentSpec())
                async with provider.open("e1", f"a{number}", pinned, environment) as clone:
                    assert "No module named" in await sh(clone, f"python3 -c 'import {name}'")
                    assert "not found" in await sh(clone, name)
                    assert "decoy" not in await sh(
                        clone, "pytest --version; pip --version; python3 -m pytest --version"
                    )
        finally:
            package.unlink(missing_ok=True)
            program.unlink(missing_ok=True)


class TestAMirrorAtAPrivateAddress:
    async def test_the_failure_names_the_setting(self, tmp_path: Path, tools: Path) -> None:
        provider = make_provider(tmp_path, tools, MIRROR)
        pinned = await pin(provider, tmp_path, {"requirements.txt": "attrs\n", "a.py": ""})
        by_command = EnvironmentSpec(setup=("pip install attrs",), detect=False)
        for spec, field in ((EnvironmentSpec(), "environment"), (by_command, "environment.setup[0]")):
            with pytest.raises(PreconditionFailed) as caught:
                await provider.environment(pinned, spec)
            assert caught.value.field == field
            assert OPENS in str(caught.value)
            if field == "environment":
                assert "10.20.30.40 is not at a public address" in caught.value.message
                assert "requirements.txt" in caught.value.message

    async def test_it_is_found_before_a_build_needs_it(self, tmp_path: Path) -> None:
        attempts = await try_setup_network(tmp_path, Sandbox(SandboxPolicy()), MIRROR)
        found = {attempt.program: attempt for attempt in attempts if "not on this machine" not in attempt.message}
        assert "pip" in found
        assert not any(attempt.ok for attempt in found.values())
        assert all(OPENS in attempt.way_out for attempt in found.values()), found
        # A port of its own is named with it.
        variables = {name: value.replace("40", "40:8081") for name, value in MIRROR.variables.items()}
        policy = SetupPolicy(network=NetworkGrant(hosts=("*",)), variables=variables)
        (pip, *_) = await try_setup_network(tmp_path, Sandbox(SandboxPolicy()), policy)
        assert pip.way_out.startswith("set FLEET_SETUP_PRIVATE_HOSTS=10.20.30.40:8081 for")

    async def test_doctor_proposes_the_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in MIRROR.variables.items():
            monkeypatch.setenv(name, value)
        settings = Settings(
            home=tmp_path, setup_private_hosts="mirror.internal", setup_variables=",".join(MIRROR.variables)
        )
        (pip,) = [found for found in await examine(settings) if found.part == "set-up network: pip"]
        assert OPENS in pip.mend
        assert "10.20.30.40 is not at a public address" in pip.cause
