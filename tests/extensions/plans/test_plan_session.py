"""The planning flow: memory, research of its gaps, a proposal, a decision, and what follows it.

Over HTTP, in a real repository, with a web on loopback; only the model is scripted.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits
from swe_ai_fleet.domain import memory
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Limits, RequestLimits
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import ApprovalAwaited, ToolFinished, ToolStarted
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.plans.requests import Approved, AwaitingApproval, PlanFailed
from swe_ai_fleet.extensions.plans.session import SessionStatus
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.testing import Failure, Turn
from tests.extensions.plans.plan_parts import plans_in, sessions_in_memory
from tests.sub_agent_world import LOOK, PLANNER, RESEARCHER, SESSION, call, says, world

GOAL = "Round invoice totals"
GAP = "Stripe API"
APPROACH = "1. Change total() 2. Run the tests"
PROPOSAL = call("propose_approach", approach=APPROACH, reasoning="It is small.")
WRITE = call("files_write_file", path="rounding.py", content="CENTS = 100\n")
DONE = call("final_answer", result="Rounded; the plan was followed.")


class Heard:
    """A listener that keeps what it hears, and fails: that changes nothing."""

    def __init__(self) -> None:
        self.outcomes: list[memory.WorkOutcome] = []

    async def __call__(self, outcome: memory.WorkOutcome) -> None:
        self.outcomes.append(outcome)
        raise Unavailable("no tracker")


def audited(log: MemoryLog) -> list[AuditEntry]:
    """What the log says of tool calls."""
    return [event.body.entry for event in log.events if isinstance(event.body, ToolStarted | ToolFinished)]


def told(body: dict[str, Any]) -> list[str]:
    """What the tools told the model in a request."""
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


def researched(*gaps: str) -> Turn:
    answers = [{"gap": gap, "answer": f"{gap} is a service."} for gap in gaps]
    return call("final_answer", result=json.dumps({"summary": "Found.", "answers": answers, "data_points": []}))


async def awaiting(plans: Any, *entities: str, goal: str = GOAL) -> AwaitingApproval:
    answer = await plans.execute_plan(goal, entities, "s1")
    assert isinstance(answer, AwaitingApproval), answer
    return answer


class TestMemoryFirst:
    async def test_everything_found_in_memory_or_nothing_asked_of_it(self, tmp_path: Path) -> None:
        async with world(tmp_path, {SESSION: (PROPOSAL,), RESEARCHER: (researched(),)}) as place:
            plans = await plans_in(place, log=(log := MemoryLog()))
            answer = await awaiting(plans, "Invoice", "billing.py")
            # The same goal again while it waits asks nobody.
            assert await awaiting(plans, "Invoice", "billing.py") == answer
            nothing = await awaiting(await plans_in(place))
            assert (place.requests(RESEARCHER), place.web.searches, place.web.pages) == ([], [], [])
            asked, _ = place.requests(SESSION)
        assert (answer.status, answer.goal, answer.approach, answer.reasoning) == (
            "awaiting_approval", GOAL, APPROACH, "It is small.",
        )  # fmt: skip
        for one, coverage in ((answer, 100.0), (nothing, None)):
            assert (one.memory_results["coverage"], one.memory_results["gaps"]) == (coverage, [])
        # It was searched before the model acted: what it gave stands in the first request.
        assert "Invoice totals are rounded half up" in asked["messages"][1]["content"]
        assert "README.md#Rounding" in answer.memory_results["sources"]  # type: ignore[operator]
        assert audited(log)[0].operation == "search_memory"

    async def test_gaps_and_exactly_those_are_researched(self, tmp_path: Path) -> None:
        turns = (call("web_search", query="stripe kubernetes"), researched(GAP, "Kubernetes"))
        async with world(tmp_path, {SESSION: (PROPOSAL,), RESEARCHER: turns}) as place:
            answer = await awaiting(await plans_in(place), "Invoice", GAP, "Kubernetes", "billing.py")
            (gaps,) = {body["messages"][1]["content"] for body in place.requests(RESEARCHER)}
            assert place.web.searches == ["stripe kubernetes"]
            (asked,) = place.requests(SESSION)
        assert gaps == f"# Gaps\n- {GAP}\n- Kubernetes"
        assert (answer.memory_results["coverage"], answer.memory_results["gaps"]) == (50.0, [GAP, "Kubernetes"])
        research: Any = answer.memory_results["research"]
        assert (research["coverage"], research["summary"]) == (100.0, "Found.")
        assert "Found." in asked["messages"][1]["content"]

    async def test_memory_or_research_that_fails_does_not_end_the_plan(self, tmp_path: Path) -> None:
        class Broken:
            async def search(self, entities: object, queries: object) -> Any:
                raise Unavailable("the memory is down")

        async with world(tmp_path, {SESSION: (PROPOSAL,), RESEARCHER: (Failure(status=500, times=0), DONE)}) as place:
            answer = await awaiting(await plans_in(place, memory=Broken()), "Invoice")
        assert (answer.memory_results["coverage"], answer.memory_results["gaps"]) == (0.0, ["Invoice"])
        assert "the memory is down" in str(answer.memory_results["content"])
        research: Any = answer.memory_results["research"]
        assert "the model of the sub-agent gave no answer" in research["error"]


class TestBeforeTheDecision:
    async def test_nothing_with_a_side_effect_runs(self, tmp_path: Path) -> None:
        wild = Turn(
            tool_calls=(
                ("files_write_file", {"path": "early.py", "content": "x"}),
                ("FilesWriteFile", {"path": "early.py", "content": "x"}),
                ("shell_run_command", {"command": "touch early.py"}),
                ("bash", {"command": "touch early.py"}),
                ("git_commit", {"message": "early"}),
                ("python_executor", {"code": "open('early.py', 'w')"}),
                ("files_read_file", {"path": "billing.py"}),
            )
        )
        # In the reply that proposes, too.
        both = Turn(tool_calls=(*PROPOSAL.tool_calls, *WRITE.tool_calls))
        async with world(tmp_path, {SESSION: (wild, both)}) as place:
            await awaiting(await plans_in(place, log=(log := MemoryLog())))
            first, second = place.requests(SESSION)
            assert sorted(file.name for file in place.root.iterdir()) == [".git", "README.md", "billing.py"]
            ran = [entry.operation for entry in audited(log) if entry.outcome is Outcome.SUCCESS]
        assert ran == ["search_memory", "read_file"]
        *refused, read = told(second)
        assert all(text.startswith("Error: not run: nothing with an effect runs before") for text in refused)
        assert len(refused) == 6
        assert "def total" in read
        shown = {tool["function"]["name"] for tool in first["tools"]}
        assert "files_read_file" in shown and not shown & {"files_write_file", "shell_run_command", "git_commit"}

    @pytest.mark.parametrize(
        ("turn", "approach"),
        [
            (Turn(content="I propose \ud800 this"), "I propose \ufffd this"),
            (Turn(content="**Plan:** go"), "**Plan:** go"),
            (call("propose_approach", approach="half \ud800", reasoning="\udfff"), "half \ufffd"),
            (Turn(tool_calls=(("propose_approach", '"just text"'),)), "just text"),
            (Turn(tool_calls=(("ProposeApproach", "```json\n{'approach': 'quoted',}\n```"),)), "quoted"),
            (Turn(tool_calls=(("propose_approach", '{"approach": "cut of'),), finish_reason="length"), APPROACH),
            (Turn(content="Let me see."), APPROACH),
            (call("final_answer", answer="It is 42."), "It is 42."),
        ],
    )
    async def test_odd_proposals(self, tmp_path: Path, turn: Turn, approach: str) -> None:
        """A text that opens with a proposal is one; one that only talks, and a reply without a word, are reminded."""
        async with world(tmp_path, {SESSION: (turn, PROPOSAL), LOOK: (says(kind="proposal"),)}) as place:
            plans = await plans_in(place)
            answer = await awaiting(plans, "Inv\ud800", goal="Round \ud800 totals")
            kept = await plans.session("s1")
            *_, last = place.requests(SESSION)
            assert len(place.requests(LOOK)) == (
                approach == "It is 42." or (bool(turn.content) and approach != APPROACH)
            )
        reminded = "call propose_approach with what you would do" in last["messages"][-1]["content"]
        assert reminded is (turn.content == "Let me see.")
        assert (answer.approach, answer.goal, kept.selected_entities) == (
            approach, "Round \ufffd totals", ("Inv\ufffd",),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("turns", "found"),
        [
            ((Turn(content="What do you mean?"),), "question"),
            ((call("final_answer", result="Which invoices do you mean?"),), "question"),
            ((call("ask_user", question="Which invoices?"),), ""),
            ((Turn(content="I'm sorry, I can't help with that."),) * 3, "neither"),
            ((Turn(content='I will look first. <tool_call>{"name": "files_read_file", "arg'),) * 3, ""),
        ],
    )
    async def test_what_proposes_nothing_waits_for_no_approval(
        self, tmp_path: Path, turns: tuple[Turn, ...], found: str
    ) -> None:
        """A question waits for its answer, which the model proposes from; anything else is an error that says so."""
        asks = found == "question" or bool(turns[0].tool_calls and turns[0].tool_calls[0][0] == "ask_user")
        looks = (replace(says(kind=found), times=5),) if found else ()
        async with world(tmp_path, {SESSION: (*turns, PROPOSAL), LOOK: looks}) as place:
            plans = await plans_in(place, log=(log := MemoryLog()))
            answer = await plans.execute_plan(GOAL, (), "s1", by="ada")
            kept = await plans.session("s1")
            assert (kept.approach, kept.proposals) == ("", 0)
            if not asks:
                assert isinstance(answer, PlanFailed) and kept.status is SessionStatus.ERROR
                return
            assert isinstance(answer, AwaitingApproval) and answer.status == kept.status == "awaiting_answer"
            assert "nvoices" in answer.question or answer.question == "What do you mean?"
            assert await plans.execute_plan(GOAL, (), "s1") == answer
            with pytest.raises(PreconditionFailed, match="asks a question"):
                await plans.approve("s1", "approved", by="ada")
            # Whoever set the goal answers; approving of it is for somebody else.
            proposal = await plans.approve("s1", "adjusted", "All of this year.", by="ada")
            *_, last = place.requests(SESSION)
        assert isinstance(proposal, AwaitingApproval)
        assert (proposal.status, proposal.approach, proposal.question) == ("awaiting_approval", APPROACH, "")
        assert "The person answers: All of this year." in last["messages"][-1]["content"]
        waited = [event.body.request for event in log.events if isinstance(event.body, ApprovalAwaited)]
        assert [request.call.name for request in waited][1:] == ["propose_approach"]


class TestTheDecision:
    async def test_approval_goes_on_from_the_exact_point_with_the_whole_conversation(self, tmp_path: Path) -> None:
        look = Turn(tool_calls=tuple(("files_read_file", {"path": path}) for path in ("billing.py", "missing.py")))
        both = Turn(content="Here it is.", tool_calls=(*PROPOSAL.tool_calls, *WRITE.tool_calls))
        heard = Heard()
        async with world(tmp_path, {SESSION: (look, both, call("tests_run"), DONE)}) as place:
            plans = await plans_in(place, record=heard)
            await awaiting(plans, "Invoice")
            assert await plans.approve("s1", "approved") == Approved(session_id="s1")
            assert await plans.approve("s1", "approved") == Approved(session_id="s1")
            assert not (place.root / "rounding.py").exists()
            result = await plans.continue_plan("s1")
            _, proposing, after, _ = place.requests(SESSION)
            assert (place.root / "rounding.py").read_text() == "CENTS = 100\n"
            assert await plans.continue_plan("s1") == result
            assert len(place.requests(SESSION)) == 4
        assert after["messages"][: len(proposing["messages"])] == proposing["messages"]
        proposed, note, written = after["messages"][len(proposing["messages"]) :]
        assert [entry["function"]["name"] for entry in proposed["tool_calls"]] == [
            "propose_approach",
            "files_write_file",
        ]
        assert note["content"].startswith("The person approved this approach. Carry it out now")
        assert written["role"] == "tool"
        assert (result.status, result.final_plan, result.results) == (
            "completed", APPROACH, "Rounded; the plan was followed.",
        )  # fmt: skip
        made = [(made.step, made.tool, made.success) for made in result.tool_calls_made]
        assert made[1:4] == [
            (1, "files_read_file", False), (2, "propose_approach", True), (2, "files_write_file", True),
        ]  # fmt: skip
        assert (result.iterations, result.stop_reason) == (4, StopReason.FINAL_ANSWER)
        assert result.usage.model_calls == 4
        (outcome,) = heard.outcomes
        assert (outcome.goal_type, outcome.approach_ratio, outcome.agents_used) == ("other", 1.0, ())
        assert (outcome.status, outcome.approach, outcome.success) == (SessionStatus.COMPLETED, "plan", True)


class TestLimitsAndFaults:
    async def test_a_provider_time_out(self, tmp_path: Path) -> None:
        slow = replace(PROPOSAL, delay_seconds=30)
        async with world(tmp_path, {SESSION: (slow,)}) as place:
            store = sessions_in_memory()
            limits = Limits(max_iterations=5, max_tool_calls=20, timeout_seconds=0.3)
            answer = await (await plans_in(place, store=store, limits=limits)).execute_plan(GOAL, (), "s1")
            assert isinstance(answer, PlanFailed)
            assert (answer.status, answer.session_id) == ("error", "s1")
            assert "0.3 seconds" in answer.error
            # The session is not lost: the next request goes on in it.
            place.follow({SESSION: (PROPOSAL,)})
            assert isinstance(await (await plans_in(place, store=store)).execute_plan(GOAL, (), "s1"), AwaitingApproval)

    async def test_a_provider_that_fails_after_the_approval_and_comes_back(self, tmp_path: Path) -> None:
        async with world(tmp_path, {SESSION: (PROPOSAL, WRITE, DONE)}) as place:
            plans = await plans_in(place)
            await awaiting(plans)
            await plans.approve("s1", "approved")
            place.server.fail_next(Failure(status=503))
            broken = await plans.continue_plan("s1")
            assert (broken.status, broken.stop_reason) == ("error", StopReason.MODEL_ERROR)
            assert broken.error
            result = await plans.continue_plan("s1")
        assert (result.status, result.iterations) == ("completed", 3)
        assert (place.root / "rounding.py").exists()

    async def test_a_limit_hit_is_an_answer_all_the_same(self, tmp_path: Path) -> None:
        heard, limits = Heard(), RequestLimits(max_iterations=9, max_tool_calls=3, timeout_seconds=30)
        many = replace(call("files_list_files"), times=2)
        async with world(tmp_path, {SESSION: (PROPOSAL, many, Turn(content="Half of it is done."))}) as place:
            plans = await plans_in(place, record=heard)
            await awaiting(plans)
            await plans.approve("s1", "approved")
            result = await plans.continue_plan("s1", limits=limits)
        stop = StopReason.MAX_TOOL_CALLS
        assert (result.status, result.stop_reason, result.results) == ("limit_reached", stop, "Half of it is done.")
        assert str(stop) in result.error and not heard.outcomes[0].success

    async def test_sub_agents_are_counted_over_the_whole_session(self, tmp_path: Path) -> None:
        plan = call("call_planner", goal="a")
        heard = Heard()
        async with world(tmp_path, {SESSION: (plan, PROPOSAL, plan, DONE), PLANNER: (says(plan=["one"]),)}) as place:
            plans = await plans_in(place, sub_agents=SubAgentLimits(number=1), record=heard)
            await awaiting(plans)
            await plans.approve("s1", "approved")
            result = await plans.continue_plan("s1")
            assert len(place.requests(PLANNER)) == 1
        assert [made.success for made in result.tool_calls_made] == [True, True, False, True]
        assert "this run had its 1 sub-agents" in result.tool_calls_made[2].result
        assert heard.outcomes[0].agents_used == ("call_planner",)
