"""What a shell command could do that a person should see first."""

from swe_ai_fleet.tools.shell_risk.commands import Verdict, judge, shell_risks

__all__ = ["Verdict", "judge", "shell_risks"]
