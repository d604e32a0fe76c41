"""A repository's build, which runs code of the repository, aimed at the host that keeps what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.disk import measure
from tests.confinement import needs_bwrap
from tests.environments import BACKEND, PYPROJECT, make_provider, pin, sh

SECRET = "the fleet's own token"
# What an in-tree backend does while it builds: directories that the fleet fills afterwards become links to the host.
HOSTILE = """
import os, shutil
for name in {names!r}:
    shutil.rmtree("/environment/" + name, ignore_errors=True)
    os.path.lexists("/environment/" + name) and os.remove("/environment/" + name)
    os.symlink({target!r}, "/environment/" + name)
os.makedirs("node_modules/evil", exist_ok=True)
open("node_modules/evil/index.js", "w").write("evil")
open("token", "w").write("left by the build")
"""


@pytest.fixture
def loot(tmp_path: Path) -> Path:
    """A directory of the host with a secret in it."""
    directory = tmp_path / "loot"
    directory.mkdir()
    (directory / "token.txt").write_text(SECRET)
    return directory


@needs_bwrap
async def test_links_where_the_fleet_keeps_what_a_build_left(tmp_path: Path, loot: Path) -> None:
    provider = make_provider(tmp_path)
    backend = BACKEND + HOSTILE.format(names=("kept", "node", "bin"), target=str(loot))
    repository = await pin(provider, tmp_path, {"pyproject.toml": PYPROJECT, "backend.py": backend, "src/a.py": ""})
    environment = await provider.environment(repository, EnvironmentSpec())
    async with provider.open("e", "a", repository, environment) as clone:
        # The build did run, and what it left is in the clone: none of it on the host.
        assert await sh(clone, "cat token") == "left by the build"
        assert "evil" in await sh(clone, "cat node_modules/evil/index.js")
        assert SECRET not in await sh(
            clone, "cat token.txt /environment/*/token.txt; find / -name token.txt | xargs cat"
        )
    assert [path.name for path in loot.iterdir()] == ["token.txt"]
    assert (loot / "token.txt").read_text() == SECRET


@needs_bwrap
async def test_pipes_and_links_in_what_is_copied(tmp_path: Path, loot: Path) -> None:
    provider = make_provider(tmp_path)
    left = f"import os\nos.mkfifo('/environment/pipe')\nos.symlink({str(loot)!r}, '/environment/loot')\n"
    files: dict[str, str | bytes] = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND + left, "src/a.py": ""}
    repository = await pin(provider, tmp_path, files)
    environment = await provider.environment(repository, EnvironmentSpec())
    async with provider.open("e", "a", repository, environment) as clone:
        assert await sh(clone, "test -p /environment/pipe && echo there") == "there"  # control: the build did leave it
    async with provider.workshop("e", "b", repository, environment) as clone:
        assert await sh(clone, "test -p /environment/pipe && echo there") == "there"
        assert SECRET not in await sh(clone, "cat /environment/loot/token.txt")


@pytest.mark.slow
@needs_bwrap
async def test_a_copy_takes_no_more_of_the_disk_than_the_build_was_allowed(tmp_path: Path) -> None:
    mib = 1024**2
    sandbox = Sandbox(SandboxPolicy(max_disk_bytes=64 * mib, max_file_bytes=256 * mib))
    provider = make_provider(tmp_path, sandbox=sandbox)
    left = f"""
for number in range(4):
    with open(f"/environment/hole{{number}}", "wb") as file:
        file.truncate(200 * {mib})
with open("/environment/many", "wb") as file:
    file.write(os.urandom({mib}))
for number in range(300):
    os.link("/environment/many", f"/environment/name{{number}}")
"""
    files: dict[str, str | bytes] = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND + left, "src/a.py": ""}
    repository = await pin(provider, tmp_path, files)
    environment = await provider.environment(repository, EnvironmentSpec())
    async with provider.workshop("e", "a", repository, environment) as clone:
        # Control: read as a whole they are more than a gigabyte.
        assert int(await sh(clone, "cat /environment/hole* /environment/name* | wc -c")) == 1100 * mib
        assert measure([tmp_path / "home/scratch"]).bytes < 64 * mib
