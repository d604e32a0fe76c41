"""Where no lock says which versions are meant, those of a commit's environment hold for its candidates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.environments.requirements import npm_lock
from swe_ai_fleet.testing.repositories import make_repository
from tests.confinement import needs_bwrap
from tests.environments import Index, make_provider, sh, wheel

pytestmark = needs_bwrap
SPEC = EnvironmentSpec()
OLD, NEW, OTHER = wheel("thing", 1), wheel("thing", 2, "2.0"), wheel("other", 3)
FILES: dict[str, str | bytes] = {"requirements.txt": "thing\n", "tests/test_a.py": "import thing\n"}
WHEELS = {"thing-1.0-py3-none-any.whl": OLD, "other-1.0-py3-none-any.whl": OTHER}
RELEASED = {"thing-2.0-py3-none-any.whl": NEW}


@pytest.fixture
def wheels() -> dict[str, bytes]:
    """What the index has; releases may be added."""
    return dict(WHEELS)


@pytest.fixture
def provider(tmp_path: Path, wheels: dict[str, bytes]) -> Iterator[GitWorkspaceProvider]:
    with Index(wheels) as index:
        yield make_provider(tmp_path, index.setup)


def patch(path: str, before: str, after: str) -> bytes:
    """A patch of a file with one line."""
    lines = "".join(f"+{line}\n" for line in after.splitlines())
    count = len(after.splitlines())
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1,{count} @@\n-{before}\n{lines}".encode()


def line(name: str, version: str, content: bytes) -> str:
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(content).hexdigest()}"


async def answers(provider: GitWorkspaceProvider, repository: PinnedRepository, environment: Environment) -> str:
    async with provider.open("e", "a", repository, environment) as clone:
        return await sh(clone, "python3 -c 'import thing, other; print(thing.answer, other.answer)'")


@pytest.mark.slow  # quick: a candidate that asks for another version
async def test_a_release_that_came_out_in_between_is_not_in_a_candidates_environment(
    provider: GitWorkspaceProvider, wheels: dict[str, bytes], tmp_path: Path
) -> None:
    base = await provider.pin("default", RepoRef(location=str(make_repository(tmp_path / "repo", FILES))))
    environment = await provider.environment(base, SPEC)
    assert line("thing", "1.0", OLD) in environment.report.installed
    wheels.update(RELEASED)
    candidate = await provider.patched("e", base, patch("requirements.txt", "thing", "thing\nother"))
    tested = await provider.environment(candidate, SPEC)
    assert await answers(provider, candidate, tested) == "1 3"
    # What was had from the start keeps its hash, what came has its own.
    assert {line("thing", "1.0", OLD), line("other", "1.0", OTHER)} <= set(tested.report.installed)
    assert any("the versions of the parent commit" in said.what for said in tested.report.decisions)


async def test_a_candidate_that_asks_for_another_version_gets_it(
    provider: GitWorkspaceProvider, wheels: dict[str, bytes], tmp_path: Path
) -> None:
    base = await provider.pin("default", RepoRef(location=str(make_repository(tmp_path / "repo", FILES))))
    await provider.environment(base, SPEC)
    wheels.update(RELEASED)
    candidate = await provider.patched("e", base, patch("requirements.txt", "thing", "thing>=2\nother"))
    tested = await provider.environment(candidate, SPEC)
    assert await answers(provider, candidate, tested) == "2 3"
    assert any("without the pins of thing" in said.what for said in tested.report.decisions)
    assert line("thing", "2.0", NEW) in tested.report.installed


def test_what_a_build_writes_as_npms_notes_is_read_as_text_of_a_strangers() -> None:
    packages = {
        "node_modules/@scope/good": {"version": "1.2.3-rc.1", "integrity": "sha512-" + "A" * 86 + "=="},
        "node_modules/plain": {"version": "2.0.0", "integrity": "\x1b[2J"},
        "node_modules/\x1b]0;title\x07": {"version": "1.0.0"},
        "node_modules/--registry=http://elsewhere": {"version": "1.0.0"},
        "node_modules/broken": {"version": "1.0.0\ninjected==1"},
        "node_modules/member": {"resolved": "packages/member", "link": True},
        "packages/member": {"version": "1.0.0"},
        "node_modules/none": "text",
    }
    lock, lines = npm_lock(json.dumps({"packages": packages}))
    assert lines == (f"@scope/good@1.2.3-rc.1 sha512-{'A' * 86}==", "plain@2.0.0")
    assert set(json.loads(lock)["packages"]) == {"", "node_modules/@scope/good", "node_modules/plain"}
    for text in ("", "[]", "{", '{"packages": 1}', "[" * 200_000):
        assert npm_lock(text) == ("", ())
