"""The demo page in a real browser: two clients of the real gateway. The Matcher's part is played by a task of this test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from roskva.gateway.service import Gateway
from tests.gateway.matching import run_matcher

if TYPE_CHECKING:
    from playwright.async_api import Page

playwright_api = pytest.importorskip("playwright.async_api")
# The same names as in scripts/setup.sh.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Chrome: `make test` installs one where it may"),
]

# Version and acknowledged version of each row that is shown, however briefly.
NOTE_ROWS = """() => {
  window.rows = [];
  const note = (row) => rows.push([...row.cells].slice(2, 4).map((cell) => cell.textContent).join(", "));
  const noting = new MutationObserver((changes) => changes.forEach(({ addedNodes }) => addedNodes.forEach(note)));
  for (const { element } of demo.panes) noting.observe(element.querySelector("tbody"), { childList: true });
}"""


@pytest.fixture
async def page(gateway: Gateway) -> AsyncIterator[Page]:
    matcher = asyncio.create_task(run_matcher(gateway))
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = await browser.new_page(viewport={"width": 1200, "height": 900})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        asked: set[str] = set()  # what the page asks for that is for operators
        page.on("request", lambda request: None if urlsplit(request.url).path in OPEN else asked.add(request.url))
        await page.goto(gateway.url)
        yield page
        await browser.close()
    matcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await matcher
    # A publish that is refused on purpose; and the service is not ready: it has no pipeline.
    assert [problem for problem in problems if "status of 400" not in problem and "status of 503" not in problem] == []
    assert asked == set()


OPEN = ("/", "/demo.css", "/demo.js", "/roskva.js", "/readyz", "/v1/channel", "/v1/publish")


async def test_two_clients_learn_what_is_published(page: Page, tmp_path: Path) -> None:
    expect = playwright_api.expect
    first, second = page.locator(".pane").nth(0), page.locator(".pane").nth(1)
    for pane in (first, second):
        await expect(pane.locator(".connected")).to_have_text("online")
        await pane.get_by_role("button", name="Register").click()
        await expect(pane.locator("tbody tr td").nth(1)).to_have_text("registered")
        await expect(pane.locator("tbody tr td").nth(3)).to_have_text("unknown")
        await expect(pane.locator(".in-sync")).to_have_text("in sync")
    await page.evaluate(NOTE_ROWS)
    await page.fill("#version", "1000")
    await page.get_by_role("button", name="Publish").click()
    for pane in (first, second):
        await expect(pane.locator("tbody tr td").nth(2)).to_have_text("1000")
        await expect(pane.locator("tbody tr td").nth(3)).to_have_text("1000")
    rows = await page.evaluate("rows")
    assert rows.count("1000, unknown") >= 2  # shown first, acknowledged afterwards
    assert "unknown, 1000" not in rows

    await second.get_by_role("button", name="Go offline").click()
    await expect(second.locator(".connected")).to_have_text("offline")
    await expect(second.locator(".in-sync")).to_have_text("not in sync")
    for version in ("1001", "1002"):
        await page.fill("#version", version)
        await page.get_by_role("button", name="Publish").click()
        await expect(first.locator("tbody tr td").nth(2)).to_have_text(version)
    await expect(second.locator("tbody tr td").nth(2)).to_have_text("1000")
    await second.get_by_role("button", name="Go online").click()
    await expect(second.locator("tbody tr td").nth(2)).to_have_text("1002")
    await expect(second.locator(".in-sync")).to_have_text("in sync")
    await page.screenshot(path=os.environ.get("DEMO_SCREENSHOT", str(tmp_path / "demo.png")), full_page=True)

    devices = await page.evaluate("demo.panes.map(pane => pane.client.device)")
    await page.reload()
    for pane in (first, second):
        await expect(pane.locator("tbody tr td")).to_have_text(["hello", "registered", "1002", "1002", "Unregister"])
        await expect(pane.locator(".in-sync")).to_have_text("in sync")
    assert await page.evaluate("demo.panes.map(pane => pane.client.device)") == devices

    await first.get_by_role("button", name="Unregister").click()
    await expect(first.locator("tbody tr")).to_have_count(0)
    await expect(first.locator(".in-sync")).to_have_text("in sync")


async def test_bad_publish_shows_the_error(page: Page) -> None:
    await page.fill("#object", "x" * 65 + "ü" * 40)
    await page.get_by_role("button", name="Publish").click()
    await playwright_api.expect(page.locator("#published.bad")).to_contain_text("cannot be used")
