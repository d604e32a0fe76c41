"""Runs commands in a workspace for test_sandbox_attacks.py, as whatever user this process is.

`python -B sandbox_driver.py SOURCE`, the order as JSON on standard input, the results as JSON on standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any


async def main(order: dict[str, Any]) -> dict[str, Any]:
    from swe_ai_fleet.domain.command import Command
    from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy, examine_sandbox

    if order.get("examine"):
        report = await examine_sandbox(order["level"])
        return {"open": [attack.name for attack in report.leaves_open], "notes": report.notes}
    policy = SandboxPolicy(level=IsolationLevel(order["level"]), grace_seconds=0.3, **order.get("policy", {}))
    with tempfile.TemporaryDirectory(prefix="fleet-driver-") as name:
        outside, other, root = (Path(name, part) for part in ("outside", "other", "ws"))
        for directory in (outside, other, root):
            directory.mkdir()
        (outside / "id_ed25519").write_text("a private key")
        (outside / "id_ed25519").chmod(0o600)
        sandbox = Sandbox(policy)
        async with sandbox.workspace(root) as workspace, sandbox.workspace(other) as second:
            assert (await second.run(Command(argv=("sh", "-c", "echo theirs > file")))).ok
            results = []
            for argv, options in order["commands"]:
                argv = [word.format(outside=outside, other=other, root=root) for word in argv]
                result = await workspace.run(Command(argv=tuple(argv), **options))
                results.append(
                    {
                        "exit": result.exit_code,
                        "out": result.stdout.text(),
                        "err": result.stderr.text(),
                        "timed_out": result.timed_out,
                        "ms": result.duration_ms,
                    }
                )
        owners = {path.stat().st_uid for path in root.rglob("*") if not path.is_symlink()}
        key = outside / "id_ed25519"
        return {
            "results": results,
            "owners": sorted(owners),
            "key": key.read_text(),
            "mode": key.stat().st_mode & 0o777,
            "outside": sorted(path.name for path in outside.iterdir()),
            "theirs": (other / "file").read_text(),
        }


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    json.dump(asyncio.run(main(json.load(sys.stdin))), sys.stdout)
