"""What single agents and single tool calls do for the nodes of a workflow, each a recorded run of its own."""

from swe_ai_fleet.agents.answering.node_runs import AnswerRun, OperateRun

__all__ = ["AnswerRun", "OperateRun"]
