"""`python -m workers.workspace_runner [--backend kubernetes|local] [--takes jobs|commands]`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging
from workers.workspace_runner.main import serve


def main(arguments: list[str] | None = None) -> int:
    """Run a workspace runner until it is stopped; 2 for invalid settings."""
    parser = argparse.ArgumentParser(prog="python -m workers.workspace_runner", description=__doc__)
    parser.add_argument("--backend", choices=("kubernetes", "local"), help="where jobs run (FLEET_RUNNER_BACKEND)")
    parser.add_argument("--takes", choices=("jobs", "commands"), help="what is taken (FLEET_RUNNER_TAKES)")
    options = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value}
    settings = Settings()
    configure_logging(settings.log_level, settings.log_format, mask=secret_mask(settings))
    chosen = RunnerSettings().model_copy(update=options)
    try:
        asyncio.run(serve(settings, chosen))
    except FleetError as fault:
        where = f"{fault.field}: " if fault.field else ""
        print(f"{where}{fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
