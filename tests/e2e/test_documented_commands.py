"""The documents' own words: what a reader would type or write is run as it stands, against one real fleet.

`tests/documented.py` says which block is run here and which by another test.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.documented import HERE, LIBRARY, blocks, run_by, run_python
from tests.fleet_command import Ran, ran
from tests.scripts import HELLO, HELLO_FILES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
# What stands for something of the reader's own (an execution, a server, a directory), and what it is here.
STANDS_FOR: Mapping[str, Mapping[str, str]] = {
    "docs/chat.md": {"fleet up": ": fleet up"},
    "docs/http.md": {"~/.local/state/swe-ai-fleet": "{FLEET_HOME}", "/srv/app": "{PWD}", "greet-1": "{TASK_ID}-again"},
    "docs/learning.md": {"TASK": "{TASK_ID}"},
    "docs/models.md": {
        "examples/tour": str(ROOT / "examples/tour"),
        "~/tour": "{PWD}/tour",
        ".venv/bin/python": "timeout --preserve-status 5 python",
        "--port 8001": "--port 0",
    },
    "docs/plan-sessions.md": {"fleet up": ": fleet up", "plan-7": "plan-{TASK_ID}"},
    "docs/recordings.md": {
        " ID": " {ID}",
        "agent-dev-2": "agent-dev-1",
        "qwen3-8b": "scripted",
        "prompt.txt": "README.md",
    },
    "docs/uploads.md": {
        "fleet.example.org:50055": "{SERVER}",
        "http://127.0.0.1:8000": "{HTTP}",
        "Add a greeting": HELLO,
    },
}
PRINTED: Mapping[tuple[str, int], str] = {
    ("docs/access.md", 0): "ada",
    ("docs/context.md", 2): "The tests need a database.",
    ("docs/http.md", 0): "HTTP/1.1 202 Accepted",
    ("docs/models.md", 1): "http://127.0.0.1:",
    ("docs/plan-sessions.md", 0): "The rates of 2026 stand.",
    ("docs/recordings.md", 3): "as recorded",
    ("docs/tools.md", 0): "tests_run",
    ("docs/uploads.md", 1): '"upload_id"',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Somebody at a shell, in a repository of theirs, beside a fleet that runs."""

    repository: Path
    variables: Mapping[str, str]

    async def runs(self, script: str) -> Ran:
        return await ran("bash", "-euo", "pipefail", "-c", script, cwd=self.repository, **self.variables)


@pytest.fixture(scope="module")
async def reader(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """With one task done, which the documents call ID or TASK."""
    files = {**HELLO_FILES, "README.md": "# Small things\n"}
    repository = make_repository(tmp_path_factory.mktemp("reader") / "app", files)
    running, name = fleet.running, f"read-{uuid.uuid4().hex[:8]}"
    reader = Reader(
        repository=repository,
        variables={
            "FLEET_HOME": str(fleet.settings.home),
            "FLEET_MODEL_URL": fleet.settings.model_url,
            "FLEET_MODEL": fleet.settings.model,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SERVER": running.address,
            "FLEET_TOKEN": running.token,
            "TOKEN": running.token,
            "HTTP": running.http,
            "TASK_ID": name,
        },
    )
    done = await reader.runs(f"fleet run --json --repo . --agents 2 --rounds 0 --task-id {name} '{HELLO}'")
    assert done.code == 0, done.out + done.err
    digest = hashlib.sha256(json.loads(done.out)["diff"].encode()).hexdigest()
    execution_id = json.loads((await reader.runs(f"fleet show --json {name}")).out)["execution_id"]
    return replace(reader, variables={**reader.variables, "ID": execution_id, "DIGEST": digest})


@pytest.mark.parametrize(("document", "place"), run_by(HERE))
async def test_the_block_does_what_it_says(document: str, place: int, reader: Reader, tmp_path: Path) -> None:
    if any(shutil.which(program) is None for program in ("curl", "jq")):
        pytest.skip("needs curl and jq")
    _, script = blocks(document)[place]
    own = replace(reader, repository=Path(shutil.copytree(reader.repository, tmp_path / "app")))
    for word, meant in STANDS_FOR.get(document, {}).items():
        script = script.replace(word, meant.format(**reader.variables, PWD=own.repository))
    told = await own.runs(script)
    assert told.code == 0, f"{script}\n{told.out}{told.err}"
    assert PRINTED.get((document, place), "") in told.out + told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize(("document", "place"), run_by(LIBRARY))
async def test_the_library_block_runs(
    document: str, place: int, reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("FLEET_HOME", "FLEET_MODEL_URL", "FLEET_MODEL"):
        monkeypatch.setenv(name, reader.variables[name])
    monkeypatch.setattr("swe_ai_fleet.tools.ToolRegistry._default", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("# Small things\n")
    _, text = blocks(document)[place]
    for word, meant in {"/srv/app": str(reader.repository), "path/to/directory": ".", "greet-1": tmp_path.name}.items():
        text = text.replace(word, meant)
    names: dict[str, Any] = {}
    await run_python(text, names)
    assert names
