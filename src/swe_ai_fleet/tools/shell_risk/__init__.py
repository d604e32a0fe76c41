"""What a shell command could do that a person should see first."""

from swe_ai_fleet.tools.shell_risk.commands import RiskAssessment, judge, shell_risks

__all__ = ["RiskAssessment", "judge", "shell_risks"]
