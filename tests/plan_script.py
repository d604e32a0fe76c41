"""What the scripted model says in plan sessions."""

from __future__ import annotations

from swe_ai_fleet.testing import Conversation, Turn
from tests.chat_script import called, final

PLAN_GOAL = "Work out what the squares come to"
RESEARCH_QUESTION = "How many people live in Rome?"
"""What the users' example of a workflow asks a researcher, an analyzer and a reporter without queries of their own."""
RESEARCH_CONVERSATIONS = (
    Conversation(
        match=RESEARCH_QUESTION,
        regex="# analyzer\n2,800 thousand",
        turns=(Turn(content="Final report: 2,800,000."),),
    ),
    Conversation(
        match=RESEARCH_QUESTION,
        regex="# researcher\n2.8 million",
        turns=(called("python_executor", code="result = 2.8 * 1000"), Turn(content="2,800 thousand")),
    ),
    Conversation(
        match=RESEARCH_QUESTION,
        turns=(called("web_search", query="population of Rome"), Turn(content="2.8 million")),
    ),
)
PLAN_CONVERSATIONS = (
    *RESEARCH_CONVERSATIONS,
    Conversation(
        match="# Goal\nGreet everybody",
        turns=(called("propose_approach", approach="Add a function that greets."),),
    ),
    Conversation(
        match="# Goal\nBring the tax rates up to date",
        turns=(
            called("propose_approach", approach="Read the rates, set the new ones."),
            called("propose_approach", approach="Set those of 2026."),
            final("The rates of 2026 stand."),
        ),
    ),
    Conversation(
        match=f"# Goal\n{PLAN_GOAL}",
        turns=(
            called("propose_approach", approach="Add them up.", reasoning="Two numbers."),
            called("propose_approach", approach="Add them up, twice.", reasoning="To be sure."),
            Turn(
                tool_calls=(("calculator", {"expression": "9 + 16"}), ("python_executor", {"code": "result = 9 + 16"}))
            ),
            final("They come to 25."),
        ),
    ),
)
