"""Peers' reviews of candidates, each made in a clone that has the candidate's patch applied."""

from swe_ai_fleet.agents.reviewing.run import ReviewRun

__all__ = ["ReviewRun"]
