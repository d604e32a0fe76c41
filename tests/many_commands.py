"""Many `fleet` commands in one process, one after the other: `python -m tests.many_commands`.

It reads a JSON list of command lines, and prints one of what each ended with: exit code, output, errors. A process for
each is what users have, and takes a second each.
"""

from __future__ import annotations

import json
import sys

from typer.testing import CliRunner

from swe_ai_fleet.cli.main import app


def main() -> None:
    runner = CliRunner()
    ends = [runner.invoke(app, arguments) for arguments in json.load(sys.stdin)]
    json.dump([(end.exit_code, end.stdout, end.stderr) for end in ends], sys.stdout)


if __name__ == "__main__":
    main()
