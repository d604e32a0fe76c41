"""Log lines, traces and metrics of a process for operators. Set up once at a process edge."""

from swe_ai_fleet.telemetry.logs import configure_logging
from swe_ai_fleet.telemetry.process import Telemetry, open_telemetry, own_telemetry

__all__ = ["Telemetry", "configure_logging", "open_telemetry", "own_telemetry"]
