"""Environments: built in the real sandbox, without a network unless a test says so."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, SetupPolicy
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef
from swe_ai_fleet.sandbox import NetworkGrant, Rung
from swe_ai_fleet.testing.repositories import commit_files
from tests.environments import BACKEND, PYPROJECT, REQUIREMENTS, UNITTEST, built, make_provider, pin, run_tests, sh


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
        # Detection can be off.
        bare = await provider.environment(pinned, EnvironmentSpec(detect=False))
        assert not bare.report.left_out
        async with provider.open("e1", "a", pinned, bare) as clone:
            assert "No module named 'thing'" in await sh(clone, "python3 -c 'import thing'")

    async def test_the_key_follows_what_decides(self, provider: GitWorkspaceProvider, tmp_path: Path) -> None:
        pinned = await pin(provider, tmp_path, {"requirements.txt": "# nothing\n", "a.py": ""})
        repo = Path(pinned.location)
        first = await provider.environment(pinned, EnvironmentSpec())
        commit_files(repo, {"tests/other.py": "x = 1\n"})
        same = await provider.environment(await provider.pin("default", RepoRef(location=str(repo))), EnvironmentSpec())
        assert same.key == first.key
        commit_files(repo, {"requirements.txt": "# nothing yet\n"})
        changed = await provider.environment(
            await provider.pin("default", RepoRef(location=str(repo))), EnvironmentSpec()
        )
        assert changed.key != first.key
        other = await provider.pin("another", RepoRef(location=str(repo), ref="main~1"))
        assert (await provider.environment(other, EnvironmentSpec())).key not in (first.key, changed.key)

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

    async def test_one_requirement_that_cannot_be_had_is_left_out(
        self, provider: GitWorkspaceProvider, tmp_path: Path
    ) -> None:
        files = REQUIREMENTS | {
            "requirements-dev.txt": "./wheels/missing-1.0-py3-none-any.whl\nnowhere>=1\n-r requirements.txt\n"
        }
        pinned = await pin(provider, tmp_path, files)
        environment = await provider.environment(pinned, EnvironmentSpec())
        async with provider.open("e1", "a", pinned, environment) as clone:
            assert "OK" in (await run_tests(clone)).stdout.text()
        left_out = " ".join(environment.report.left_out)
        assert "missing-1.0" in left_out
        assert "nowhere" in left_out
        assert "thing" not in left_out
        assert any("nowhere" in note for note in environment.notes)

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

    @pytest.mark.slow
    async def test_from_an_index(self, tmp_path: Path, tools: Path) -> None:
        # By the names that pip itself has built in; they may resolve to a mirror on a private network.
        index = pytest.importorskip("pip._internal.models.index").PyPI
        network = NetworkGrant(hosts=("*",), private_hosts=(index.netloc, index.file_storage_domain))
        provider = make_provider(tmp_path, tools, SetupPolicy(network=network, variables={}))
        files: dict[str, str | bytes] = {
            "requirements.txt": "iniconfig\n",
            "test_it.py": "import iniconfig as it\n\ndef test_it():\n    assert it.__file__.startswith('/environ')\n",
        }
        pinned = await pin(provider, tmp_path, files)
        environment = await provider.environment(pinned, EnvironmentSpec())
        async with provider.open("e1", "a", pinned, environment) as clone:
            tested = await run_tests(clone)
            assert "1 passed" in tested.stdout.text(), tested.stdout.text()
            assert await sh(clone, "python3 -c 'import pytest; print(pytest.__file__)'") == (
                await sh(clone, "echo /environment/venv/lib/python3*/site-packages/pytest/__init__.py")
            )


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
        async with asyncio.timeout(20):
            while not list((tmp_path / "home/environments").glob("*/root/started")):
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert built(tmp_path) == []
        assert not list((tmp_path / "home/workspaces").glob("*/*"))
