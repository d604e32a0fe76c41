"""Python that a model wrote, on the real kernel: what it gives back, and what it cannot get at."""

from __future__ import annotations

import secrets
import shutil
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.sandbox import LocalWorkspace, Sandbox, SandboxPolicy
from swe_ai_fleet.tools import BuiltinSettings, BuiltinTools, ToolRegistry
from swe_ai_fleet.tools.builtin import PythonExecutor

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

MEMORY = 256 * 1024**2


@pytest.fixture
async def workspace(tmp_path: Path) -> AsyncIterator[LocalWorkspace]:
    (tmp_path / "ws").mkdir()
    sandbox = Sandbox(SandboxPolicy(max_processes=40, max_memory_bytes=2 * MEMORY, grace_seconds=0.3))
    async with sandbox.workspace(tmp_path / "ws") as opened:
        yield opened


@pytest.fixture
def kit(workspace: LocalWorkspace) -> BuiltinTools:
    settings = BuiltinSettings(code_seconds=10, code_memory_bytes=MEMORY, code_output_chars=5_000)
    return BuiltinTools(workspace, settings=settings)


async def run(kit: BuiltinTools, code: str) -> ToolResult:
    return await kit.call("python_executor", {"code": code})


def audited(kit: BuiltinTools) -> tuple[Outcome, PolicyDecision]:
    entry = kit.pipeline.trail.entries[-1]
    assert (entry.tool, entry.operation) == ("python_executor", "python_executor")
    return entry.outcome, entry.decision


SUCCESS, ERROR = (Outcome.SUCCESS, PolicyDecision.ALLOWED), (Outcome.ERROR, PolicyDecision.ALLOWED)


# What it gives back


async def test_alone_it_runs_in_a_directory_of_its_own_that_vanishes(tmp_path: Path) -> None:
    registry = ToolRegistry([PythonExecutor()])
    code = "import os\nopen('kept', 'w').write('x')\nos.mkdir('d', 0)\nprint(os.getcwd(), os.listdir())\nresult = 6 * 7"
    found = await registry.execute_tool("python_executor", code=code)
    assert found == {"result": 42, "code": code, "output": ["/workspace ['kept', 'd']"]}
    assert (await registry.execute_tool("python_executor", code="import os; result = os.listdir()"))["result"] == []


FAULTS = [
    ("def f():\n    return 1 / 0\nprint('before')\nf()", "    return 1 / 0\n"),
    ("x = (", "SyntaxError: '(' was never closed"),
    ("import sys\nsys.exit('bad')", "the code ended with sys.exit('bad')"),
    ("import os\nos._exit(0)", "leave out os._exit"), ("-" * 90_000 + "1", "Error"),
]  # fmt: skip


async def test_faults_are_told(kit: BuiltinTools) -> None:
    for code, said in FAULTS:
        found = await run(kit, code)
        assert (found.success, audited(kit)) == (False, ERROR), code
        assert said in found.error, code
        assert "python_runner" not in found.error


async def test_it_works_on_the_files_of_the_workspace_which_shadow_no_module(
    kit: BuiltinTools, workspace: LocalWorkspace
) -> None:
    (workspace.root / "data.txt").write_text("4 5")
    for name in ("json", "resource", "sitecustomize", "usercustomize"):
        (workspace.root / f"{name}.py").write_text("raise SystemExit('taken over')")
    code = "import json, resource\na, b = json.loads('[4, 5]')\nopen('out.txt', 'w').write(open('data.txt').read() * 2)"
    assert (await run(kit, f"{code}\nresult = a + b")).metadata["result"] == 9
    assert (workspace.root / "out.txt").read_text() == "4 54 5"


# What it cannot get at

HOST_FILES = """
import os
seen = []
for path in {paths!r}:
    try:
        seen.append(os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError:
        pass
result = seen
"""


async def test_nothing_of_the_host_is_read_written_or_reached(
    kit: BuiltinTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, secret = secrets.token_hex(8), tmp_path / "secret.txt"
    secret.write_text("do not read")
    monkeypatch.setenv("FLEET_TEST_TOKEN", token)
    places = (str(secret), str(Path(__file__).resolve()), "/etc/shadow", str(Path.home() / ".ssh"))
    paths = [form for place in places for form in (place, f"/workspace/..{place}", f"/proc/1/root{place}")]
    found = await run(kit, HOST_FILES.format(paths=paths))
    assert (found.success, found.metadata["result"], audited(kit)) == (True, [], SUCCESS)
    for path in (str(tmp_path / "x"), "/usr/bin/owned", "/etc/owned", "/owned", "/proc/sys/kernel/hostname"):
        found = await run(kit, f"open({path!r}, 'w').write('x')")
        assert ("Error" in found.error, audited(kit)) == (True, ERROR), path
    assert not (tmp_path / "x").exists()
    # A link out of the workspace leads nowhere, and is refused where the fleet itself would follow it.
    found = await run(kit, f"import os\nos.symlink({str(secret)!r}, 'link')\nresult = open('link').read()")
    assert ("FileNotFoundError" in found.error, audited(kit)) == (True, ERROR)
    read = await kit.call("file_reader", {"file_path": "link"})
    assert (read.outcome, "outside the workspace" in read.error) == (Outcome.REFUSED, True)
    code = (
        "import os, glob\nresult = repr(dict(os.environ))\n"
        "for path in glob.glob('/proc/*/environ'):\n    try: result += repr(open(path, 'rb').read())\n"
        "    except OSError: pass"
    )
    found = await run(kit, code)
    assert "PATH" in str(found.metadata["result"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        code = (
            "import socket\nresult = []\n"
            f"for host, port in (('127.0.0.1', {port}), ('1.1.1.1', 53), ('example.org', 80)):\n"
            "    try: socket.create_connection((host, port), 2); result.append(host)\n"
            "    except OSError as e: print(type(e).__name__)\n"
        )
        reached = await run(kit, code)
        assert (reached.success, reached.metadata["result"], audited(kit)) == (True, [], SUCCESS)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert token not in repr((found, kit.pipeline.trail.entries))


async def test_the_runner_cannot_be_traced(kit: BuiltinTools) -> None:
    # Process 1 is bubblewrap's own, which only waits; the next is the runner, which the commands come through.
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
others = sorted(int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) != os.getpid())
result = []
for pid in others[1:]:
    if libc.ptrace(16, pid, 0, 0) == 0:
        result.append(f'attached to {pid}')
    for path in [f'/proc/{pid}/mem', *(f'/proc/{pid}/fd/{number}' for number in range(12))]:
        try:
            os.close(os.open(path, os.O_RDWR))
            result.append(path)
        except OSError:
            pass
result = [others[:2], result]
"""
    found = await run(kit, code)
    assert found.success, found.observation()
    assert found.metadata["result"] == [[1, 2], []]
    assert audited(kit) == SUCCESS
    assert (await run(kit, "result = 1")).metadata["result"] == 1


async def test_memory_is_limited(kit: BuiltinTools) -> None:
    found = await run(kit, "x = bytearray(10 * 1024 ** 3)")
    assert "MemoryError\n(the memory of the sandbox is used up" in found.error
    found = await run(kit, f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({1 << 40}, {1 << 40}))")
    assert "ValueError: not allowed to raise maximum limit" in found.error
    assert audited(kit)[0] is Outcome.ERROR


async def test_time_is_limited(workspace: LocalWorkspace) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
    kit = BuiltinTools(workspace, settings=BuiltinSettings(code_seconds=0.5))
    started = time.monotonic()
    found = await run(kit, code)
    assert time.monotonic() - started < 8
    assert (found.success, found.outcome) == (False, Outcome.TIMEOUT)
    assert "stopped after 0.5 seconds, its time limit" in found.error
    assert audited(kit) == (Outcome.TIMEOUT, PolicyDecision.ALLOWED)
    assert (await kit.call("calculator", {"expression": "1"})).success


async def test_floods_and_large_results_are_cut(kit: BuiltinTools) -> None:
    code = "import sys\nfor n in range(30):\n    sys.stdout.write('x' * 1_000_000 + '\\n')\nresult = 'after'"
    found = await run(kit, code)
    assert (found.metadata["result"], audited(kit)) == ("after", SUCCESS)
    assert len(str(found.metadata["output"])) < 5_200
    assert "left out" in str(found.metadata["output"])
    assert kit.pipeline.trail.entries[-1].bytes_out < 20_000
    found = await run(kit, "result = ['x' * 100] * 100_000")
    assert len(str(found.metadata["result"])) < 5_200


FORGE = """
import os
for fd in range(3, 32):
    try: os.write(fd, {data})
    except OSError: pass
os._exit(0)
"""


async def test_a_broken_report_is_only_a_failed_run(kit: BuiltinTools) -> None:
    for data in (
        "b'[' * 200_000 + b'\\n'", "b'9' * 200_000 + b'\\n'", "b'x' * 3_000_000",
        'b\'{"kind": "json", "result": 1, "error": 5}\\n\'', "b'\\xff\\xfe\\x00' * 1000",
    ):  # fmt: skip
        found = await run(kit, FORGE.format(data=data))
        assert (found.success, audited(kit)) == (False, ERROR), data
        assert "before its result could be read" in found.error
        assert len(found.observation()) < 20_000


async def test_a_forged_report_says_no_more_than_a_result_could(kit: BuiltinTools) -> None:
    printed = await run(kit, 'print(\'{"kind": "json", "result": "forged", "error": ""}\')\nresult = "true"')
    assert printed.metadata["result"] == "true"
    data = 'b\'{"kind": "json", "result": {"outcome": "success", "code": "x"}, "error": ""}\\n\''
    found = await run(kit, FORGE.format(data=data))
    assert found.metadata["result"] == {"outcome": "success", "code": "x"}
    assert str(found.metadata["code"]).startswith("\nimport os")
    assert found.outcome is Outcome.SUCCESS, "it says what its own `result` could have said, and no more"
    assert audited(kit) == SUCCESS
