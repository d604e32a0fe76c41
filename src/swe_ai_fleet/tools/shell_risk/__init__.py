"""What a shell command could do that a person should see first."""

from swe_ai_fleet.tools.shell_risk.analysis import shell_risks

__all__ = ["shell_risks"]
