"""Executions, plans and workflows on the page: watched, compared, decided about, begun. All of it real."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.extension_registry import extensions
from tests.scripts import PROPOSING, SLEEP
from tests.web.conftest import serious
from tests.web.stage import Stage
from tests.web_script import BUSY, HOSTILE_FILE, HOSTILE_TASK, MARKUP

pytestmark = pytest.mark.slow

_LONG = 60_000
"""Milliseconds: for what agents, checks and reviews have to do first."""
_NODES = """\
name: by-hand
inputs:
  number: integer
nodes:
  - {id: double, type: tool, tool: calculator, arguments: {expression: "${inputs.number} * 2"}}
  - {id: agree, type: approval, prompt: "Go on with <b>${nodes.double.output.data.result}</b>?"}
  - {id: last, type: tool, tool: calculator, arguments: {expression: "1 + 1"}, breakpoint: true}
edges:
  - {source: double, target: agree}
  - {source: agree, target: last}
outputs:
  answer: ${nodes.last.output.data.result}
"""


async def _open(page: Page, stage: Stage, path: str) -> None:
    await page.goto(f"{stage.running.http}{path}")


async def _watch(page: Page, stage: Stage, execution_id: str, tab: str = "") -> None:
    await _open(page, stage, f"/executions/{execution_id}" + (f"?tab={tab}" if tab else ""))


def _badge(page: Page) -> Locator:
    """Where the execution stands, as the heading says it."""
    return page.locator(".execution-lead .badge")


async def test_an_execution_is_watched_live_reloaded_and_compared(page: Page, stage: Stage) -> None:
    await _open(page, stage, "/submit")
    await page.get_by_label("What is to be done").fill(f"{BUSY} Add hello_world()")
    await page.get_by_label("Repository", exact=True).fill(str(stage.repository("watched")))
    await page.get_by_role("spinbutton", name="Agents").fill("3")
    await page.get_by_text("More options").click()
    await page.get_by_label("Mode", exact=True).select_option(label="Rank the proposals only")
    await page.get_by_label("Peers review the candidates").uncheck()
    await page.get_by_role("button", name="Submit", exact=True).click()
    await page.wait_for_url(re.compile(r"/executions/[0-9a-f-]{36}"))
    agents = page.locator("article.agent")
    await expect(agents).to_have_count(3, timeout=_LONG)
    await expect(page.locator(".connection")).to_have_attribute("data-state", "live")
    await expect(agents.first.get_by_text("Step 2", exact=True)).to_be_visible(timeout=_LONG)
    await page.reload()
    await expect(agents).to_have_count(3)
    await expect(agents.first.get_by_text("Step 1", exact=True)).to_be_visible()
    await expect(_badge(page)).to_contain_text("completed", timeout=_LONG)
    await expect(page.locator(".connection")).to_have_attribute("data-state", "ended")
    # In the order of their names, whoever began first.
    await expect(page.locator(".agent-name")).to_have_text([f"agent-dev-{number}" for number in (1, 2, 3)])
    calls = agents.first.locator(".call")
    await calls.first.locator("summary").click()
    await expect(calls.first.locator("pre").first).to_contain_text("utils.py")

    # An agent whose tests failed is no success, whatever it answered.
    await expect(agents.first.locator(".badge-bad")).to_have_text(re.compile("refuted"))
    # Reloaded, it opens with what came of it.
    await page.reload()
    await expect(page.get_by_role("tab", selected=True)).to_contain_text("Candidates")
    outcome = page.locator(".outcome-good")
    await expect(outcome).to_contain_text(re.compile(r"agent-dev-\d won.*verified.*test_hello", re.DOTALL))
    await expect(outcome.locator(".diff-added", has_text="def hello_world").first).to_be_visible()
    await expect(outcome.locator(".hl-keyword", has_text="def").first).to_be_visible()
    await expect(page.get_by_role("list", name="Steps")).to_contain_text(
        re.compile("solve.*examine.*decide", re.DOTALL)
    )
    await expect(page.locator("tbody tr", has_text="agent-dev")).to_have_count(3)
    matrix = page.get_by_role("row", name=re.compile("test_utils.py::test_hello"))
    await expect(matrix.get_by_role("img", name="failed")).to_have_count(2)
    panels = page.locator("article.candidate")
    await expect(panels).to_have_count(2)
    await panels.first.locator(".checks summary", has_text="tests").click()
    await expect(panels.first.locator(".checks pre")).to_contain_text("passed")
    names = await page.get_by_label("with", exact=True).locator("option").all_text_contents()
    await page.get_by_label("with", exact=True).select_option(label=names[-1])
    await expect(panels.nth(1)).to_have_attribute("data-candidate", names[-1].split(". ")[-1])
    differences = page.get_by_role("group", name=re.compile("Differences between"))
    await expect(differences.locator("table.diff-split")).to_be_visible()
    await expect(differences.locator(".diff-removed .diff-word").first).to_have_text(re.compile("Hello"))
    numbers = await differences.locator("tbody tr:last-child td.diff-number").first.bounding_box()
    assert numbers is not None and numbers["width"] < 60
    await page.set_viewport_size({"width": 860, "height": 900})
    await expect(differences.locator("table.diff-unified")).to_be_visible()
    await page.set_viewport_size({"width": 1360, "height": 900})
    await page.get_by_role("button", name="Each change").click()
    await expect(panels.first.locator(".diff-added", has_text="def hello_world").first).to_be_visible()
    assert await serious(page) == []

    await page.get_by_role("button", name="4 of 5: good").click()
    await expect(page.locator(".rating")).to_contain_text("Rated 4 of 5")
    await page.get_by_label("Why (optional)").fill("It greets <b>everybody</b>.")
    await page.get_by_role("button", name="Save the comment").click()
    await expect(page.get_by_role("button", name="Save the comment")).to_have_count(0)
    await page.reload()
    await expect(page.get_by_label("Why (optional)")).to_have_value("It greets <b>everybody</b>.")

    await page.get_by_role("tab", name="Audit").click()
    await expect(page.get_by_text("every chain is intact")).to_be_visible()
    chain = page.locator("[aria-label^='Chain of']").first
    await chain.get_by_text("Entries").last.click()
    await expect(chain.locator(".audit-entries li").first).to_contain_text("files_read_file")
    await expect(chain).to_contain_text(re.compile(r"Signed\s*by key [0-9a-f]{16}"))


async def test_markup_in_tasks_files_and_output_stays_text(page: Page, stage: Stage) -> None:
    execution_id = await stage.begin("hostile", HOSTILE_TASK)
    await _watch(page, stage, execution_id)
    await expect(_badge(page)).to_contain_text("completed", timeout=_LONG)
    await expect(page.get_by_role("heading", level=1)).to_contain_text("<script>")
    for tab in ("Timeline", "Candidates", "Audit", "Events"):
        await page.get_by_role("tab", name=re.compile(tab)).click()
        # What is unfolded unfolds more.
        for _ in range(2):
            await page.evaluate("document.querySelectorAll('#view details').forEach((each) => { each.open = true })")
            await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await expect(page.locator("#view img, #view script, #view b, #view iframe")).to_have_count(0)
        if tab == "Candidates":
            await expect(page.locator(".diff-path").first).to_have_text(HOSTILE_FILE)
            for place in (page.locator(".candidate"), page.locator(".outcome")):
                await expect(place).to_contain_text(f"Done {MARKUP}")
                await expect(place.locator(".markdown strong").first).to_have_text("Bold")
                links = await place.locator(".markdown a").evaluate_all("(all) => all.map((one) => one.href)")
                assert links == ["https://evil.example/p.png", "https://example.org/fine"]
    assert await page.title() != "owned"
    # Nothing hides in a line either: the character that turns the writing round is written out.
    await expect(page.get_by_role("heading", level=1)).to_contain_text("U+202E")


async def test_a_risky_call_is_approved(page: Page, stage: Stage) -> None:
    await _watch(page, stage, await stage.risky())
    gate = page.locator(".gate")
    await expect(gate).to_contain_text("One decision waits for you")
    await expect(gate).to_contain_text("destructive")
    await expect(gate).to_contain_text("rm -rf test_utils.py")
    assert await serious(page) == []
    await page.get_by_label("Comment or adjustment").fill("but only this one")
    await page.get_by_role("button", name="Approve").click()
    await expect(gate).to_have_count(0, timeout=_LONG)
    await expect(page.locator(".item-approval")).to_contain_text(re.compile("approved.*but only this one", re.DOTALL))
    await expect(_badge(page)).to_contain_text(re.compile("completed|no winner"), timeout=_LONG)


async def test_what_waits_is_approved_with_three_keys(page: Page, stage: Stage) -> None:
    execution_id = await stage.asking()
    await _open(page, stage, "/executions?status=awaiting")
    await expect(page.get_by_role("button", name=re.compile(r"\d waits? for you"))).to_be_visible(timeout=_LONG)
    await page.keyboard.press("?")
    shortcuts = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(shortcuts).to_contain_text("Open what waits for you")
    assert await serious(page) == []
    await page.keyboard.press("Escape")
    await _watch(page, stage, execution_id)
    await expect(page.get_by_role("button", name="Approve")).to_be_visible(timeout=_LONG)
    # From any view: w, a, Enter. Others may wait for longer than this one, so it begins at the decision.
    await page.keyboard.press("a")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(_badge(page)).to_contain_text(re.compile("completed|no winner"), timeout=_LONG)
    waits = await stage.risky()
    await _open(page, stage, "/fleet")
    await expect(page.get_by_role("button", name=re.compile(r"\d waits? for you"))).to_be_visible(timeout=_LONG)
    await page.keyboard.press("w")
    await expect(page.locator(".gate")).to_be_visible(timeout=_LONG)
    assert waits


async def test_another_candidate_is_delivered_and_the_task_runs_again(page: Page, stage: Stage) -> None:
    execution_id = await stage.delivered()
    task = (await stage.execution(execution_id)).task_id
    await _open(page, stage, f"/executions/{task}")
    await page.wait_for_url(re.compile(f"/executions/{execution_id}$"))
    outcome = page.get_by_role("region", name="Outcome")
    await expect(outcome).to_contain_text(f"fleet/{task}")
    assert "switch" in (await outcome.get_by_role("button", name="Copy the git command").get_attribute("title") or "")
    await outcome.get_by_role("button", name="Deliver another candidate").click()
    dialog = page.get_by_role("dialog", name="Deliver a candidate")
    await dialog.get_by_label("Candidate", exact=True).select_option(label="agent-dev-1 · refuted")
    await dialog.get_by_label("Reason (optional)").fill("to look at it")
    await dialog.get_by_role("button", name="Deliver it").click()
    await expect(outcome).to_contain_text(f"fleet/{task}-agent-dev-1")
    assert [one.candidate_id for one in (await stage.execution(execution_id)).hand_deliveries] == ["agent-dev-1"]
    await outcome.get_by_role("button", name="Run again").click()
    await expect(page.get_by_label("What is to be done")).to_have_value(re.compile("hello_world"))
    await expect(page.get_by_label("Repository", exact=True)).to_have_value(re.compile("/delivered-"))
    await expect(page.get_by_role("spinbutton", name="Agents")).to_have_value("3")
    await _open(page, stage, "/executions/no-such-task")
    await expect(page.get_by_text("No execution or task has this id.")).to_be_visible()


async def test_a_plan_is_adjusted_and_then_approved(page: Page, stage: Stage) -> None:
    execution_id = await stage.begin("twice", f"{PROPOSING} twice", approval=pb.APPROVAL_POLICY_PLAN)
    await _watch(page, stage, execution_id)
    gate = page.locator(".gate")
    await expect(gate).to_contain_text("Append hello_world to utils.py", timeout=_LONG)
    await page.get_by_role("button", name="Adjust").click()
    await expect(page.get_by_text("Say what to do otherwise.")).to_be_visible()
    await page.get_by_label("Comment or adjustment").fill("Two blank lines before it")
    await page.keyboard.press("Control+Enter")
    await expect(page.locator(".item-approval").first).to_contain_text("Two blank lines", timeout=_LONG)
    await expect(gate.get_by_role("button", name="Approve")).to_be_visible(timeout=_LONG)
    await page.reload()
    await gate.get_by_role("button", name="Approve").click()
    await expect(_badge(page)).to_contain_text("completed", timeout=_LONG)
    await expect(page.locator(".item-approval")).to_have_count(2)


async def test_a_plan_is_rejected(page: Page, stage: Stage) -> None:
    await _watch(page, stage, await stage.asking())
    await page.get_by_label("Comment or adjustment").fill("not now")
    await page.get_by_role("button", name="Reject").click()
    await expect(_badge(page)).to_contain_text("rejected", timeout=_LONG)
    await expect(page.locator(".item-approval")).to_contain_text("not now")
    await expect(page.locator(".gate")).to_have_count(0)


async def test_an_execution_is_cancelled(page: Page, stage: Stage) -> None:
    execution_id = await stage.begin("sleep", f"{SLEEP} on")
    await _watch(page, stage, execution_id)
    await expect(page.locator(".call", has_text="sleep").first).to_be_visible(timeout=_LONG)
    await page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason (optional)").fill("no time for it")
    await dialog.get_by_role("button", name="Cancel it").click()
    await expect(_badge(page)).to_contain_text("cancelled", timeout=_LONG)
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


async def test_a_broken_connection_heals_and_nothing_is_lost_or_doubled(
    page: Page, context: BrowserContext, stage: Stage
) -> None:
    execution_id = await stage.busy(agents=2)
    await _watch(page, stage, execution_id)
    await expect(page.locator("article.agent").first.get_by_text("Step 1", exact=True)).to_be_visible(timeout=_LONG)
    await context.set_offline(True)
    await expect(page.get_by_text("Reconnecting …")).to_be_visible()
    await stage.until(execution_id, "candidate_submitted")
    await expect(page.locator(".connection")).to_have_attribute("data-state", "reconnecting")
    await context.set_offline(False)
    await expect(page.get_by_text("Reconnecting …")).to_have_count(0)
    await expect(_badge(page)).to_contain_text("completed", timeout=_LONG)
    await page.get_by_role("tab", name="Events").click()
    await expect(page.locator(".raw-head", has_text="execution_finished")).to_be_visible()
    shown = await page.locator(".raw-head > :first-child").all_text_contents()
    stored = [event.sequence for event in await stage.events(execution_id)]
    # The page may hang up before the note that subscribers were told.
    assert [int(number) for number in reversed(shown)] == stored[: len(shown)]
    assert len(stored) - len(shown) <= 1


@pytest.mark.skipif("workflows" not in extensions(), reason="the extension was deleted")
async def test_a_workflow_is_written_checked_run_and_steered(page: Page, stage: Stage) -> None:
    await _open(page, stage, "/workflows/new")
    editor = page.get_by_label("Definition (YAML)")
    await editor.fill(_NODES.replace("type: approval", "type: aproval"))
    fault = page.locator(".faults li")
    await expect(fault.first).to_contain_text("aproval")
    await fault.first.get_by_role("button").click()
    marked = await editor.evaluate("(area) => area.value.slice(area.selectionStart, area.selectionEnd)")
    assert marked.startswith("  - {id: agree, type: aproval") and "\n" not in marked
    await editor.fill(_NODES)
    await expect(page.get_by_text("nothing is wrong with it")).to_be_visible()
    await page.get_by_label("number", exact=True).fill("21")
    await page.get_by_role("button", name="Run").click()
    await page.wait_for_url(re.compile("/executions/"))
    gate = page.locator(".gate")
    await expect(gate).to_contain_text("Go on with <b>42</b>?", timeout=_LONG)
    await expect(page.locator("[data-node=agree]")).to_have_attribute("data-status", "waiting")
    await gate.get_by_role("button", name="Approve").click()
    await expect(page.locator("[data-node=last]")).to_have_attribute("data-status", "paused", timeout=_LONG)
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator("[data-node=last]")).to_have_attribute("data-status", "completed", timeout=_LONG)
    await expect(_badge(page)).to_contain_text("completed")
    await expect(page.get_by_role("group", name="Output")).to_contain_text(re.compile("answer.*2"))
