"""The shortest way through the page that has everything in it: sign in, submit, watch, compare, believe."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from tests.scripts import HELLO_FILES
from tests.web.conftest import ARTIFACTS
from tests.web.stage import Stage
from tests.web_script import BUSY

_LONG = 60_000
"""Milliseconds: for agents and checks on a machine that has other things to do."""
_AGENTS = ["agent-dev-1", "agent-dev-2", "agent-dev-3"]


@pytest.fixture
async def stranger(browser: Browser) -> AsyncIterator[Page]:
    """A page that is not signed in. What goes wrong in it fails the test."""
    context = await browser.new_context(viewport={"width": 1360, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(20_000)
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    await context.close()
    assert not wrong, wrong


async def test_from_the_token_to_the_winner(stranger: Page, stage: Stage) -> None:
    page = stranger
    await page.goto(f"{stage.running.http}/submit")
    await page.get_by_label("Token", exact=True).fill(stage.running.token or "")
    await page.keyboard.press("Enter")

    await page.get_by_label("What is to be done").fill(f"{BUSY} Add hello_world()")
    await page.get_by_label("Path", exact=True).fill(str(stage.repository("journey", HELLO_FILES)))
    await page.get_by_label("Mode", exact=True).select_option(label="Deliberate: rank proposals, apply nothing")
    await page.get_by_role("spinbutton", name="Agents").fill("3")
    await page.get_by_label("Peers review the candidates").uncheck()
    await page.get_by_role("button", name="Submit", exact=True).click()
    await page.wait_for_url(re.compile(r"/executions/[0-9a-f-]{36}"))

    agents = page.locator("article.agent")
    badge = page.locator(".execution-lead .badge")
    await expect(page.locator(".connection")).to_have_attribute("data-state", "live")
    await expect(agents.first.get_by_text("Step 1", exact=True)).to_be_visible(timeout=_LONG)
    await expect(badge).to_contain_text("in progress")
    await expect(badge).to_contain_text("completed", timeout=_LONG)
    # In the order of their names, whoever began first; each with its answer, which is nobody else's words.
    await expect(page.locator(".agent-name")).to_have_text(_AGENTS)
    for agent in await agents.all():
        last = agent.locator(".call", has_text="final_answer")
        await expect(last.get_by_role("img", name="succeeded")).to_be_visible()
        # What the fleet says by itself is the baseline, which may come at any step.
        for said in await agent.get_by_text("The fleet said").all():
            await expect(said.locator("..")).to_contain_text("Tests on the untouched commit")

    await page.get_by_role("tab", name=re.compile("Candidates")).click()
    await expect(page.locator(".banner-good")).to_contain_text(
        re.compile(r"agent-dev-\d won: verified.*test_hello", re.DOTALL)
    )
    await expect(page.locator("article.candidate")).to_have_count(2)
    await expect(page.locator(".diff-added", has_text="def hello_world").first).to_be_visible()
    winner = (await page.locator("tbody tr", has_text="winner").locator("th").text_content() or "").strip()

    await page.get_by_role("button", name="4 of 5: good").click()
    await expect(page.locator(".rating")).to_contain_text("Rated 4 of 5: good")
    await page.get_by_label("Why (optional)").fill("It greets <b>everybody</b>.")
    await page.get_by_role("button", name="Save the comment").click()
    await expect(page.get_by_role("button", name="Save the comment")).to_have_count(0)

    await page.get_by_role("tab", name="Audit").click()
    await expect(page.get_by_text("every chain is intact")).to_be_visible()
    await expect(page.locator("[aria-label^='Chain of'] .badge-good")).to_have_count(3)

    await page.reload()
    await expect(page.get_by_text("every chain is intact")).to_be_visible()
    await expect(page.locator(".rating")).to_contain_text("Rated 4 of 5: good")
    await expect(page.get_by_label("Why (optional)")).to_have_value("It greets <b>everybody</b>.")
    await page.get_by_role("tab", name=re.compile("Candidates")).click()
    await expect(page.locator("tbody tr", has_text="winner").locator("th")).to_have_text(winner)
    await expect(page.locator(".diff-added").first).to_be_visible()
    for look, scheme, width in (("light", "light", 1360), ("dark", "dark", 1360), ("phone", "light", 390)):
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        await page.set_viewport_size({"width": width, "height": 860})
        await page.screenshot(path=ARTIFACTS / f"journey-{look}.png", full_page=True)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), look
