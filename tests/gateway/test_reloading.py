"""Applications that change while a gateway runs (gateway/reloading.py)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from roskva.config import LiveApplications, Settings, Sources
from roskva.gateway.reloading import Applications, Reloading
from roskva.gateway.service import Gateway
from roskva.keys import load_keys
from tests.gateway.conftest import close_engines
from tests.gateway.talking import channel_url, hear_until, say

RELOAD_S = 0.05
SHOP = "[applications.shop]\nheartbeat_s = 600\n"


def write(file: Path, text: str) -> None:
    """As an editor that replaces the file."""
    aside = file.with_suffix(".new")
    aside.write_text(text)
    os.replace(aside, file)


def write_in_place(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "roskva.toml"


@pytest.fixture
def reloading(file: Path, settings: Settings) -> tuple[Reloading, LiveApplications, list[tuple[Applications, Applications]]]:
    """As a process that was started without a settings file; and what its observers heard."""
    sources = Sources(file, False, {}, {"data": str(settings.data), "listen": settings.listen, "reload_s": str(RELOAD_S)})
    started = sources.load()
    live = LiveApplications(started.applications)
    watch = Reloading(replace(started, applications=live), live, sources)
    heard: list[tuple[Applications, Applications]] = []
    watch.observers.append(lambda before, after: heard.append((before, after)))
    return watch, live, heard


Watched = tuple[Reloading, LiveApplications, list[tuple[Applications, Applications]]]


async def test_a_file_that_is_made_later_counts_and_observers_hear_what_changed(reloading: Watched, file: Path) -> None:
    watch, live, heard = reloading
    await watch.look()
    assert (list(live), heard) == (["demo"], [])
    write(file, SHOP + "[applications.demo]\n")
    await watch.look()
    assert live["shop"].heartbeat_s == 600
    assert [(list(before), list(after)) for before, after in heard] == [(["demo"], ["shop", "demo"])]
    write(file, SHOP.replace("600", "700"))
    await watch.look()
    assert (list(live), live["shop"].heartbeat_s) == (["shop"], 700)
    assert heard[1][0]["shop"].heartbeat_s == 600  # what was before is not changed under whoever holds it
    await watch.look()
    write(file, SHOP.replace("600", "700") + "# a comment\n")
    await watch.look()
    assert len(heard) == 2


async def test_a_change_between_the_start_and_the_first_look_counts(file: Path, settings: Settings) -> None:
    write(file, SHOP)
    sources = Sources(file, True, {}, {"data": str(settings.data), "reload_s": str(RELOAD_S)})
    started = sources.load()
    write(file, SHOP.replace("600", "700"))
    live = LiveApplications(started.applications)
    await Reloading(replace(started, applications=live), live, sources).look()
    assert live["shop"].heartbeat_s == 700


KEPT = """\
publish_keys = ["sha256:{hash}"]
authentication = "webhook"
authentication_webhook = "https://shop.example/who"
"""
KEPT_SHOP = "[applications.shop]\n" + KEPT.format(hash="a" * 64)
OPENED = {
    "listens on this machine only": 'listen = "127.0.0.1:8470"\n[applications.shop]\n',
    "is insecure": 'listen = "0.0.0.0:8470"\ninsecure = true\n[applications.shop]\n',
    "says nothing of either": "[applications.shop]\n",
    "adds an open application": f'listen = "127.0.0.1:8470"\n{KEPT_SHOP}[applications.wiki]\n',
}


@pytest.mark.parametrize("text", OPENED.values(), ids=OPENED)
@pytest.mark.parametrize("port", ["listen", "internal_listen"])
async def test_a_file_opens_nothing_where_the_process_listens_whatever_it_says_of_addresses(
    file: Path, text: str, port: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, f'{port} = "0.0.0.0:8470"\n{KEPT_SHOP}')
    sources = Sources(file, True, {}, {"reload_s": str(RELOAD_S)})
    started = sources.load()
    live = LiveApplications(started.applications)
    watch = Reloading(replace(started, applications=live), live, sources)
    await watch.look()
    write(file, text.replace("listen", port, 1))
    await watch.look()
    assert list(live) == ["shop"]
    assert (live["shop"].authentication, len(live["shop"].publish_keys)) == ("webhook", 1)
    assert f"the settings in use stay: {port} is 0.0.0.0:8470" in caplog.text
    write(file, f'{port} = "127.0.0.1:8470"\n{KEPT_SHOP}heartbeat_s = 700\n')  # what opens nothing counts
    await watch.look()
    assert live["shop"].heartbeat_s == 700


async def test_a_file_counts_when_it_stays_the_same_for_two_looks(reloading: Watched, file: Path) -> None:
    """Every beginning of a file that is written in place is there for a while; many are good TOML, with less in it."""
    watch, live, heard = reloading
    write(file, "[applications.wiki]\n" + KEPT_SHOP)
    await watch.look()
    watch._settings = replace(watch._settings, reload_s=0.5)
    whole = f"[applications.wiki]\nheartbeat_s = 700\n{KEPT_SHOP}"
    write_in_place(file, "")
    looking = asyncio.create_task(watch.look())
    for end in (whole.index("[applications.shop"), whole.index("publish_keys"), whole.index("authentication ="), len(whole)):
        await asyncio.sleep(0.1)
        write_in_place(file, whole[:end])
        assert len(heard) == 1
        assert not looking.done()
    async with asyncio.timeout(5):
        await looking
    assert len(heard) == 2
    assert (live["wiki"].heartbeat_s, live["shop"].authentication) == (700, "webhook")


async def test_a_file_that_changes_while_it_is_read_does_not_count(reloading: Watched, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, live, _ = reloading
    write(file, KEPT_SHOP)
    await watch.look()
    load = Sources.load

    def caught(sources: Sources) -> Settings:
        write_in_place(file, "[applications.shop]\n")
        return load(sources)

    write(file, KEPT_SHOP + "heartbeat_s = 700\n")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Sources, "load", caught)
        await watch.look()
    assert live["shop"].authentication == "webhook"
    write(file, KEPT_SHOP + "heartbeat_s = 800\n")
    await watch.look()
    assert live["shop"].heartbeat_s == 800


BAD_FILES = [
    "nonsense",
    "[applications.shop]\nheartbeat = 1\n",
    "[applications.shop]\nheartbeat_s = 0\n",
    "[applications.SHOP]\n",
    '[applications.shop]\nauthentication = "jwt"\njwt_keys = "/nowhere/keys.pem"\n',
    'listen = "0.0.0.0:8470"\n[applications.shop]\n',
    "\x00",
]


@pytest.mark.parametrize("text", BAD_FILES)
async def test_a_bad_file_is_logged_once_and_changes_nothing(
    reloading: Watched, file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch, live, heard = reloading
    if text.startswith("listen"):
        watch._sources = (
            replace(watch._sources, flags={"reload_s": str(RELOAD_S)}) if watch._sources else None
        )  # else a flag wins over the file
    write(file, text)
    with caplog.at_level(logging.INFO):
        await watch.look()
        await watch.look()
    assert (list(live), heard) == (["demo"], [])
    (entry,) = [record for record in caplog.records if record.name.startswith("roskva")]
    assert entry.levelname == "ERROR"
    assert "the settings in use stay" in entry.message
    write(file, SHOP)
    await watch.look()
    assert list(live) == ["shop"]


async def test_a_file_that_is_gone_changes_nothing(reloading: Watched, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch, live, _ = reloading
    write(file, SHOP)
    await watch.look()
    os.unlink(file)
    await watch.look()
    assert list(live) == ["shop"]
    assert "is gone" in caplog.text
    write(file, SHOP.replace("shop", "wiki"))
    await watch.look()
    assert list(live) == ["wiki"]


async def test_what_needs_a_restart_is_said_once(reloading: Watched, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch, live, _ = reloading
    for number in range(3):
        write(file, f"partitions = 8\nretry_horizon_s = 5\n{SHOP}# {number}\n")
        await watch.look()
    assert list(live) == ["shop"]
    assert caplog.text.count("partitions, retry_horizon_s") == 1


async def test_an_observer_that_fails_stops_nobody(reloading: Watched, file: Path) -> None:
    watch, live, heard = reloading

    def broken(before: Applications, after: Applications) -> None:
        raise ZeroDivisionError

    watch.observers.insert(0, broken)
    write(file, SHOP)
    await watch.look()
    assert list(live) == ["shop"]
    assert len(heard) == 1


@pytest.fixture
async def reloaded(file: Path, settings: Settings) -> AsyncIterator[Gateway]:
    flags = {"data": str(settings.data), "listen": settings.listen, "reload_s": str(RELOAD_S)}
    sources = Sources(file, False, {}, flags)
    gateway = Gateway(sources.load(), sources=sources)
    await gateway.start()
    yield gateway
    await gateway.stop()
    close_engines(gateway.settings)


async def test_a_running_gateway_serves_an_application_that_was_added(
    reloaded: Gateway, file: Path, anybody: aiohttp.ClientSession
) -> None:
    body = {"application": "shop", "object": "a", "version": 1}
    async with anybody.post(reloaded.url + "/v1/publish", json=body) as answer:
        assert answer.status == 404
    write(file, SHOP)
    async with asyncio.timeout(5):
        while "shop" not in reloaded.settings.applications:
            await asyncio.sleep(0.02)
    async with anybody.post(reloaded.url + "/v1/publish", json=body) as answer:
        assert answer.status == 200
    async with anybody.ws_connect(channel_url(reloaded)) as socket:
        await say(socket, init={"nonce": "n", "application": "shop", "device": "phone"})
        assert (await hear_until(socket, "grant"))["grant"]["token"]
    await asyncio.sleep(1.2)  # the Registrar's round of the second
    admin = {"Authorization": f"Bearer {load_keys(reloaded.settings.data).admin}"}
    async with anybody.get(reloaded.url + "/v1/status", headers=admin) as answer:
        assert (await answer.json())["applications"] == ["shop"]
    assert reloaded.registrar.rounds.epochs["shop"] == 0
