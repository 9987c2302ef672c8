"""Pages in a real browser against a real service: what happens to pages, and to the service under them.

They load the client from the service; the pages themselves are answered by the test, at the service's own address. One browser and one
service for all; each test has a profile of its own.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from roskva.gateway.polled import IDLE_S
from roskva.protocol.tokens import Claims
from tests.gateway.test_demo_page import ARGUMENTS, CHROMIUM

from .service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

playwright_api = pytest.importorskip("playwright.sync_api")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.browser,
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Chrome: `make test` installs one where it may"),
]

WAIT_S = 60
TABS = 10
# A page that the test answers itself comes from no address, and may for that reason not open WebSockets to loopback.
FROM_NOWHERE = "--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets"
PAGE = """<!doctype html><title>A page of the tests</title><script type="module">
import { Client, IndexedDbStore, LiveCache } from "/roskva.js";
const { name, cached, ...options } = JSON.parse(decodeURIComponent(location.hash.slice(1)));
window.seen = [];
window.client = new Client("", { application: "demo", ...options });
client.addEventListener("outofsync", () => (window.lost = true));
const fetched = async (id) => (await fetch(`/document/${id}`)).json();
if (cached) window.cache = new LiveCache(client, fetched, { versioned: true, store: new IndexedDbStore(), startWaitS: 20 });
else client.register(name, ({ version }) => void seen.push(String(version)));
</script>"""
# A driven page is never hidden; this is what it would see when its tab goes to the background, and comes back after ten minutes.
HIDDEN = """() => {
  Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
SHOWN_AFTER_MINUTES = """() => {
  const now = Date.now;
  Date.now = () => now() + 600_000;
  delete document.visibilityState;
  document.dispatchEvent(new Event("visibilitychange"));
}"""

# What a proxy may do to WebSockets: none comes about; or a browser that has none.
WEBSOCKETS_FAIL = """window.WebSocket = class extends EventTarget {
  constructor() {
    super();
    setTimeout(() => this.onclose({ code: 1006, wasClean: false }));
  }
  close() {}
}"""
NO_WEBSOCKETS = "delete window.WebSocket"


class Pages:
    """A profile of the browser, and the pages in it; what they fetch besides Roskva is `documents`."""

    def __init__(self, context: BrowserContext, service: Service) -> None:
        self.context = context
        self.service = service
        self.name = f"page-{uuid.uuid4().hex[:8]}"
        self.problems: list[str] = []
        self.documents: dict[str, dict[str, Any]] = {}
        self.fetches = 0
        context.set_default_timeout(WAIT_S * 1000)
        context.on("weberror", lambda problem: self.problems.append(str(problem.error)))
        context.route("**/page", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        context.route("**/document/*", self._fetched)

    def _fetched(self, route: Route) -> None:
        self.fetches += 1
        route.fulfill(json=self.documents[route.request.url.rpartition("/")[2]])

    def go(self, page: Page, **options: object) -> None:
        page.goto(f"{self.service.url}/page#{urllib.parse.quote(json.dumps({'name': self.name, **options}))}")

    def open(self, **options: object) -> Page:
        page = self.context.new_page()
        self.go(page, **options)
        if "cached" not in options:
            in_sync(page)
        return page

    def publish(self, version: int) -> None:
        body = {"application": "demo", "object": self.name, "version": str(version)}
        answer = self.context.request.post(f"{self.service.url}/v1/publish", data=body)
        assert answer.json() == {"results": [{"ok": True}]}

    def matched(self, version: int) -> None:
        """The service knows this version: whoever can be told is told."""
        self._until(lambda: self.context.request.get(f"{self.service.url}/v1/objects/demo/{self.name}").json().get("version") == version)

    def settled(self, version: int) -> None:
        """The pipeline is done with it as well: whoever returns before that is told once more what the fast path told it (decision 25)."""
        self.matched(version)
        self._until(lambda: not any(self.service.get("/v1/status")["pipeline"]["lag"]["updates"].values()))

    def connections(self, expected: int, within_s: float = WAIT_S) -> int:
        """So many connections of clients does the gateway count, in the end."""
        self._until(lambda: self.service.get("/v1/status")["connections"] == expected, within_s)
        return expected

    def _until(self, happened: Callable[[], bool], within_s: float = WAIT_S) -> None:
        deadline_s = time.monotonic() + within_s
        while not happened():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


class Renderers:
    """The browser's processes in which pages run."""

    def __init__(self, browser: Browser) -> None:
        self._session = browser.new_browser_cdp_session()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        processes = self._session.send("SystemInfo.getProcessInfo")["processInfo"]
        pids = [process["id"] for process in processes if process["type"] == "renderer"]
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright_api.sync_playwright() as playwright:
        playwright_api.expect.set_options(timeout=WAIT_S * 1000)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, FROM_NOWHERE])
        yield browser
        browser.close()


@pytest.fixture
def renderers(browser: Browser) -> Renderers:
    return Renderers(browser)


@pytest.fixture
def pages(browser: Browser, breakable: Service) -> Iterator[Pages]:
    context = browser.new_context()
    pages = Pages(context, breakable)
    yield pages
    for page in context.pages:
        page.close()  # as a person does: then they say goodbye
    context.close()
    assert pages.problems == []


def in_sync(page: Page) -> None:
    page.wait_for_function("() => window.client?.inSync")


def sees(page: Page, version: int | None) -> None:
    page.wait_for_function("version => window.seen.at(-1) === version", arg=str(version) if version is not None else "null")


def kept(page: Page, where: str = "localStorage") -> dict[str, Any]:
    """What the client keeps."""
    (state,) = page.evaluate(f"Object.keys({where}).filter(key => key.startsWith('roskva:')).map(key => {where}[key])")
    found: dict[str, Any] = json.loads(state)
    return found


def client_id(token: str) -> str:
    """A token is opaque to clients; the service's own tests may look. docs/protocol.md, and roskva.protocol.tokens for its form."""
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    return msgspec.msgpack.decode(data[18:], type=Claims).client


@pytest.mark.parametrize(("spoilt", "channel"), [("", "websocket"), (WEBSOCKETS_FAIL, "long-poll"), (NO_WEBSOCKETS, "long-poll")])
def test_both_clients_of_the_demo_page_show_what_is_published(pages: Pages, spoilt: str, channel: str) -> None:
    page = pages.context.new_page()
    page.add_init_script(spoilt)
    page.goto(pages.service.url)
    page.fill("#object", pages.name)
    page.fill("#version", "7")
    for pane in (page.locator(".pane").nth(0), page.locator(".pane").nth(1)):
        pane.get_by_label("Object").fill(pages.name)
        pane.get_by_role("button", name="Register").click()
        playwright_api.expect(pane.locator(".in-sync")).to_have_text("in sync")
    page.get_by_role("button", name="Publish").click()
    playwright_api.expect(page.get_by_role("cell", name="7", exact=True)).to_have_count(4)  # shown and acknowledged, by both
    assert page.evaluate("demo.panes.map(({ client }) => client.channel)") == [channel, channel]
    for direction in ("in", "out"):  # both are in the log, whatever carries them
        assert page.locator(f".log .{direction}", has_text=pages.name).count() >= 2
    page.close()
    pages.connections(0)


def test_pages_learn_what_is_published_also_what_was_while_they_were_offline(pages: Pages) -> None:
    both = [pages.open(tabs=False), pages.open(tabs=False, channel="long-poll")]
    assert [page.evaluate("client.channel") for page in both] == ["websocket", "long-poll"]
    assert kept(both[0], "sessionStorage")["device"] != kept(both[1], "sessionStorage")["device"]
    pages.publish(1)
    for page in both:
        sees(page, 1)
    pages.context.set_offline(True)
    for version in (2, 3):
        pages.publish(version)
    pages.matched(3)
    assert both[0].evaluate("seen.at(-1)") == "1"  # an answer that a poll waits for already gets through
    pages.context.set_offline(False)
    for page in both:
        sees(page, 3)
        in_sync(page)
    both[1].close()
    pages.connections(1, within_s=IDLE_S / 2)  # it says goodbye; else the service waits so long for its next poll


def test_a_reload_keeps_the_client_and_nothing_is_told_again(pages: Pages) -> None:
    page = pages.open()
    pages.publish(1)
    sees(page, 1)
    in_sync(page)
    pages.settled(1)
    before = kept(page)
    client = client_id(before["token"])
    assert pages.service.get(f"/v1/inspect/clients/{client}")["device"] == before["device"]
    page.reload()
    in_sync(page)
    after = kept(page)
    assert (client_id(after["token"]), after["device"]) == (client, before["device"])
    assert page.evaluate("seen") == []
    pages.publish(2)
    sees(page, 2)
    assert client in pages.service.run("inspect", "client", client).stdout


def test_a_page_that_slept_asks_at_once_and_learns(pages: Pages, renderers: Renderers) -> None:
    page = pages.context.new_page()
    with page.expect_websocket() as opened:
        pages.go(page)
    sees(page, None)
    in_sync(page)
    page.evaluate(HIDDEN)
    with renderers.asleep():
        pages.publish(1)
        pages.matched(1)
    # Silence would last for most of a minute, and acknowledgements are no question.
    with opened.value.expect_event("framesent", lambda sent: "acks" not in sent):
        page.evaluate(SHOWN_AFTER_MINUTES)
    sees(page, 1)
    in_sync(page)


def test_a_restarted_gateway_finds_its_pages_again(pages: Pages) -> None:
    both = [pages.open(tabs=False), pages.open(tabs=False, channel="long-poll")]
    for page in both:
        page.evaluate("window.lost = false")
    pages.publish(1)
    pages.service.kill_all("gateway")
    for page in both:
        page.wait_for_function("() => window.lost")
        in_sync(page)
        sees(page, 1)
    pages.publish(2)
    for page in both:
        sees(page, 2)
        in_sync(page)


def test_a_client_that_the_service_does_not_know_starts_anew_by_itself(pages: Pages) -> None:
    page = pages.open()
    pages.publish(1)
    sees(page, 1)
    before = kept(page)
    page.goto(f"{pages.service.url}/demo.css")  # the same origin, and no client
    spoilt = before["token"][:-6] + before["token"][-6:].swapcase()
    changed = "([was, is]) => { for (const key of Object.keys(localStorage)) localStorage[key] = localStorage[key].replace(was, is) }"
    page.evaluate(changed, [before["token"], spoilt])
    assert kept(page)["token"] == spoilt
    pages.go(page)
    sees(page, 1)
    in_sync(page)
    anew = kept(page)
    assert anew["device"] == before["device"]
    assert client_id(anew["token"]) != client_id(before["token"])

    for path in pages.service.data.glob("table/registrar-*"):  # and the service loses all of them, under the running page
        path.unlink(missing_ok=True)
    page.wait_for_function("was => !Object.values(localStorage).join().includes(was)", arg=anew["token"])
    in_sync(page)
    pages.publish(2)
    sees(page, 2)
    assert client_id(kept(page)["token"]) != client_id(anew["token"])


def test_tabs_share_one_connection_and_another_leads_when_the_leader_is_closed(pages: Pages) -> None:
    tabs = [pages.open() for _ in range(TABS)]
    shared = pages.connections(1)
    pages.publish(1)
    for tab in tabs:
        sees(tab, 1)
    tabs.pop(0).close()  # it led
    pages.publish(2)
    for tab in tabs:
        sees(tab, 2)
        in_sync(tab)
    pages.connections(1)
    for tab in tabs:
        tab.close()
    tabs = [pages.open(tabs=False) for _ in range(TABS)]
    alone = pages.connections(TABS)
    print(f"{TABS} tabs of a page: {shared} connection shared, {alone} with tabs: false")


def test_another_tab_leads_when_the_leader_crashes_and_all_end_when_one_forgets(pages: Pages) -> None:
    leader, second = pages.open(), pages.open()
    device = leader.evaluate("client.device")
    with suppress(playwright_api.Error):
        leader.goto("chrome://crash")
    pages.publish(1)
    sees(second, 1)
    third = pages.open()
    pages.connections(1)
    assert [page.evaluate("client.device") for page in (second, third)] == [device] * 2
    third.evaluate("client.addEventListener('stopped', () => (window.stopped = true))")
    second.evaluate("client.forget()")
    third.wait_for_function("() => window.stopped")
    pages.connections(0)
    assert second.evaluate("Object.keys(localStorage)") == []


def test_a_kept_value_is_fresh_after_a_reload_without_a_fetch(pages: Pages) -> None:
    pages.documents[pages.name] = {"value": "first", "version": 1}
    pages.publish(1)
    pages.matched(1)
    page = pages.open(cached=True)
    get = "name => cache.get(name)"
    fresh = "name => cache.state(name).state === 'fresh'"
    assert page.evaluate(get, pages.name) == "first"
    page.wait_for_function(fresh, arg=pages.name)
    in_sync(page)
    page.reload()
    assert page.evaluate(get, pages.name) == "first"
    page.wait_for_function(fresh, arg=pages.name)
    assert pages.fetches == 1
    pages.documents[pages.name] = {"value": "second", "version": 2}
    pages.publish(2)
    page.wait_for_function("name => cache.peek(name) === 'second'", arg=pages.name)
    assert pages.fetches == 2
