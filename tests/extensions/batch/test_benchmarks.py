"""Benchmarks through `fleet batch`: formats are read, tests run in the sandbox, what is hostile stays out."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from tests.container_images import MadeImage, entry, of_this_machine
from tests.extensions.batch.desk import Desk
from tests.fleet_command import WARM
from tests.scripted_fleet import FAILED, PROVEN, ScriptedRun

ANSWER = b"""\
diff --git a/answer.txt b/answer.txt
new file mode 100644
--- /dev/null
+++ b/answer.txt
@@ -0,0 +1 @@
+42
diff --git a/logs/verifier/reward.txt b/logs/verifier/reward.txt
new file mode 100644
--- /dev/null
+++ b/logs/verifier/reward.txt
@@ -0,0 +1 @@
+1
"""
REWARD = "/logs/verifier/reward.txt"
DOCKERFILE = (
    "FROM debian:12\nENV ANSWER=42 LEVEL='a b'\nWORKDIR /srv\nWORKDIR app\nCOPY --chown=1:1 . .\nCMD [\"sh\"]\n"
)


def make_task(folder: Path, test: str, toml: str = "", files: Mapping[str, str] | None = None) -> Path:
    """A Harbor task whose instruction is to answer."""
    write_files(
        folder,
        {
            "task.toml": toml or "[environment]\nnetwork_mode = 'no-network'\n",
            "instruction.md": "Write 42 to answer.txt",
            "environment/question.txt": "6 * 7\n",
            "environment/sub/deep.txt": "",
            "tests/test.sh": f"#!/bin/bash\n{test}\n",
            "solution/solve.sh": "echo 42 > answer.txt",
            **(files or {}),
        },
    )
    return folder


def solved(then: str = "") -> str:
    return f'[ "$(cat answer.txt question.txt)" = "42\n6 * 7" ] {then} && echo 1 > {REWARD} || echo 0 > {REWARD}'


# What tests/test.sh does, how task.toml has it, what comes of it, and what is said.
VERIFIERS: Mapping[str, tuple[str, str, bool | None, str]] = {
    "right": (solved(), "", True, ""),
    "wrong": (f"cat answer.txt; echo 0.5 > {REWARD}", "", False, "42"),
    "json-first": (
        f"echo 0 > {REWARD}; echo '{{\"reward\": 1, \"style\": 0.2}}' > /logs/verifier/reward.json", "", True, "",
    ),
    # Only what agents left at the places that the task names reaches a verifier's own environment.
    "separate": (
        solved("&& [ ! -e logs ]"),
        "artifacts = ['/workspace/answer.txt', 'nothing']\n[verifier]\nenvironment_mode = 'separate'", True, "",
    ),
    "limits": (
        f'[ "$LEVEL" = "a b" ] && [ "$GIVEN$OTHER" = "xy" ] && [ "$PWD" = /srv/app ] && echo 1 > {REWARD}',
        "[verifier.env]\nGIVEN = '${NAMED}'\nOTHER = '${ABSENT:-y}'\n"
        "[environment]\nmemory_mb = 64\n[environment.env]\nLEVEL = 'a b'",
        True, "",
    ),
    "late": ("sleep 30", "[verifier]\ntimeout_sec = 0.3", False, "timed out"),
    "unset": (solved(), "[verifier.env]\nKEY = '${HOME}'", None, "needs the variable HOME"),
    "silent": ("cd ..", "", None, "no reward"),
    "infinite": (f"echo inf > {REWARD}", "", None, "no finite number"),
    "pipe": (f"mkfifo {REWARD}", "", None, "fifo"),
    "linked": (f"ln -s /etc/passwd {REWARD}", "", None, "reward.txt"),
    "curious": (
        '[ ! -e HERE/set ] && [ -z "$FLEET_TOKEN$FLEET_HOME" ] && ! find / -name "set.results*" 2>/dev/null | grep . '
        f"&& ! touch /usr/mine && [ ! -e /solution ] && echo 1 > {REWARD}",
        "", True, "",
    ),
}  # fmt: skip


async def test_rewards_are_what_a_verifier_wrote_apart_from_the_agents(desk: Desk) -> None:
    desk.service.fleet.default = ScriptedRun(patch=ANSWER, checks=(PROVEN,))
    folder = desk.directory / "set"
    for name, (test, toml, _, _) in VERIFIERS.items():
        files = {"environment/Dockerfile": DOCKERFILE} if name == "limits" else {}
        make_task(folder / name, test.replace("HERE", str(desk.directory)), toml, files)
    words = ("set", "--evaluate", "--agents", "1", "--verifier-env", "NAMED=x", "--json", "--parallel", "8")
    async with desk.service.running():
        ran = await desk.shell.fleet("batch", *words, "--stagger", "0", "--server", desk.service.address)
    assert len(desk.service.fleet.begun) == len(VERIFIERS), ran.err
    *_, summary = [json.loads(line) for line in ran.out.splitlines()]
    rows = {row["instance_id"]: row for row in desk.rows()}
    assert {name: (rows[name]["resolved"], rows[name]["best_resolved"]) for name in rows} == {
        name: (resolved, resolved) for name, (_, _, resolved, _) in VERIFIERS.items()
    }
    for name, (*_, told) in VERIFIERS.items():
        assert told in rows[name]["evaluation"], rows[name]["evaluation"]
    assert rows["json-first"]["rewards"] == {"reward": 1, "style": 0.2}
    assert rows["limits"]["notes"] == [
        "FROM debian:12: the tools of this machine in its place",
        "CMD of the Dockerfile have no effect",
        "network_mode public: only what --network opens",
    ]
    counts = {True: "passed", False: "failed", None: "no result"}
    results = [resolved for *_, resolved, _ in VERIFIERS.values()]
    assert summary["agreement"]["verified"] == {name: results.count(value) for value, name in counts.items()}
    assert summary["agreement"]["refuted"] == {"passed": 0, "failed": 0, "no result": 0}
    kept = desk.directory / "set.evaluation"
    result = json.loads((kept / "json-first/result.json").read_text())
    assert result["verifier_result"] == {"rewards": {"reward": 1.0, "style": 0.2}}
    assert (
        json.loads((kept / "infinite/result.json").read_text())["exception_info"]["exception_type"] == "VerifierError"
    )
    assert "42" in (kept / "wrong/test_output.txt").read_text() and not (kept / "wrong/tests").exists()
    # Agents are shown the environment and the instruction, and nothing of tests or solution.
    task = next(one.task for one in desk.service.fleet.begun if one.task.task_id == "batch-set-limits")
    assert git(Path(task.repo.location), "ls-files").split() == ["Dockerfile", "question.txt", "sub/deep.txt"]
    assert dict(task.environment.variables) == {"ANSWER": "42", "LEVEL": "a b"}
    assert "/srv/app is your workspace" in task.context and task.description == "Write 42 to answer.txt"


# What is wrong with a task folder, or what it needs.
FOLDERS: Mapping[str, tuple[str, Mapping[str, str], str]] = {
    "version": ("schema_version = '2.0'", {}, "schema_version"),
    "deep": ("a = " + "[" * 50_000, {}, "task.toml"),
    "binary": ("\x00", {}, "task.toml"),
    "climbing": ("[task]\nname = '../../etc'", {}, "task.name"),
    "never": ("[verifier]\ntimeout_sec = inf", {}, "verifier.timeout_sec"),
    "image": ("[environment]\ndocker_image = 'org/app:1'", {}, "images of docker.io/org/app are not accepted"),
    "built": ("", {"environment/Dockerfile": "FROM a\nRUN make \\\n all"}, "'RUN make   all'"),
    "stages": ("", {"environment/Dockerfile": "FROM a AS b\nFROM c\nCOPY --from=b /x /y"}, "an image"),
    "composed": ("", {"environment/docker-compose.yaml": "services: {}"}, "several containers"),
    "gpu": ("[environment]\ngpus = 1", {}, "GPU"),
    "outside": ("", {"environment/Dockerfile": "FROM a\nWORKDIR /app\nCOPY ../secret /app/"}, "outside of environment"),
    "elsewhere": ("", {"environment/Dockerfile": "FROM a\nWORKDIR /app\nCOPY x /data/"}, "outside of its directory"),
    "system": ("", {"environment/Dockerfile": "FROM a\nWORKDIR /usr/bin\nCOPY . ."}, "/usr/bin"),
    "rising": ("[environment]\nworkdir = '/app/../etc'", {}, "/app/../etc"),
    "loader": ("[environment.env]\nLD_PRELOAD = '/x.so'", {}, "LD_PRELOAD"),
    "secret": ("[environment.env]\nA = '${FLEET_TOKEN}'", {}, "needs the variable FLEET_TOKEN"),
    "artifact": ("artifacts = ['/etc/passwd']", {}, "artifact '/etc/passwd'"),
    "testless": ("", {}, "tests/test.sh does not exist"),
    "linked": ("", {}, "is a link"), "leading": ("", {}, "outside"), "huge": ("", {}, "MiB"), "long": ("", {}, "bytes"),
    "pipe": ("", {}, "instruction.md"),
}  # fmt: skip


async def test_a_hostile_or_needy_task_is_named_and_holds_nobody_up(desk: Desk) -> None:
    desk.service.fleet.default = ScriptedRun(patch=ANSWER, checks=(PROVEN,))
    folder = desk.directory / "set"
    (desk.directory / "secret").write_text("of the host")
    for name, (toml, files, _) in FOLDERS.items():
        make_task(folder / name, solved(), toml, files)
    make_task(folder / "good", solved())
    (folder / "linked/environment/passwd").symlink_to("/etc/passwd")
    (folder / "leading/instruction.md").unlink()
    (folder / "leading/instruction.md").symlink_to(desk.directory / "secret")
    for name, place in (("huge", "environment/huge"), ("long", "instruction.md")):
        with (folder / name / place).open("ab") as file:
            file.truncate(1 << 40)
    (folder / "pipe/instruction.md").unlink()
    os.mkfifo(folder / "pipe/instruction.md")
    (folder / "testless/tests/test.sh").unlink()
    make_task(folder / "~zwilling", solved(), "[task]\nname = 'org/good'")
    make_task(folder / "~zwilling2", solved(), "[task]\nname = 'org/good'")
    async with desk.service.running():
        ran = await desk.shell.fleet(
            "batch", "set", "--evaluate", "--agents", "1", "--json", "--stagger", "0", "--server", desk.service.address
        )
    *_, summary = [json.loads(line) for line in ran.out.splitlines()]
    rows = {row["instance_id"]: row for row in desk.rows()}
    assert sorted(rows) == ["good", "org/good", "testless"], ran.err
    assert rows["good"]["resolved"] is rows["org/good"]["resolved"] is True
    report = json.loads((desk.directory / "set.report.json").read_text())
    told = {**summary["not_run"], **{name: row["evaluation"] for name, row in rows.items()}}
    told |= {line["folder"]: line["reason"] for line in summary["bad_lines"]}
    for name, (_, _, reason) in FOLDERS.items():
        assert reason in told[name], (name, told.get(name))
    assert "already" in told["~zwilling2"]
    assert (
        report["not_run"] == summary["not_run"]
        and "org/app are not accepted" in (desk.directory / "set.report.md").read_text()
    )
    assert not list(desk.directory.glob("set.repositories/.*"))


SCRIPT = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout HEAD -- test.txt
: '>>>>> Start Test Output'
sh run_tests.sh
: '>>>>> End Test Output'
git checkout HEAD -- test.txt
"""
RUN_TESTS = """\
grep -q 42 answer.txt 2>/dev/null && echo "PASSED t.py::test_answer" || echo "FAILED t.py::test_answer - no"
echo "PASSED t.py::test_old[a b]"
"""
FAULT = """\
diff --git a/seven.py b/seven.py
--- a/seven.py
+++ b/seven.py
@@ -1 +1 @@
-SEVEN = 7
+SEVEN = 8
"""


async def test_records_run_as_their_benchmarks_mean_them(desk: Desk) -> None:
    desk.clone.rmdir()
    files = {"run_tests.sh": RUN_TESTS, "test.txt": "", "seven.py": "SEVEN = 7\n", "cheat.sh": "exit 1"}
    where = make_repository(desk.clone, files)
    base = {
        "repo": "acme/widgets", "base_commit": git(where, "rev-parse", "HEAD"), "problem_statement": "Answer",
        "FAIL_TO_PASS": ["t.py::test_answer"], "PASS_TO_PASS": '["t.py::test_old[a"]',
        "eval_script": SCRIPT, "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail",
    }  # fmt: skip
    lying = SCRIPT.replace("sh run_tests.sh", "sh run_tests.sh; sh cheat.sh")
    logs = {
        "django": "t.py::test_answer ... ok\\nt.py::test_old[a b] ... FAIL",
        "gotest": "--- PASS: t.py::test_answer (0.00s)\\n--- FAIL: t.py::test_old[a (0.01s)",
    }
    printed = {name: SCRIPT.replace("sh run_tests.sh", f"printf '%b\\n' '{text}'") for name, text in logs.items()}
    records = [
        base | {"instance_id": "right"},
        *(
            base | {"instance_id": name, "log_parser": f"parse_log_{name}", "eval_script": text, "PASS_TO_PASS": []}
            for name, text in printed.items()
        ),
        base | {"instance_id": "regressed", "PASS_TO_PASS": ["t.py::gone"]},
        base | {"instance_id": "lying", "eval_script": lying},
        base | {"instance_id": "unknown", "log_parser": "parse_log_karma"},
        base | {"instance_id": "pictured", "image": "org/widgets:1"},
        {
            "instance_id": "smith", "repo": "acme/widgets", "base_commit": base["base_commit"], "image_name": "s/w",
            "problem_statement": "Seven is wrong", "patch": FAULT, "evaluation": "grep 8 seven.py",
        },
    ]  # fmt: skip
    desk.write(*records)
    desk.service.fleet.default = ScriptedRun(patch=ANSWER, checks=(FAILED,))
    words = ("--evaluate", "--agents", "1", "--json")
    async with desk.service.running():
        ran = await desk.fleet(
            *words, "--without-images", "--task", "smith", "--task", "right", "--predictions", "jsonl"
        )
        assert ran.code == 1
        # Nobody won: the best candidate, which was refused, is tried all the same.
        rows = {row["instance_id"]: row for row in desk.rows()}
        refused = {name: (row["verdict"], row["resolved"], row["best_resolved"]) for name, row in rows.items()}
        assert refused == dict.fromkeys(("smith", "right"), ("refuted", False, True))
        predictions = (desk.directory / "set.all_preds.jsonl").read_text().splitlines()
        assert [json.loads(line)["model_patch"] for line in predictions] == ["", ""]
        desk.service.fleet.default = ScriptedRun(patch=ANSWER, checks=(PROVEN,))
        ran = await desk.fleet(*words, "--name", "two", "--predictions", "dict")
    assert ran.code == 0, ran.err
    rows = {row["instance_id"]: row for row in desk.rows("two.results.jsonl")}
    assert {name: row["resolved"] for name, row in rows.items() if row["status"] == "completed"} == {
        "right": True, "django": True, "gotest": True, "regressed": False, "lying": False,
        "unknown": None, "pictured": None, "smith": None,
    }  # fmt: skip
    assert "log parser parse_log_karma" in rows["unknown"]["evaluation"]
    for name in ("pictured", "smith"):
        assert rows[name]["evaluation"].startswith("not run: ") and rows[name]["resolved"] is None
        assert "are not accepted" in rows[name]["evaluation"]
    kept = json.loads((desk.directory / "two.evaluation/right/report.json").read_text())["right"]
    assert kept["resolved"] is True
    assert kept["tests_status"]["FAIL_TO_PASS"] == {"success": ["t.py::test_answer"], "failure": []}
    sums = json.loads((desk.directory / "two.report.summary.json").read_text())
    assert (sums["total_instances"], sums["resolved_ids"]) == (8, ["django", "gotest", "right"])
    assert (sums["error_ids"], sums["incomplete_ids"]) == (["pictured", "smith", "unknown"], [])
    assert set(json.loads((desk.directory / "two.preds.json").read_text())) == set(rows)
    # The fault is in the only commit there is.
    made = desk.directory / "two.repositories/smith"
    assert made in {Path(one.task.repo.location) for one in desk.service.fleet.begun}
    assert git(made, "show", "HEAD:seven.py") == "SEVEN = 8" and git(made, "rev-list", "--count", "HEAD") == "1"


@pytest.mark.slow  # quick: test_records_run_as_their_benchmarks_mean_them, which is told that an image is missing
async def test_what_names_an_image_is_tried_in_it(desk: Desk) -> None:
    """With the image's own files, what was built among them too; of Harbor's tasks its directory is the repository."""
    files = ("run_tests.sh", RUN_TESTS), ("test.txt", ""), ("seven.py", "SEVEN = 7\n"), ("built.o", "by the image")
    layer = of_this_machine("bash", "cat", "grep", "cp", files=[entry(f"testbed/{name}", text) for name, text in files])
    name = MadeImage(layers=[layer], config={"WorkingDir": "/testbed", "Env": ["PATH=/bin", "OF=image"]}).layout(
        desk.directory / "images/layout"
    )
    desk.clone.rmdir()
    make_repository(desk.clone, dict(files[:3]))
    tried = 'sh run_tests.sh; [ "$OF" ] && cat built.o && echo "PASSED t.py::test_built"'
    script = SCRIPT.replace("sh run_tests.sh", tried).replace("git checkout HEAD -- test.txt\n", "")
    base = {
        "repo": "acme/widgets", "problem_statement": "Answer", "image": name, "eval_script": script,
        "FAIL_TO_PASS": ["t.py::test_answer", "t.py::test_built"], "log_parser": "parse_log_pytest",
    }  # fmt: skip
    desk.write(
        base | {"instance_id": "right"},
        base | {"instance_id": "wrong", "PASS_TO_PASS": ["t.py::gone"]},
        base | {"instance_id": "unknown", "image": name.replace("latest", "absent")},
    )
    task = f"[environment]\ndocker_image = '{name}'\n"
    tested = '[ "$PWD" = /testbed ] && [ "$(cat answer.txt built.o)" = "42\nby the image" ] && echo 1'
    make_task(desk.directory / "harbor/one", f"{tested} > {REWARD}", task)
    desk.service.fleet.default = ScriptedRun(patch=ANSWER, checks=(PROVEN,))
    words = ("--evaluate", "--agents", "1", "--json", "--server")
    async with desk.service.running():
        for place in ("set.jsonl", "harbor"):
            command = ("batch", place, "--repo-root", "clones", "--stagger", "0", *words, desk.service.address)
            ran = await desk.shell.fleet(*command, FLEET_IMAGE_FOLDERS=str(desk.directory / "images"))
            assert ran.code == 0, ran.err
    rows = {row["instance_id"]: row for row in (*desk.rows(), *desk.rows("harbor.results.jsonl"))}
    told = {one: row["evaluation"] for one, row in rows.items()}
    assert {one: row["resolved"] for one, row in rows.items()} == {
        "right": True, "wrong": False, "unknown": None, "one": True,
    }, told  # fmt: skip
    assert "not run: " in told["unknown"]
    (made,) = [
        Path(one.task.repo.location) for one in desk.service.fleet.begun if one.task.task_id == "batch-harbor-one"
    ]
    assert git(made, "ls-files").split() == ["built.o", "run_tests.sh", "seven.py", "test.txt"]


class LocalEnvironment:
    """What a Harbor agent is given, with a directory in the place of a container."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def exec(self, command: str) -> SimpleNamespace:
        ended = subprocess.run(["sh", "-c", command], cwd=self.directory, capture_output=True, text=True, check=False)
        return SimpleNamespace(stdout=ended.stdout, stderr=ended.stderr, return_code=ended.returncode)

    async def download_dir(self, source_dir: str, target_dir: Path) -> None:
        shutil.copytree(source_dir, target_dir, symlinks=True, dirs_exist_ok=True)

    async def upload_file(self, source_path: Path, target_path: str) -> None:
        shutil.copyfile(source_path, target_path)


CHANGED = b"""\
diff --git a/a b.sh b/a b.sh
new file mode 100755
--- /dev/null
+++ b/a b.sh
@@ -0,0 +1 @@
+echo 42
diff --git a/old.txt b/old.txt
deleted file mode 100644
--- a/old.txt
+++ /dev/null
@@ -1 +0,0 @@
-old
diff --git a/sub/link b/sub/link
new file mode 120000
--- /dev/null
+++ b/sub/link
@@ -0,0 +1 @@
+../a b.sh
\\ No newline at end of file
"""


async def test_harbor_can_run_the_fleet_as_an_agent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("harbor_agent", "examples/harbor_agent.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    app = desk.directory / "app"
    # Settings of the environment's own git must not be ours.
    write_files(
        app, {"old.txt": "old\n", ".git/config": "[core]\n\tfsmonitor = touch /tmp/ran\n", "kept.txt": "kept\n"}
    )
    program = (sys.executable, "-I", "-S", str(WARM), desk.shell.warm)
    monkeypatch.setenv("FLEET_PROGRAM", shlex.join(program))
    for name, value in {**desk.shell.variables, "FLEET_TOKEN": "nobody-asks"}.items():
        monkeypatch.setenv(name, value)
    desk.service.fleet.default = ScriptedRun(patch=CHANGED, checks=(PROVEN,))
    context = SimpleNamespace()
    async with desk.service.running():
        agent = module.FleetAgent(options=f"--agents 1 --server {desk.service.address}")
        await agent.setup(LocalEnvironment(app))
        await agent.run("Answer, --please", LocalEnvironment(app), context)
        assert sorted(path.name for path in app.iterdir()) == [".git", "a b.sh", "kept.txt", "sub"]
        assert subprocess.check_output(["sh", app / "sub/link"], text=True) == "42\n"
        (begun,) = desk.service.fleet.begun
        assert begun.task.description.endswith("Answer, --please") and str(app) in begun.task.description
        assert context.metadata["verdict"] == "verified" and context.n_input_tokens == 100
        # What the fleet refuses is an error of the trial; a task that nobody solved changes nothing.
        with pytest.raises(RuntimeError, match="fleet run ended with 2"):
            await module.FleetAgent(options=f"--role COOK --server {desk.service.address}").run(
                "Answer", LocalEnvironment(app), context
            )
        desk.service.fleet.default = ScriptedRun(patch=ANSWER, checks=(FAILED,))
        await agent.run("Answer", LocalEnvironment(app), context)
        assert context.metadata["verdict"] == "refuted" and not (app / "answer.txt").exists()
    assert (agent.name(), agent.version()) == ("swe-ai-fleet", version("swe-ai-fleet"))
