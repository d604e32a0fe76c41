"""One judge's votes over candidates that passed."""

from swe_ai_fleet.agents.judging.run import JudgeRun

__all__ = ["JudgeRun"]
