"""The demo page in a real browser: two clients of the real gateway. The Matcher's part is played by a task of this test."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roskva.feed import REGISTRATIONS, UPDATES, Position, open_feed
from roskva.gateway.service import Gateway
from roskva.matcher.core import Batch, accept, collapse, match
from roskva.matcher.forms import Form, Malformed, Stamp, check, extract
from roskva.model import ObjectKey, Registration, Update
from roskva.protocol.summaries import SetDigest
from roskva.registrar.events import decode_registration
from roskva.table import open_table

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


def always(incarnation: int) -> Callable[[ObjectKey], int]:
    return lambda key: incarnation


async def run_matcher(gateway: Gateway) -> None:
    """What the pipeline does, batch by batch, without Spark: read, write, read, match, propagate."""
    settings = gateway.settings
    feed, table = open_feed(settings), open_table(settings)
    seen: dict[tuple[str, int], int] = {}
    while True:
        updates: list[Update] = []
        registrations: list[Registration] = []
        newest: dict[str, dict[int, Position]] = {topic: dict(feed.newest(topic)) for topic in (UPDATES, REGISTRATIONS)}
        for topic, positions in newest.items():
            for partition, end in positions.items():
                for record in feed.read(topic, partition, seen.get((topic, partition), 0), end.offset):
                    if topic == REGISTRATIONS:
                        registrations.append(decode_registration(record.value))
                        continue
                    fields = extract(record.value, Form())
                    update = fields if isinstance(fields, Malformed) else check(Stamp.decode(record.headers).application, 0, fields)
                    if isinstance(update, Update):
                        updates.append(update)
                seen[topic, partition] = end.offset
        batch: Batch = collapse(updates, registrations)
        if not batch.empty:
            incarnation = newest[UPDATES][0].incarnation
            accepted = accept(batch, settings.partitions, always(incarnation))
            table.write(accepted.writes)
            rows = table.read([*accepted.read_whole, *accepted.read_version])
            propagations = match(batch, rows, settings.partitions, always(incarnation))
            await gateway.registrar.propagate(propagations)
        await asyncio.sleep(0.05)


@pytest.fixture
async def page(gateway: Gateway) -> AsyncIterator[Page]:
    matcher = asyncio.create_task(run_matcher(gateway))
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = await browser.new_page(viewport={"width": 1200, "height": 900})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        await page.goto(gateway.url)
        yield page
        await browser.close()
    matcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await matcher
    assert [problem for problem in problems if "status of 400" not in problem] == []


async def test_two_clients_learn_what_is_published(page: Page, tmp_path: Path) -> None:
    expect = playwright_api.expect
    first, second = page.locator(".pane").nth(0), page.locator(".pane").nth(1)
    for pane in (first, second):
        await expect(pane.locator(".connected")).to_have_text("online")
        await pane.get_by_role("button", name="Register").click()
        await expect(pane.locator("tbody tr td").nth(1)).to_have_text("registered")
        await expect(pane.locator(".in-sync")).to_have_text("in sync")
    await page.fill("#version", "1000")
    await page.get_by_role("button", name="Publish").click()
    for pane in (first, second):
        await expect(pane.locator("tbody tr td").nth(2)).to_have_text("1000")
        await expect(pane.locator("tbody tr td").nth(3)).to_have_text("1000")

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

    await first.get_by_role("button", name="Unregister").click()
    await expect(first.locator("tbody tr")).to_have_count(0)
    await expect(first.locator(".in-sync")).to_have_text("in sync")


async def test_bad_publish_shows_the_error(page: Page) -> None:
    await page.fill("#object", "x" * 65 + "ü" * 40)
    await page.get_by_role("button", name="Publish").click()
    await playwright_api.expect(page.locator("#published.bad")).to_contain_text("cannot be used")


async def test_the_pages_sha256_is_sha256(page: Page) -> None:
    for text in ("", "hello", "grüße", "x" * 55, "x" * 56, "x" * 64, "y" * 119):
        found = await page.evaluate("text => window.demo.sha256(new TextEncoder().encode(text))", text)
        assert found == hashlib.sha256(text.encode()).hexdigest()
    names = [f"object {number}" for number in range(50)]
    summary = SetDigest(name.encode() for name in names).summary()
    assert await page.evaluate("names => window.demo.summaryOf(names)", names) == {"count": 50, "digest": summary.digest}
