"""The risks of a shell command that a person should approve first."""

from swe_ai_fleet.tools.shell_risk.commands import RiskAssessment, assess, shell_risks

__all__ = ["RiskAssessment", "assess", "shell_risks"]
