"""A real browser on the page of the real fleet."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.conftest import FleetUnderTest
from tests.web.stage import Stage, stage_of

_AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
ARTIFACTS = Path(__file__).with_name(".artifacts")
"""Where pictures of the page are kept for people to look at."""


@pytest.fixture(scope="session")
async def stage(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The session's fleet, and the means to give it something to show."""
    ARTIFACTS.mkdir(exist_ok=True)
    async with stage_of(fleet.running, tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Debian's Chromium; the tests are skipped only where none is installed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A browser's profile of its own for each test."""
    context = await browser.new_context(viewport={"width": 1360, "height": 900})
    context.set_default_timeout(20_000)
    yield context
    await context.close()


@pytest.fixture
async def page(context: BrowserContext, stage: Stage) -> AsyncIterator[Page]:
    """A page that is logged in. What goes wrong in it fails the test."""
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    await page.goto(stage.url)
    await page.wait_for_url(lambda url: "#token" not in url)
    yield page
    assert not wrong, wrong


async def serious(page: Page) -> list[tuple[str, str]]:
    """What axe finds that keeps somebody from using the page. Where axe is not installed, `make web` says so."""
    if not _AXE.exists():
        pytest.skip("axe-core is not installed; npm ci in web/")
    await page.evaluate(_AXE.read_text())
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [(one["id"], one["nodes"][0]["html"]) for one in grave]
