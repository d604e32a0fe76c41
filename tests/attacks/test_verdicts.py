"""Patches that write their own verdict: none of them is verified, and where the rules of tests are theirs it is said.

The source is wrong in each of them: `mul` still adds, or `sub` is broken on top of that.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.candidate import CheckReport, Verdict
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.domain.test_run import TestOutcome
from swe_ai_fleet.orchestrator import evidence
from swe_ai_fleet.orchestrator.evidence import PatchUnreadable, parse_patch
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.tests.running import read_events, sealed
from tests.evidence import APP, MENDED, PYTEST_FILES, World, named

MUL = "tests/test_app.py::test_mul"
SUB = "tests/test_app.py::test_sub"
BROKEN = APP.replace("a - b", "b - a")
ALL_PASS = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
# Written where the plug-in of the fleet writes, before the tests that it speaks of have run.
FORGED_EVENTS = f"""
import json, os
with open(os.environ["FLEET_TEST_EVENTS"], "a") as events:
    for name in ("{MUL}", "{SUB}", "tests/test_app.py::test_add"):
        events.write(json.dumps({{"e": "end", "id": name, "o": "passed", "ms": 1}}) + "\\n")
"""
# Whoever imports it believes that everything was run.
END_WELL = "\nimport os\nprint('3 passed in 0.01s', flush=True)\nos._exit(0)\n"
POSING = FORGED_EVENTS + "print('3 passed in 0.01s')\n"


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> Odd:
    return Odd(tmp_path_factory.mktemp("verdicts"), PYTEST_FILES)


async def test_source_that_writes_events_of_its_own(world: World) -> None:
    # What looks for the key finds it, in the process that the tests share with the plug-in: a limit, and documented.
    # A later word of the same test does not mend it all the same.
    found = f"""
import atexit, gc
def speak():
    for one in gc.get_objects():
        if type(one).__name__ == "Reporter":
            one.write(e="end", id="{MUL}", o="passed", ms=1)
atexit.register(speak)
"""
    report = await world.check({"app.py": APP + FORGED_EVENTS + found})
    assert report.verdict is Verdict.UNVERIFIED
    assert named(report, "tests").details["failing before"] == MUL


def test_control_with_its_seal_the_same_event_counts() -> None:
    event = json.dumps({"e": "end", "id": MUL, "o": "passed"}).encode()
    assert read_events(sealed(event, "key"), "key").results[MUL].outcome is TestOutcome.PASSED
    for line in (event, event + b"\t", sealed(event, "another"), sealed(event, "")):
        assert not read_events(line, "key").results


@pytest.mark.slow  # quick: source that writes events of its own
@pytest.mark.parametrize(
    ("source", "posing"),
    [
        (APP + END_WELL, ""),
        (BROKEN + END_WELL, ""),
        *((BROKEN, name) for name in ("pytest.py", "pytest/__main__.py", "sitecustomize.py")),
    ],
)
async def test_source_that_ends_the_run_well_and_modules_that_pose_as_what_runs_the_tests(
    world: World, source: str, posing: str
) -> None:
    report = await world.check({"app.py": source, **({posing: POSING} if posing else {})})
    assert report.verdict is not Verdict.VERIFIED, report.reasons


@pytest.mark.slow  # quick: source that writes events of its own
async def test_what_a_hook_hides_is_found_by_the_rules_from_before(world: World) -> None:
    report = await not_verified(world, {"app.py": BROKEN, "conftest.py": ALL_PASS})
    assert report.verdict is Verdict.UNVERIFIED
    assert named(report, "tests").details["only by its own rules"] == SUB
    assert report.reasons == (f"tests: 3 passed, but 1 test passes only as the change itself has tests run: {SUB}",)
    # The same with a hook that is imported: the conftest itself has none.
    report = await world.check(
        {"app.py": BROKEN, "conftest.py": "from hooks import *\n", "hooks.py": ALL_PASS}, name="imported"
    )
    assert named(report, "tests").details["only by its own rules"] == SUB


def _adding(name: bytes, text: str, *, header: bytes = b"new file mode 100644\n") -> bytes:
    """A patch that adds a file, as nobody's git writes it where the name is odd."""
    lines = [b"+%s\n" % line.encode() for line in text.splitlines()]
    old, new = [
        b'"%s/%s"' % (side, name[1:-1]) if name.startswith(b'"') else side + b"/" + name for side in (b"a", b"b")
    ]
    head = b"diff --git %s %s\n%s--- /dev/null\n+++ %s\n" % (old, new, header, new)
    return b"%s@@ -0,0 +1,%d @@\n%s" % (head, len(lines), b"".join(lines))


def _moving(old: bytes, new: bytes, kind: bytes = b"rename") -> bytes:
    head = b"diff --git a/%s b/%s\nsimilarity index 100%%\n" % (old, new)
    return head + b"%s from %s\n%s to %s\n" % (kind, old, kind, new)


# What git makes of each is another file, or another kind of file, than its header seems to say.
MISREAD = {
    "cut at a NUL": _adding(b"conftest.py\0notes.txt", ALL_PASS),
    "cut at a quoted NUL": _adding(rb'"conftest.py\000.txt"', ALL_PASS),
    "renamed, cut at a NUL": _moving(b"old.txt", b"conftest.py\0.txt"),
    "renamed, cut at a line's end": _moving(b"old.txt", b"conftest.py\r.txt"),
    "copied, cut at a line's end": _moving(b"old.txt", b"conftest.py\r.txt", b"copy"),
    "two slashes": _moving(b"old.txt", b".github//workflows/x.yml"),
    "an escape that is none": _adding(rb'"con\qftest.py"', ALL_PASS),
    "a byte beyond 255": _adding(rb'"con\577.py"', ALL_PASS),
    "two modes": _adding(b"link", "/etc/passwd\n", header=b"new file mode 100644\nnew mode 120000\n"),
}


def test_a_patch_that_git_reads_otherwise_cannot_be_read(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", {"old.txt": "x\n"})
    for name, patch in MISREAD.items():
        with pytest.raises(PatchUnreadable):
            parse_patch(patch)
        # Control: git takes it.
        applied = subprocess.run(
            ("git", "apply", "--check", "--cached", "-"), cwd=repository, input=patch, capture_output=True
        )
        assert not applied.returncode, (name, applied.stderr)


class Odd(World):
    """Its patches say more than names and lines of files."""

    more = b""
    new_mode = b"100644"

    def patch(self, files: Mapping[str, str | None]) -> bytes:
        plain = super().patch(files)
        return plain.replace(b"new file mode 100644", b"new file mode " + self.new_mode) + self.more


async def not_verified(world: World, files: Mapping[str, str], **more: object) -> CheckReport:
    """A report that does not verify; the control is a fleet that does not look for what decides about tests."""
    report = await world.check(files, **more)
    assert report.verdict is not Verdict.VERIFIED, report.reasons

    async def no_rules(*_: object) -> list[str]:
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "changed_rules", no_rules)
        control = await world.check(files, name="control", **more)
    assert control.verdict is Verdict.VERIFIED, control.reasons
    return report


@pytest.mark.slow  # quick: unit/test_evidence_policy.py
@pytest.mark.parametrize(
    ("old", "new"),
    [("forge.py", "fleet_pytest.py"), ("conftest.py", "notes.txt")],
    ids=["comes", "goes"],
)
async def test_what_is_moved_decides_about_tests_at_both_of_its_places(
    world: World, tmp_path: Path, old: str, new: str
) -> None:
    # Only the hook tells of `sub`, which the change breaks.
    hook = "import app\n\n\ndef pytest_runtest_call(item):\n    assert app.sub(3, 2) == 1\n"
    test = "import app\n\n\ndef test_mul():\n    assert app.mul(2, 3) == 6\n"
    hooked = {"app.py": APP, "conftest.py": hook, "tests/test_app.py": test}
    files = hooked if old == "conftest.py" else {**PYTEST_FILES, "forge.py": SEALED}
    moving = Odd(tmp_path, files, home=world.root / "home")
    moving.more = _moving(old.encode(), new.encode())
    await not_verified(moving, {"app.py": MENDED.replace("a - b", "b - a")})


@pytest.mark.slow  # quick: unit/test_evidence_policy.py
async def test_a_script_that_a_check_starts_is_the_untouched_commits(tmp_path: Path) -> None:
    """And the scripts behind it."""
    proof = 'cd /workspace && python3 -c "import app; assert app.mul(2, 3) == 6"\n'
    scripts = {"check.sh": "sh tools/all.sh\n", "tools/all.sh": "cd tools && sh run.sh\n", "tools/run.sh": proof}
    world = World(tmp_path, {**PYTEST_FILES, **scripts})
    checks, forged = (CheckSpec(name="script", command="sh check.sh"),), {"tools/run.sh": "true\n"}
    await not_verified(world, {"app.py": BROKEN, **forged}, checks=checks)
    mended = await world.check({"app.py": MENDED, **forged}, checks=checks, name="mended")
    assert mended.verdict is Verdict.VERIFIED, mended.reasons


# In the place of the plug-in it has the key of the seals.
SEALED = f"""
import hashlib, hmac, json, os
key = os.read(int(os.environ["FLEET_TEST_KEY_FD"]), 200)
with open(os.environ["FLEET_TEST_EVENTS"], "ab") as events:
    for name in ("{MUL}", "{SUB}", "tests/test_app.py::test_add"):
        for event in ({{"e": "start", "id": name}}, {{"e": "end", "id": name, "o": "passed", "ms": 1}}):
            text = json.dumps(event).encode()
            events.write(text + b"\\t" + hmac.new(key, text, hashlib.sha256).hexdigest().encode() + b"\\n")
    text = json.dumps({{"e": "finish", "code": 0}}).encode()
    events.write(text + b"\\t" + hmac.new(key, text, hashlib.sha256).hexdigest().encode() + b"\\n")
print("3 passed in 0.01s", flush=True)
os._exit(0)
"""


@pytest.mark.slow  # quick: source that writes events of its own, unit/test_evidence_policy.py
@pytest.mark.parametrize(
    ("files", "environment"),
    [
        ({"fleet_pytest.py": SEALED}, None),
        ({"lib/src/pluggy.py": SEALED}, {"variables": {"PYTHONPATH": "/workspace/lib/src:other"}}),
        (
            {"tools/bin/python3": "#!/bin/sh\nPATH=${PATH#*:} exec python3 /workspace/forge.py\n", "forge.py": SEALED},
            {"path": ("tools/bin",)},
        ),
    ],
    ids=["plug-in", "library", "path of programs"],
)
async def test_what_poses_as_the_plug_in_or_the_runner(
    world: Odd, tmp_path: Path, files: Mapping[str, str], environment: Mapping[str, Any] | None
) -> None:
    posing = world
    if environment is not None:
        posing = Odd(tmp_path, {**PYTEST_FILES, "src/own.py": "", "tools/bin/own": ""}, home=world.root / "home")
        posing.new_mode, posing.task = b"100755", replace(posing.task, environment=EnvironmentSpec(**environment))
    await not_verified(posing, {"app.py": BROKEN, **files})


@pytest.mark.slow  # quick: unit/test_evidence_policy.py
async def test_a_link_that_poses_as_what_runs_the_tests(world: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    name, forged = "fleet_pytest.py", "forged/__init__.py"
    head = f"diff --git a/{name} b/{name}\nnew file mode 120000\n--- /dev/null\n+++ b/{name}\n"
    link = f"{head}@@ -0,0 +1 @@\n+{forged}\n\\ No newline at end of file\n".encode()
    monkeypatch.setattr(world, "more", link)
    await not_verified(world, {"app.py": BROKEN, forged: SEALED})


@pytest.mark.slow  # quick: source that writes events of its own
async def test_the_key_is_not_in_a_memory_that_tests_can_read(world: World) -> None:
    read = """
import os, re
def keys(pid):
    try:
        maps = open(f"/proc/{pid}/maps").read().splitlines()
        memory = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        return None
    found = set()
    for line in maps:
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        try:
            memory.seek(first)
            found |= set(re.findall(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", memory.read(last - first)))
        except (OSError, ValueError, OverflowError):
            continue
    return found
found = keys(os.getppid())
own = keys(os.getpid())
"""
    # Control: such memory can be read where nobody hid it.
    report = await world.check({"app.py": APP.replace("return a - b", "raise ValueError((found, type(own)))") + read})
    assert "ValueError: (None, <class 'set'>)" in named(report, "tests").output


@pytest.mark.slow  # quick: test_what_a_hook_hides_is_found_by_the_rules_from_before
async def test_a_patch_that_needs_its_own_rules_is_not_verified(world: World) -> None:
    fixture = "import pytest\n\n\n@pytest.fixture\ndef six():\n    return 6\n"
    test = "import app\n\n\ndef test_six(six):\n    assert app.mul(2, 3) == six\n"
    report = await world.check({"app.py": MENDED, "conftest.py": fixture, "tests/test_six.py": test})
    # What the untouched commit's own test shows without it still counts.
    assert report.verdict is Verdict.VERIFIED
    assert named(report, "tests").shown == (MUL,)
    alone = await world.check(
        {
            "app.py": APP.replace("def add(", "def six():\n    return 6\n\n\ndef add("),
            "conftest.py": fixture,
            "tests/test_six.py": "import app\n\n\ndef test_six(six):\n    assert app.six() == six\n",
        },
        name="alone",
    )
    assert alone.verdict is Verdict.UNVERIFIED
