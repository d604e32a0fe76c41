"""What the scripted model says in plan sessions."""

from __future__ import annotations

from swe_ai_fleet.testing import Conversation, Turn

PLAN_GOAL = "Work out what the squares come to"
PLAN_CONVERSATIONS = (
    Conversation(
        match=f"# Goal\n{PLAN_GOAL}",
        turns=(
            Turn(tool_calls=(("propose_approach", {"approach": "Add them up.", "reasoning": "Two numbers."}),)),
            Turn(tool_calls=(("propose_approach", {"approach": "Add them up, twice.", "reasoning": "To be sure."}),)),
            Turn(
                tool_calls=(("calculator", {"expression": "9 + 16"}), ("python_executor", {"code": "result = 9 + 16"}))
            ),
            Turn(tool_calls=(("final_answer", {"result": "They come to 25."}),)),
        ),
    ),
)
