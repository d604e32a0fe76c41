"""Environments, of prepared repositories and of others: built in the real sandbox, without a network by default."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from dataclasses import replace
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
from swe_ai_fleet.sandbox import IsolationLevel, NetworkGrant, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from tests.confinement import shell, until
from tests.environments import BACKEND, PYPROJECT, REQUIREMENTS, UNITTEST, built, make_provider, pin, run_tests, sh


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return make_provider(tmp_path)


@pytest.mark.slow  # quick: requirements are installed once
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
        linted = await sh(clone, "ruff check --output-format=json a.py")
        assert [item["code"] for item in json.loads(linted)] == ["F401"]
        assert (await clone.diff()).files == ()
        refused = await sh(clone, "touch /fleet/tools/x /fleet/tools/python/pytest/x")
        assert refused.count("Read-only") == 2
    spec = EnvironmentSpec(variables={"COLOUR": "blue", "PYTHONPATH": "/workspace/lib"}, path=("./bin", "/usr/libexec"))
    async with provider.open("e1", "a", pinned, await provider.environment(pinned, spec)) as clone:
        said = await sh(clone, "chmod +x bin/tool; tool; python3 -c 'import own, pytest; print(own.x)'; echo $PATH")
        assert said.startswith("mine blue\n1\n/workspace/bin:/usr/libexec:")
    for spec, field in (
        (EnvironmentSpec(image="other"), "image"), (EnvironmentSpec(variables={"a=b": ""}), "variables"),
        (EnvironmentSpec(variables={"": ""}), "variables"), (EnvironmentSpec(path=("a:b",)), "path[0]"),
        (EnvironmentSpec(path=("bin", "/opt/x")), "path[1]"), (EnvironmentSpec(setup=("true", " ")), "setup[1]"),
    ):  # fmt: skip
        with pytest.raises((InvalidRequest, PreconditionFailed)) as caught:
            await provider.environment(pinned, spec)
        assert caught.value.field == f"environment.{field}"
    nothing = await pin(provider, tmp_path, {"README": "x"}, "nothing")
    assert (await provider.environment(nothing, EnvironmentSpec())).test_command == ()


@pytest.mark.slow  # quick: commands run in order and once
async def test_what_still_works_without_a_sandbox(tmp_path: Path) -> None:
    provider = make_provider(tmp_path, level=IsolationLevel.NONE)
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


async def test_requirements_are_installed_once(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    pinned = await pin(provider, tmp_path, REQUIREMENTS)
    first = await provider.environment(pinned, EnvironmentSpec())
    again = await make_provider(tmp_path).environment(pinned, EnvironmentSpec())
    assert (first.cached, again.cached) == (False, True)
    assert (again.key, again.mounts, again.variables) == (first.key, first.mounts, first.variables)
    assert "s3cret" not in str(again)
    assert any("requirements.txt" in note for note in first.notes)
    async with provider.open("e1", "a", pinned, again) as clone:
        tested = await run_tests(clone)
        assert "OK" in tested.stdout.text(), tested.stdout.text()
        assert await sh(clone, "which python3; touch /environment/x") == (
            "/environment/venv/bin/python3\ntouch: cannot touch '/environment/x': Read-only file system"
        )
        assert await sh(clone, "echo $SETUP_ONLY") == ""
    # Tenants share none.
    other = await provider.pin("another", RepoRef(location=pinned.location))
    theirs = await provider.environment(other, EnvironmentSpec())
    assert not theirs.cached and theirs.key != first.key
    # Detection can be off; what is on PATH, but not there, is named.
    bare = await provider.environment(pinned, EnvironmentSpec(detect=False, path=("wheels", "tols")))
    assert [note for note in bare.notes if "PATH" in note] == ["Expected, but not on PATH: tols."]
    async with provider.open("e1", "a", pinned, bare) as clone:
        assert "No module named 'thing'" in await sh(clone, "python3 -c 'import thing'")
    # Commands of a caller come on top; what they leave in the checkout is there, and in no diff.
    make = "mkdir -p bin && printf '#!/bin/sh\\necho made\\n' > bin/tool && chmod +x bin/tool"
    spec = EnvironmentSpec(setup=("python3 -c 'import thing'", make), path=("bin",))
    async with provider.open("e1", "a", pinned, await provider.environment(pinned, spec)) as clone:
        assert (await sh(clone, "tool"), (await clone.diff()).files) == ("made", ())


async def test_an_editable_project_is_each_clones_own(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    """Its version comes from tags, written into a file that is ignored."""
    files: dict[str, str | bytes] = {
        "pyproject.toml": PYPROJECT, "backend.py": VERSIONED, ".gitignore": "_version.py\n",
        "src/project.py": "from _version import version\nanswer = version, 1\n",
        "tests/test_project.py": UNITTEST.format(module="project", answer="('v1.2', 2)"),
    }  # fmt: skip
    repo = make_repository(tmp_path / "repo", files)
    git(repo, "tag", "v1.2")
    pinned = await provider.pin("default", RepoRef(location=str(repo)))
    environment = await provider.environment(pinned, EnvironmentSpec())
    async with (
        provider.open("e1", "a", pinned, environment) as clone,
        provider.open("e1", "b", pinned, environment) as other,
    ):
        assert (await clone.diff()).files == ()
        (clone.root / "src/project.py").write_text("from _version import version\nanswer = version, 2\n")
        assert "OK" in (await run_tests(clone)).stdout.text()
        assert "('v1.2', 1) != ('v1.2', 2)" in (await run_tests(other)).stdout.text()
        # A clone may write it anew.
        assert await sh(other, "echo 'version = 2' > src/_version.py && git status --porcelain") == ""


async def test_commands_run_in_order_and_once(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    tests = "def test_a():\n    pass\n"
    pinned = await pin(provider, tmp_path, {"test_a.py": tests, "tool.sh": "#!/bin/sh\necho built\n"})
    spec = EnvironmentSpec(
        setup=(
            "mkdir -p /environment/bin && cp tool.sh /environment/bin/tool && chmod +x /environment/bin/tool",
            "tool > /environment/log && echo $SETUP_ONLY | wc -c >> /environment/log && pwd >> /environment/log",
        )
    )
    async with provider.open("e1", "a", pinned, await provider.environment(pinned, spec)) as clone:
        assert await sh(clone, "cat /environment/log; tool") == "built\n7\n/workspace\nbuilt"
        assert await sh(clone, "git status --porcelain") == ""
        assert "1 passed" in (await run_tests(clone)).stdout.text()
    assert (await provider.environment(pinned, spec)).cached
    commit_files(Path(pinned.location), {"b.py": ""})
    moved = await provider.pin("default", RepoRef(location=pinned.location))
    assert not (await provider.environment(moved, spec)).cached
    # A failure names the command and hides secrets.
    before = built(tmp_path)
    wrong = EnvironmentSpec(setup=("touch /environment/x", "echo token $SETUP_ONLY >&2; exit 3"))
    with pytest.raises(PreconditionFailed) as caught:
        await provider.environment(pinned, wrong)
    assert caught.value.field == "environment.setup[1]"
    assert "exit code 3" in caught.value.message and "token ***" in caught.value.message
    assert "s3cret" not in str(caught.value)
    hasty = SetupPolicy(network=NetworkGrant(hosts=()), variables={}, timeout_seconds=0.2)
    with pytest.raises(PreconditionFailed, match="timed out"):
        await make_provider(tmp_path, hasty).environment(pinned, EnvironmentSpec(setup=("sleep 60",)))
    assert built(tmp_path) == before


async def test_what_commands_may_leave_where_is_what_the_document_says(
    provider: GitWorkspaceProvider, tmp_path: Path
) -> None:
    files = {"README": "x\n", ".gitignore": "ignored/\n", "a.txt": "committed\n"}
    lines = (
        "mkdir -p /environment/bin ignored && echo a > /environment/data && echo b > ignored/b && echo c > shown",
        "printf '#!/bin/sh\\necho program\\n' > /environment/bin/program && chmod +x /environment/bin/program",
        "echo changed > a.txt; echo d > ~/left; echo e > /tmp/left; mkdir -p __pycache__ && echo f > __pycache__/f.pyc",
        "export LATER=1; ! echo g > /usr/left",
    )
    repository = await pin(provider, tmp_path, files)
    environment = await provider.environment(repository, EnvironmentSpec(setup=lines, detect=False))
    async with provider.open("e", "a", repository, environment) as clone:
        for line, said in (
            # Stays: in the environment, in the checkout as far as git does not have it.
            ("cat /environment/data ignored/b shown; program", "a\nb\nc\nprogram"),
            ("git status --porcelain", ""),
            # Goes: what git has, home, /tmp, caches, variables. Nothing else can be written to.
            ("cat a.txt; ls ~/left /tmp/left __pycache__ 2>/dev/null; echo $LATER", "committed"),
            # Agents and checks read the environment, and do not write it.
            ("{ echo x > /environment/data; } 2>/dev/null || cat /environment/data", "a"),
        ):
            assert await sh(clone, line) == said, line


async def test_builds_at_once_and_builds_that_end_early(tmp_path: Path) -> None:
    providers = [make_provider(tmp_path) for _ in range(4)]
    provider, places = providers[0], tmp_path / "home/environments"
    pinned = await pin(provider, tmp_path, {"a": ""})
    # One that is cancelled leaves nothing.
    slow = EnvironmentSpec(setup=("touch /environment/started && sleep 60",))
    task = asyncio.create_task(provider.environment(pinned, slow))
    await until(lambda: list(places.glob("*/root/started")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert built(tmp_path) == [] and not list((tmp_path / "home/workspaces").glob("*/*"))
    spec = EnvironmentSpec(setup=("[ ! -e /environment/half ] && head -c 8 /dev/urandom > /environment/whole",))
    found = await asyncio.gather(*(one.environment(pinned, spec) for one in providers))
    assert sorted(environment.cached for environment in found) == [False, True, True, True]
    (key,) = {environment.key for environment in found}
    # What a killed build left is built anew, and age takes it.
    (places / key / "facts.json").unlink()
    (places / key / "root/whole").rename(places / key / "root/half")
    assert not (await provider.environment(pinned, spec)).cached
    assert [path.name for path in (places / key / "root").iterdir()] == ["whole"]
    assert (await provider.reap()).environments == 0
    os.utime(places / key, (0, 0))
    assert (await provider.reap()).environments == 1
    assert built(tmp_path) == []


# --- repositories that nobody prepared ---

# Refused before anything is connected to.
MIRROR = SetupPolicy(
    network=NetworkGrant(hosts=("*",), private_hosts=("mirror.internal",)),
    variables={
        "PIP_INDEX_URL": "https://10.20.30.40/simple", "PIP_RETRIES": "0",
        "npm_config_registry": "https://10.20.30.40/", "npm_config_fetch_retries": "0",
    },
)  # fmt: skip
OPENS = "FLEET_SETUP_PRIVATE_HOSTS=mirror.internal,10.20.30.40"
VERSIONED = BACKEND.replace(
    "    return name",
    "    import subprocess\n"
    "    tag = subprocess.run(['git', 'describe', '--tags'], capture_output=True, text=True).stdout.strip()\n"
    "    open('src/_version.py', 'w').write(f'version = {tag!r}\\n')\n"
    "    return name",
)


@pytest.mark.slow  # quick: requirements are installed once
async def test_a_dependency_that_cannot_be_had_does_not_cost_the_rest(
    provider: GitWorkspaceProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-12-24T00:00:00Z")
    place = "wheels/thing-1.0-py3-none-any.whl"
    project = PYPROJECT + f'[dependency-groups]\ntest = ["nowhere>=3", "thing @ file:///workspace/{place}"]\n'
    files: dict[str, str | bytes] = {
        "pyproject.toml": project, "backend.py": BACKEND, "src/project.py": "import thing\nanswer = thing.answer\n",
        "tests/test_project.py": UNITTEST.format(module="project", answer=7), place: REQUIREMENTS[place],
    }  # fmt: skip
    pinned = await pin(provider, tmp_path, files)
    environment = await provider.environment(pinned, EnvironmentSpec())
    async with provider.open("e1", "a", pinned, environment) as clone:
        assert "OK" in (await run_tests(clone)).stdout.text()
    (left_out,) = environment.report.left_out
    assert left_out == "nowhere>=3: ERROR: No matching distribution found for nowhere>=3"
    assert any("nowhere" in note for note in environment.notes)
    missing = [step for step in environment.report.steps if step.outcome is StepOutcome.LEFT_OUT]
    assert [(step.purpose, step.source) for step in missing] == [("nowhere>=3", "pyproject.toml")]
    # Nor does an index that does not say when releases came: what can be had is installed all the same.
    (dated,) = [step for step in environment.report.steps if step.purpose == "releases until 2021-01-01"]
    assert dated.outcome is StepOutcome.REPLACED


@pytest.mark.slow  # quick: unit tests of recipes
@pytest.mark.skipif(shutil.which("npm", path="/usr/bin:/bin") is None, reason="npm is not installed")
async def test_a_package_of_node_that_cannot_be_had(provider: GitWorkspaceProvider, tmp_path: Path) -> None:
    gone = {"gone": "https://gone.example/gone-1.0.0.tgz"}
    package = {"dependencies": {"ok": "file:./ok"}, "devDependencies": gone, "scripts": {"test": "node --test"}}
    files: dict[str, str | bytes] = {
        "package.json": json.dumps(package), "ok/package.json": '{"name": "ok", "version": "1.0.0"}',
        "ok/index.js": "module.exports = 7;\n", "a.test.js": "require('node:assert').equal(require('ok'), 7);\n",
    }  # fmt: skip
    pinned = await pin(provider, tmp_path, files)
    environment = await provider.environment(pinned, EnvironmentSpec())
    assert [text.partition(":")[0] for text in environment.report.left_out] == ["gone https"]
    async with provider.open("e1", "a", pinned, environment) as clone:
        tested = await run_tests(clone)
        assert tested.ok, tested.stdout.text()
        # Packages are read-only, caches beside them are each clone's own.
        caches = "node_modules/.cache/x node_modules/.vite"
        assert await sh(clone, f"mkdir -p {caches} && touch node_modules/.vite/y") == ""
        assert (await clone.diff()).files == ()
    async with provider.open("e1", "b", pinned, environment) as clone:
        assert await sh(clone, "ls node_modules/.cache node_modules/.vite 2>&1 | wc -l") == "2"


async def test_a_commit_with_a_patch_has_the_tags_submodules_and_date_of_its_base(
    provider: GitWorkspaceProvider, tmp_path: Path
) -> None:
    library = make_repository(tmp_path / "library", {"data.txt": "7\n"})
    repo = make_repository(tmp_path / "repo", {"a.py": ""})
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(repo, "commit", "--quiet", "--message", "A submodule")
    git(repo, "tag", "v1.2")
    pinned = await provider.pin("default", RepoRef(location=str(repo)))
    git(repo, "rm", "--quiet", "a.py")
    made = await provider.patched("e1", pinned, f"{git(repo, 'diff', '--cached')}\n".encode())
    async with provider.open("e1", "a", made, Environment()) as clone:
        told = await sh(clone, "git describe --tags; cat lib/data.txt; git log -1 --format=%ct")
    # What releases its environment is made of depends on the date.
    tag, data, date = told.splitlines()
    assert tag.startswith("v1.2-1-g") and (data, date) == ("7", git(repo, "log", "-1", "--format=%ct"))


@pytest.mark.slow  # quick: commands run in order and once
async def test_packages_and_programs_of_the_host_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, version = f"fleet_decoy_{uuid4().hex[:8]}", f"python{sys.version_info.major}.{sys.version_info.minor}"
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
        provider = make_provider(tmp_path)
        for number, files in enumerate(({"test_a.py": "def test_a():\n    pass\n"}, {"README": ""}, REQUIREMENTS)):
            pinned = await pin(provider, tmp_path, files, str(number))
            environment = await provider.environment(pinned, EnvironmentSpec())
            async with provider.open("e1", f"a{number}", pinned, environment) as clone:
                assert "No module named" in await sh(clone, f"python3 -c 'import {name}'")
                assert "not found" in await sh(clone, name)
                assert "decoy" not in await sh(clone, "pytest --version; pip --version; python3 -m pytest --version")
    finally:
        package.unlink(missing_ok=True)
        program.unlink(missing_ok=True)


async def test_a_mirror_at_a_private_address_is_named_with_the_setting(
    tmp_path: Path,
) -> None:
    provider = make_provider(tmp_path, MIRROR)
    pinned = await pin(provider, tmp_path, {"requirements.txt": "attrs\n", "a.py": ""})
    with pytest.raises(PreconditionFailed, match=r"10\.20\.30\.40 is not at a public address") as caught:
        await provider.environment(pinned, EnvironmentSpec())
    assert caught.value.field == "environment" and OPENS in str(caught.value)


@pytest.mark.slow  # quick: what is above, integration/test_doctor_findings.py
async def test_such_a_mirror_is_named_by_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A port of its own is named with it.
    with_port = {name: value.replace("40", "40:8081") for name, value in MIRROR.variables.items()}
    (pip, *_) = await try_setup_network(tmp_path, Sandbox(SandboxPolicy()), replace(MIRROR, variables=with_port))
    assert pip.way_out.startswith("set FLEET_SETUP_PRIVATE_HOSTS=mirror.internal,10.20.30.40:8081 for")
    for name, value in MIRROR.variables.items():
        monkeypatch.setenv(name, value)
    variables = ",".join(MIRROR.variables)
    settings = Settings(home=tmp_path, setup_private_hosts="mirror.internal", setup_variables=variables)
    (pip,) = [found for found in await examine(settings) if found.part == "set-up network: pip"]
    assert OPENS in pip.mend and "10.20.30.40 is not at a public address" in pip.cause


# --- clones and their commands where no namespaces are to be had ---


@pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands anything over")
async def test_nothing_outside_is_handed_over(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "ws"
    outside.mkdir()
    root.mkdir()
    (outside / "file").write_text("x")
    (root / "link").symlink_to(outside)
    (root / "file-link").symlink_to(outside / "file")
    os.link(outside / "file", root / "other-name")
    async with Sandbox(SandboxPolicy(level=IsolationLevel.LANDLOCK)).workspace(root) as workspace:
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
