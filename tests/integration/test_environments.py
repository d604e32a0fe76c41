"""Environments, of prepared repositories and of others: built in the real sandbox, without a network by default."""

from __future__ import annotations

import asyncio
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
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment, StepOutcome
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef
from swe_ai_fleet.domain.verdict import Verdict
from swe_ai_fleet.sandbox import NetworkGrant, Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from tests.confinement import until
from tests.environments import (
    BACKEND,
    PYPROJECT,
    REQUIREMENTS,
    UNITTEST,
    Index,
    built,
    make_provider,
    opened,
    pin,
    provider_at,
    run_tests,
    sh,
    wheel,
)
from tests.evidence import World, named


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy of pytest, ruff and pip for all homes of this module: each would take a second."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture
def provider(tmp_path: Path, tools: Path) -> GitWorkspaceProvider:
    return make_provider(tmp_path, tools)


async def test_pytest_and_ruff_are_ours_and_variables_and_path_a_callers(
    provider: GitWorkspaceProvider, tmp_path: Path
) -> None:
    files = {
        "a.py": "import os\n", "test_a.py": "import a\n\ndef test_a():\n    assert a.os\n",
        "bin/tool": "#!/bin/sh\necho mine $COLOUR\n", "lib/own.py": "x = 1\n",
    }  # fmt: skip
    pinned = await pin(provider, tmp_path, files)
    environment = await provider.environment(pinned, EnvironmentSpec())
    assert environment.test_command == ("python3", "-m", "pytest", "-q")
    assert built(tmp_path) == [environment.key]
    async with provider.open("e1", "a", pinned, environment) as clone:
        tested = await run_tests(clone)
        assert "1 passed" in tested.stdout.text(), tested.stdout.text()
        linted = await clone.run(Command(argv=("ruff", "check", "--output-format=json", "a.py")))
        assert [item["code"] for item in json.loads(linted.stdout.text())] == ["F401"]
        assert (await clone.diff()).files == ()
        refused = await sh(clone, "touch /fleet/tools/x /fleet/tools/python/pytest/x")
        assert refused.count("Read-only") == 2
    spec = EnvironmentSpec(variables={"COLOUR": "blue", "PYTHONPATH": "/workspace/lib"}, path=("./bin", "/usr/libexec"))
    async with provider.open("e1", "a", pinned, await provider.environment(pinned, spec)) as clone:
        said = await sh(clone, "chmod +x bin/tool; tool; python3 -c 'import own, pytest; print(own.x)'")
        assert said == "mine blue\n1"
        assert (await sh(clone, "echo $PATH")).startswith("/workspace/bin:/usr/libexec:")
    async with provider.open("e1", "a", pinned, Environment()) as clone:
        assert await sh(clone, "ls /") != ""
    for spec, field in (
        (EnvironmentSpec(image="other"), "environment.image"),
        (EnvironmentSpec(variables={"a=b": ""}), "environment.variables"),
        (EnvironmentSpec(variables={"": ""}), "environment.variables"),
        (EnvironmentSpec(path=("a:b",)), "environment.path[0]"),
        (EnvironmentSpec(path=("bin", "/opt/x")), "environment.path[1]"),
        (EnvironmentSpec(setup=("true", " ")), "environment.setup[1]"),
    ):
        with pytest.raises((InvalidRequest, PreconditionFailed)) as caught:
            await provider.environment(pinned, spec)
        assert caught.value.field == field
    nothing = await pin(provider, tmp_path, {"README": "x"}, "nothing")
    assert (await provider.environment(nothing, EnvironmentSpec())).test_command == ()


async def test_what_still_works_without_a_sandbox(tmp_path: Path, tools: Path) -> None:
    provider = make_provider(tmp_path, tools, rung=Rung.NONE)
    pinned = await pin(provider, tmp_path, {"test_a.py": "def test_a():\n    pass\n", "pyproject.toml": PYPROJECT})
    for setup in ((), ("pip --version",)):
        environment = await provider.environment(pinned, EnvironmentSpec(setup=setup, detect=False))
        assert environment.mounts == ()
        async with provider.open("e1", "a", pinned, environment) as clone:
            assert "1 passed" in (await run_tests(clone)).stdout.text()
            assert await clone.head() == (pinned.commit, "fleet/work")
            assert (await clone.diff()).files == ()
    with pytest.raises(PreconditionFailed, match="without a sandbox"):
        await provider.environment(pinned, EnvironmentSpec())


class TestDetected:
    async def test_requirements_are_installed_once(
        self, provider: GitWorkspaceProvider, tmp_path: Path, tools: Path
    ) -> None:
        pinned = await pin(provider, tmp_path, REQUIREMENTS)
        first = await provider.environment(pinned, EnvironmentSpec())
        assert not first.cached
        again = await make_provider(tmp_path, tools).environment(pinned, EnvironmentSpec())
        assert again.cached
        assert (again.key, again.mounts, again.variables) == (first.key, first.mounts, first.variables)
        assert "s3cret" not in str(again)
        for environment in (first, again):
            async with provider.open("e1", "a", pinned, environment) as clone:
                tested = await run_tests(clone)
                assert "OK" in tested.stdout.text(), tested.stdout.text()
                assert await sh(clone, "which python3; touch /environment/x") == (
                    "/environment/venv/bin/python3\ntouch: cannot touch '/environment/x': Read-only file system"
                )
                assert await sh(clone, "echo $SETUP_ONLY") == ""
        assert any("requirements.txt" in note for note in first.notes)
        # Tenants share none.
        other = await provider.pin("another", RepoRef(location=pinned.location))
        theirs = await provider.environment(other, EnvironmentSpec())
        assert not theirs.cached and theirs.key != first.key
        # Detection can be off.
        bare = await provider.environment(pinned, EnvironmentSpec(detect=False))
        assert not bare.report.left_out
        async with provider.open("e1", "a", pinned, bare) as clone:
            assert "No module named 'thing'" in await sh(clone, "python3 -c 'import thing'")

    async def test_an_editable_project_is_each_clones_own(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "pyproject.toml": PYPROJECT,
            "backend.py": BACKEND,
            "src/project.py": "answer = 1\n",
            "tests/test_project.py": UNITTEST.format(module="project", answer=2),
        }
        pinned = await pin(provider, tmp_path, files)
        environment = await provider.environment(pinned, EnvironmentSpec())
        async with (
            provider.open("e1", "a", pinned, environment) as clone,
            provider.open("e1", "b", pinned, environment) as other,
        ):
            (clone.root / "src/project.py").write_text("answer = 2\n")
            assert "OK" in (await run_tests(clone)).stdout.text()
            assert "1 != 2" in (await run_tests(other)).stdout.text()

    @pytest.mark.skipif(not Path("/usr/bin/go").exists(), reason="needs go below /usr")
    async def test_only_commands_without_a_network_are_told_that_there_is_none(
        self, tmp_path: Path, tools: Path
    ) -> None:
        provider = make_provider(tmp_path, tools, SetupPolicy(network=NetworkGrant(hosts=("*",)), variables={}))
        module = "module a\n\ngo 1.12\n\nrequire b v1.0.0\n\nreplace b => ./b\n"
        crate = '[package]\nname = "a"\nversion = "1.0.0"\n'
        pinned = await pin(provider, tmp_path, {"go.mod": module, "b/go.mod": "module b\n", "Cargo.toml": crate})
        line = "echo ${GOPROXY:-none} ${GOSUMDB:-none} ${CARGO_NET_OFFLINE:-none}"
        environment = await provider.environment(pinned, EnvironmentSpec(setup=(f"{line} > /environment/said",)))
        async with provider.open("e1", "a", pinned, environment) as clone:
            assert await sh(clone, f"cat /environment/said; {line}") == "none none none\noff off true"


class TestSetup:
    async def test_commands_run_in_order_and_once(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "a.py": "",
            "test_a.py": "def test_a():\n    pass\n",
            "tool.sh": "#!/bin/sh\necho built\n",
        }
        pinned = await pin(provider, tmp_path, files)
        spec = EnvironmentSpec(
            setup=(
                "mkdir -p /environment/bin && cp tool.sh /environment/bin/tool && chmod +x /environment/bin/tool",
                "tool > /environment/log && echo $SETUP_ONLY | wc -c >> /environment/log && pwd >> /environment/log",
            )
        )
        environment = await provider.environment(pinned, spec)
        async with provider.open("e1", "a", pinned, environment) as clone:
            assert await sh(clone, "cat /environment/log; tool") == "built\n7\n/workspace\nbuilt"
            assert await sh(clone, "git status --porcelain") == ""
            assert "1 passed" in (await run_tests(clone)).stdout.text()
        assert (await provider.environment(pinned, spec)).cached
        commit_files(Path(pinned.location), {"b.py": ""})
        moved = await provider.pin("default", RepoRef(location=pinned.location))
        assert not (await provider.environment(moved, spec)).cached

    async def test_a_failure_names_the_command_and_hides_secrets(
        self, provider: GitWorkspaceProvider, tmp_path: Path, tools: Path
    ) -> None:
        pinned = await pin(provider, tmp_path, {"a": ""})
        spec = EnvironmentSpec(setup=("touch /environment/x", "echo token $SETUP_ONLY >&2; exit 3"))
        with pytest.raises(PreconditionFailed) as caught:
            await provider.environment(pinned, spec)
        assert caught.value.field == "environment.setup[1]"
        assert "exit code 3" in caught.value.message
        assert "token ***" in caught.value.message
        assert "s3cret" not in str(caught.value)
        hasty = SetupPolicy(network=NetworkGrant(hosts=()), variables={}, timeout_seconds=0.2)
        with pytest.raises(PreconditionFailed, match="time was up"):
            await make_provider(tmp_path, tools, hasty).environment(pinned, EnvironmentSpec(setup=("sleep 60",)))
        assert built(tmp_path) == []

    async def test_what_a_killed_build_left_is_built_anew_and_age_takes_it(
        self, provider: GitWorkspaceProvider, tmp_path: Path
    ) -> None:
        pinned = await pin(provider, tmp_path, {"a": ""})
        spec = EnvironmentSpec(setup=("[ ! -e /environment/half ] && touch /environment/whole",))
        environment = await provider.environment(pinned, spec)
        place = tmp_path / "home/environments" / environment.key
        (place / "facts.json").unlink()
        (place / "root/whole").rename(place / "root/half")
        assert not (await provider.environment(pinned, spec)).cached
        assert [path.name for path in (place / "root").iterdir()] == ["whole"]
        assert (await provider.reap()).environments == 0
        os.utime(place, (0, 0))
        assert (await provider.reap()).environments == 1
        assert built(tmp_path) == []

    async def test_builders_at_once_build_once(self, tmp_path: Path, tools: Path) -> None:
        providers = [make_provider(tmp_path, tools) for _ in range(4)]
        pinned = await pin(providers[0], tmp_path, {"a": ""})
        spec = EnvironmentSpec(setup=("head -c 8 /dev/urandom | od -An -tx1 > /environment/stamp",))
        found = await asyncio.gather(*(provider.environment(pinned, spec) for provider in providers))
        assert sorted(environment.cached for environment in found) == [False, True, True, True]
        assert len({environment.key for environment in found}) == 1

    async def test_a_cancelled_build_leaves_nothing(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        pinned = await pin(provider, tmp_path, {"a": ""})
        spec = EnvironmentSpec(setup=("touch /environment/started && sleep 60",))
        task = asyncio.create_task(provider.environment(pinned, spec))
        await until(lambda: list((tmp_path / "home/environments").glob("*/root/started")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert built(tmp_path) == []
        assert not list((tmp_path / "home/workspaces").glob("*/*"))


# --- repositories that nobody prepared ---

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
        assert any("nowhere" in note for note in environment.notes)
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


# --- clones and their commands where no namespaces are to be had ---


def shell(script: str) -> Command:
    return Command(argv=("sh", "-c", script), timeout_seconds=60)


needs_landlock = pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")


@needs_landlock
async def test_a_clone_is_worked_on_and_its_changes_are_read(tmp_path: Path) -> None:
    files = {"app.py": "answer = 41\n", "test_app.py": "import app\n\ndef test_it():\n    assert app.answer == 42\n"}
    repository = make_repository(tmp_path / "repository", files)
    surroundings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    provider = provider_at(tmp_path, rung=Rung.LANDLOCK, surroundings=surroundings)
    pinned = await provider.pin("tenant", RepoRef(location=str(repository)))
    environment = await provider.environment(pinned, EnvironmentSpec())
    async with provider.open("execution", "agent", pinned, environment) as clone:
        log = await clone.run(shell("git log --oneline && git status --short"))
        assert (log.exit_code, log.stdout.text().count("\n")) == (0, 1), log.stderr.text()
        assert not (await clone.run(Command(argv=("python3", "-m", "pytest", "-q"), timeout_seconds=60))).ok
        edited = await clone.run(shell("sed -i s/41/42/ app.py && chmod 755 app.py && echo x >> test_app.py"))
        assert edited.ok, edited.stderr.text()
        # What the fleet itself writes in the meantime is the command's to change as well.
        (clone.root / "script.sh").write_text("echo from the script\n")
        made = await clone.run(shell("echo exit 3 >> script.sh && chmod +x script.sh && sh ./script.sh"))
        assert (made.exit_code, made.stdout.text()) == (3, "from the script\n"), made.stderr.text()
        assert "+answer = 42" in (await clone.diff()).patch.decode()
        assert not (await clone.run(shell(f"ls {tmp_path} || cat {repository}/app.py"))).ok
    assert list((tmp_path / "home" / "workspaces").rglob("app.py")) == []


@needs_landlock
async def test_a_patch_applies_to_files_that_were_given_to_the_sandboxs_user(tmp_path: Path) -> None:
    files = {"app.py": "answer = 41\n", "other.py": ""}
    async with opened(tmp_path, Rung.LANDLOCK, files) as (_, clone):
        # What a handover does to files, as soon as one has taken place or as if it had.
        owner = (clone.root / "app.py").stat().st_uid
        for path in (clone.root / "app.py", clone.root / "other.py"):
            os.chown(path, owner, -1)
            path.chmod(0o644)
        await clone.apply(b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-answer = 41\n+answer = 42\n")
        assert (await clone.diff()).files == ("app.py",)


SERVING = """
import http.server, threading, urllib.request
import app, thing

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(thing.answer * app.factor).encode())

def test_it_answers():
    server = http.server.ThreadingHTTPServer(("", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://localhost:{server.server_address[1]}/"
        assert urllib.request.urlopen(url, timeout=10).read() == b"42"
    finally:
        server.shutdown()
"""


@needs_landlock
async def test_a_repository_with_requirements_and_a_server_of_its_own_is_judged(tmp_path: Path) -> None:
    files = {"requirements.txt": "thing\n", "app.py": "factor = 5\n", "conftest.py": "", "test_app.py": SERVING}
    with Index({"thing-1.0-py3-none-any.whl": wheel("thing", 7)}) as index:
        world = World(tmp_path, files, Rung.LANDLOCK, setup=index.setup)
        report = await world.check({"app.py": "factor = 6\n"})
    tests = named(report, "tests")
    assert report.verdict is Verdict.VERIFIED, report.reasons
    assert (tests.passed, tests.shown) == (True, ("test_app.py::test_it_answers",))
    assert any("thing" in path for path in index.asked)


@needs_landlock
@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands anything over")
async def test_nothing_outside_is_handed_over(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "ws"
    outside.mkdir()
    root.mkdir()
    (outside / "file").write_text("x")
    (root / "link").symlink_to(outside)
    (root / "file-link").symlink_to(outside / "file")
    os.link(outside / "file", root / "other-name")
    async with Sandbox(SandboxPolicy(rung=Rung.LANDLOCK)).workspace(root) as workspace:
        deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
        assert (await workspace.run(Command(argv=("python3", "-c", deep)))).ok
        (root / "mine").write_text("x")
        assert (await workspace.run(shell("chmod 700 mine && stat -c %u . mine"))).ok
        assert root.stat().st_uid != 0
        assert [(outside / name).stat().st_uid for name in (".", "file")] == [0, 0]
        assert not (await workspace.run(shell("echo y >> link/file || echo y > file-link"))).ok
    assert {path.lstat().st_uid for path in (root, root / "mine", root / "link", outside / "file")} == {0}
    assert (outside / "file").read_text() == "x"
    # Too deep for those who tidy up after tests.
    assert await (await asyncio.create_subprocess_exec("rm", "-rf", str(root / "d"))).wait() == 0
