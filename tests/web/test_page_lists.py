"""The page's lists and forms in a real browser: signing in, submitting, chats, memory, the fleet. All of it real."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.chat_script import HOSTILE_ANSWER
from tests.scripts import HELLO, HELLO_FILES, SLEEP
from tests.web.conftest import ARTIFACTS, serious
from tests.web.stage import Stage
from tests.web_script import HOSTILE_TASK, MARKUP

pytestmark = pytest.mark.slow

_LONG = 60_000
"""Milliseconds: for what agents and checks have to do first."""
_VIEWS = {
    "executions": "Executions",
    "batch": "Batches",
    "submit": "Submit a task",
    "chat": "Chat",
    "memory": "Memory",
    "stories": "Stories",
    "councils": "Councils",
    "fleet": "Fleet",
    "webhooks": "Webhooks",
    "connect": "Connect",
}


async def _open(page: Page, stage: Stage, path: str) -> None:
    await page.goto(f"{stage.running.http}{path}")
    await expect(page.locator("h1")).to_be_visible()


async def _settled(page: Page) -> None:
    await expect(page.locator(".loading")).to_have_count(0)


class TestSession:
    async def test_only_the_token_lets_one_in(self, page: Page, browser: Browser, stage: Stage) -> None:
        # It does not stay in the address.
        await expect(page.get_by_role("heading", name="Executions")).to_be_visible()
        assert "token" not in page.url
        assert stage.running.token not in json.dumps(await page.evaluate("[document.cookie, {...localStorage}]"))
        async with await browser.new_context() as context:
            page = await context.new_page()
            await page.goto(f"{stage.running.http}/councils")
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            await page.get_by_label("Token", exact=True).fill("not-the-token")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_text("This is not the fleet's token.")).to_be_visible()
            await page.get_by_label("Token", exact=True).fill(stage.running.token or "")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Councils")).to_be_visible()
            await page.reload()
            await expect(page.get_by_role("heading", name="Councils")).to_be_visible()
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            assert await page.evaluate("fetch('/api/executions').then((response) => response.status)") == 401


class TestExecutions:
    async def test_what_begins_elsewhere_appears_by_itself_and_filters_lead_to_what_fits(
        self, page: Page, stage: Stage
    ) -> None:
        await _open(page, stage, "/executions")
        await _settled(page)
        execution = await stage.begin("appears", HELLO)
        row = page.get_by_role("row").filter(has=page.locator(f"a[href='/executions/{execution}']"))
        await expect(row.get_by_text("completed")).to_be_visible(timeout=_LONG)
        await expect(row.get_by_text("agent-dev-1")).to_be_visible()
        links = page.locator(".execution-name a")
        task = (await stage.execution(execution)).task_id
        await expect(row.locator(".repository")).to_have_text(re.compile("^appears-"))
        await page.get_by_label("Search", exact=True).fill(f"appears {task.rpartition('-')[2].upper()}")
        await expect(links).to_have_count(1)
        await page.get_by_label("Status", exact=True).select_option("Awaiting approval")
        await expect(page.get_by_text("No matches.")).to_be_visible()
        await page.get_by_label("Status", exact=True).select_option("Completed")
        await page.reload()
        await expect(page.get_by_label("Search", exact=True)).to_have_value(re.compile("appears"))
        await links.click()
        await expect(page).to_have_url(re.compile(f"/executions/{execution}$"))
        await page.go_back()
        await expect(links).to_have_count(1)
        await page.get_by_role("button", name="Clear").click()
        await expect(page).to_have_url(re.compile("/executions$"))
        await expect(links).not_to_have_count(1)
        # A fleet that is away is told and found again.
        await page.route("**/api/executions*", lambda route: route.abort())
        await expect(page.get_by_role("alert")).to_contain_text("The fleet does not answer.")
        await expect(row).to_be_visible()
        await page.unroute("**/api/executions*")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.get_by_role("alert")).to_have_count(0)

    async def test_what_runs_is_counted_searched_and_cancelled_together(self, page: Page, stage: Stage) -> None:
        name = f"batch-night-{stage.directory.name}"
        sleeping = [await stage.begin(f"{name}-{number}", f"{SLEEP} on") for number in range(2)]
        await _open(page, stage, f"/executions?text={name}")
        links = page.locator(".execution-name a")
        await expect(links).to_have_count(2)
        row = page.get_by_role("row").filter(has=page.locator(f"a[href='/executions/{sleeping[0]}']"))
        await expect(row.locator("[data-name=Tokens]")).to_have_text(re.compile("[1-9]"), timeout=_LONG)
        await page.get_by_role("button", name="Choose all 2 that run").click()
        await page.get_by_role("button", name="Cancel 2 executions").click()
        assert await serious(page) == []
        await page.get_by_role("button", name="Cancel them").click()
        await expect(page.locator(".badge", has_text="cancelled")).to_have_count(2, timeout=_LONG)
        # The same tasks as a batch, in one table.
        await _open(page, stage, "/batch")
        await page.get_by_label("Batch", exact=True).fill(f"night-{stage.directory.name}")
        await expect(page.get_by_role("status").filter(has_text="tasks ended")).to_contain_text("2 of 2 tasks ended")
        await expect(links).to_have_count(2)


class TestSubmit:
    async def test_what_is_wrong_is_said_at_its_field(self, page: Page, stage: Stage) -> None:
        await _open(page, stage, "/submit")
        submit = page.get_by_role("button", name="Submit", exact=True)
        await submit.click()
        words = page.get_by_label("What is to be done")
        await expect(words).to_be_focused()
        await expect(page.get_by_text("Say what is to be done.")).to_be_visible()
        await words.fill(HELLO)
        place = page.get_by_label("Repository", exact=True)
        await place.fill("relative/path")
        await submit.click()
        await expect(place).to_have_attribute("aria-invalid", "true")
        await expect(page.locator(".field-error")).to_contain_text("not an absolute path")
        assert await serious(page) == []
        # Uncommitted changes are refused, too; put right, the same form goes through.
        repository = stage.repository("dirty")
        (repository / "utils.py").write_text("dirty = True\n")
        await place.fill(str(repository))
        await submit.click()
        await expect(page.locator(".field-error, .banner-bad").first).to_contain_text("uncommitted")
        (repository / "utils.py").write_text(HELLO_FILES["utils.py"])
        await submit.click()
        await expect(page).to_have_url(re.compile(r"/executions/[0-9a-f-]{36}"))
        # The next task finds the repository among the recent ones.
        await _open(page, stage, "/submit")
        button = await submit.bounding_box()
        assert button is not None and button["y"] < 700, "the button is seen at once"
        await page.get_by_role("button", name=re.compile("dirty-")).click()
        await expect(place).to_have_value(str(repository))


class TestChat:
    async def test_a_chat_and_what_stood_beside_its_answers_is_kept_and_forgotten(
        self, page: Page, stage: Stage
    ) -> None:
        for number in range(2):
            await stage.begin(f"beside-{number}", HELLO)
        await _open(page, stage, "/chat")
        message = page.get_by_label("Message", exact=True)
        turns = [page.get_by_role("article", name=f"Turn {number}") for number in (1, 2, 3)]
        asked = ("List what the fleet did", "Show me the second one", "Sum the squares of 1 to 10")
        for turn, text in zip(turns, asked, strict=True):
            await message.fill(text)
            await message.press("Enter")
            await expect(turn).to_be_visible(timeout=_LONG)
        await expect(turns[2]).to_contain_text("The sum is 385.")
        await expect(turns[2]).to_contain_text("python_executor")
        await expect(message).to_be_focused()
        rows = turns[0].get_by_role("row")
        references = turns[1].get_by_role("list", name="What phrases mean")
        await expect(rows).to_have_count(3)
        await expect(references).to_contain_text("the second one means execution")
        before = [await rows.all_inner_texts(), await references.inner_text()]
        await page.reload()
        await expect(rows).to_have_count(3)
        assert [await rows.all_inner_texts(), await references.inner_text()] == before
        assert await serious(page) == []
        await page.get_by_role("button", name="Forget the chat Sum the").first.click()
        await page.get_by_role("button", name="Forget it").click()
        await expect(page).to_have_url(re.compile("/chat$"))
        await expect(turns[0]).to_have_count(0)

    async def test_an_answer_in_markup_stays_an_answer(self, page: Page, stage: Stage) -> None:
        await _open(page, stage, "/chat")
        await page.get_by_label("Message", exact=True).fill(f"Answer in markup {MARKUP}")
        await page.get_by_role("button", name="Send").click()
        answer = page.get_by_role("article", name="Turn 1").locator(".markdown")
        await expect(answer.locator("strong")).to_have_text("Bold")
        await expect(answer).to_contain_text("<img src=x")
        links = await answer.locator("a").evaluate_all("(all) => all.map((one) => one.href)")
        assert links == ["https://example.org/a", "https://example.org/x.png"]
        assert await page.locator("#view img, #view script").count() == 0
        assert HOSTILE_ANSWER.count("owned") == 2
        assert await page.title() == "Chat · SWE AI Fleet"


class TestEverybody:
    async def test_the_keyboard_is_enough(self, page: Page, stage: Stage) -> None:
        await _open(page, stage, "/executions")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#view")).to_be_focused()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Submit a task")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Submit a task")).to_be_visible()
        await expect(page.locator("#view")).to_be_focused()

    @pytest.mark.parametrize("theme", ["light", "dark", "phone"])
    async def test_every_view_is_sound_and_fits(self, page: Page, stage: Stage, theme: str) -> None:
        """Lists, forms, and an execution with all that it shows."""
        reviewed = stage.executions.get("reviewed") or await stage.reviewed()
        gate = stage.executions["gate"] = stage.executions.get("gate") or await stage.risky()
        if theme == "phone":
            await page.set_viewport_size({"width": 360, "height": 740})
        await page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        faults: dict[str, object] = {}
        tabs = {f"executions/{reviewed}?tab={tab}": "" for tab in ("timeline", "candidates", "audit", "events")}
        others = dict.fromkeys((f"executions/{gate}", "workflows/fix-issue", "workflows/new", "plans"), "")
        for path, title in (_VIEWS | tabs | others).items():
            await _open(page, stage, f"/{path}")
            await expect(page.locator("h1")).to_have_text(title or re.compile("."))
            await _settled(page)
            name = re.sub(r"\W+", "-", path.replace(reviewed, "").replace(gate, "gate"))
            await page.screenshot(path=ARTIFACTS / f"{name}-{theme}.png", full_page=True)
            wider = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            found = await serious(page)
            if wider > 0 or found:
                faults[path] = (wider, found)
        assert not faults, json.dumps(faults, indent=1)

    async def test_hostile_words_stay_words(self, page: Page, stage: Stage) -> None:
        await stage.begin("hostile-list", HOSTILE_TASK)
        await _open(page, stage, "/executions?task=")
        await expect(page.locator(".execution-name").filter(has_text="<script>").first).to_be_visible()
        assert await page.locator("#page img, #page script").count() == 0
        assert "\u202e" not in await page.locator("#view").inner_text()
        assert await page.title() == "Executions · SWE AI Fleet"
