"""The parts of `reconnect`, `channels` and `contacts` that decide what is counted, without a service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from bench.accounting import GATEWAY, GENERATOR, JVM, Snapshot
from bench.channels import LONG_POLL, WEBSOCKET, Round, figures_of
from bench.clients import Fleet
from bench.contacts import Changes, Watcher, Way
from bench.plots import draw
from bench.polled import PolledClient
from bench.reconnect import peaks, per_second
from bench.report import Result
from bench.returning import ReturningClient, ReturningFleet
from bench.world import Window


def test_attempts_are_counted_by_the_second_in_which_they_began() -> None:
    assert per_second([0.0, 0.999, 1.0, 3.2]) == [2, 1, 0, 1]
    assert per_second([]) == []


def test_peak_cpu_is_the_busiest_second_and_counts_a_new_gateway_from_its_start() -> None:
    samples = [
        Snapshot(0.0, {(1, GATEWAY): 5.0, (2, JVM): 1.0}, 10.0),
        Snapshot(1.0, {(1, GATEWAY): 5.1, (2, JVM): 1.5}, 11.0),
        Snapshot(2.0, {(3, GATEWAY): 0.9, (2, JVM): 1.5}, 12.0),
    ]
    found = peaks(samples)
    assert (found["gateway"], found["pipeline"]) == (90.0, 50.0)
    assert peaks(samples[:1])["gateway"] == 0.0


async def test_who_has_not_connected_again_is_not_informed_whatever_it_still_hears() -> None:
    fleet = ReturningFleet("http://127.0.0.1:1")
    client = ReturningClient(fleet, 0, "device", [])
    fleet.clients.append(client)
    event = fleet.begin_event(disconnects=True)
    fleet.noted_informed(client)
    assert not event.informed_s
    fleet.noted_connected(client)
    fleet.noted_informed(client)
    assert len(event.informed_s) == 1
    await client.connect()  # nobody listens at port 1
    assert len(event.attempts_s) == 1
    await fleet.close()


def _round(channel: str, latencies_ms: list[float], gateway_s: float) -> Round:
    window = Window.__new__(Window)
    window.cpu_seconds = {GATEWAY: gateway_s, GENERATOR: 1.0}
    return Round(channel, latencies_ms, len(latencies_ms) + 1, 0, window)


def test_channels_are_compared_over_all_their_rounds(tmp_path: Path) -> None:
    rounds = [_round(WEBSOCKET, [10.0] * 500, 0.5), _round(LONG_POLL, [20.0] * 1_000, 3.0), _round(WEBSOCKET, [10.0] * 500, 0.5)]
    figures = figures_of(rounds)
    websocket, long_poll = figures["channels"]
    assert (websocket["delivered"], websocket["collapsed"], long_poll["collapsed"]) == (1_000, 2, 1)
    assert (websocket["gateway_cpu_ms_per_1000"], long_poll["gateway_cpu_ms_per_1000"]) == (1_000.0, 3_000.0)
    assert figures["long_poll_to_websocket"]["p50_ms"] == 2.0
    assert figures["long_poll_to_websocket"]["gateway_cpu_ms_per_1000"] == 3.0
    assert b"<svg" in draw(Result("channels", {"load": "x"}, "none", figures, []).document(), tmp_path).read_bytes()


def test_staleness_counts_every_change_once_from_when_it_was_due(tmp_path: Path) -> None:
    changes, stale_ms = Changes(), [0.0] * 0
    watcher = Watcher(changes, "friends", stale_ms)
    watcher.show({})
    assert not watcher.is_behind()
    first, other, second = changes.make("friends", 1.0), changes.make("family", 2.0), changes.make("friends", 3.0)
    assert (first, other, second) == (1, 2, 3)
    watcher.show({"changed": "1"})
    assert watcher.is_behind()
    watcher.show({"changed": "3"})
    watcher.show({"changed": "3"})
    assert not watcher.is_behind()
    assert len(stale_ms) == 2
    assert stale_ms[0] - stale_ms[1] == pytest.approx(2_000, abs=500)
    way = Way("polls every 10 s", "polling", 10.0, stale_ms=[5_000.0, 9_000.0], reads=360)
    assert way.figures(180.0) == {
        "way": "polls every 10 s",
        "backend_reads_per_s": 2.0,
        "changes_shown": 2,
        "stale_p50_s": 9.0,
        "stale_p95_s": 9.0,
        "stale_p99_s": 9.0,
        "stale_max_s": 9.0,
    }
    figures = {"ways": [way.figures(180.0)]}
    assert b"<svg" in draw(Result("contacts", {"load": "x"}, "none", figures, []).document(), tmp_path).read_bytes()
    over = {"attempts_per_second": [5, 1], "connected_over_time": [[0.5, 6]], "in_sync_over_time": [[1.5, 6]]}
    assert b"<svg" in draw(Result("reconnect", {"load": "x"}, "none", over, []).document(), tmp_path).read_bytes()


async def test_a_lean_client_by_long_poll_hears_and_acknowledges_what_one_by_websocket_does() -> None:
    said: list[dict[str, object]] = []
    to_tell: asyncio.Queue[dict[str, object]] = asyncio.Queue()

    async def opened(request: web.Request) -> web.Response:
        return web.json_response({"id": "x"}, status=201)

    async def polled(request: web.Request) -> web.Response:
        return web.Response(body=json.dumps(await to_tell.get()).encode() + b"\n")

    async def taken(request: web.Request) -> web.Response:
        message = json.loads(await request.text())
        said.append(message)
        if "init" in message:
            to_tell.put_nowait({"grant": {"token": "t"}})
        if "register" in message:
            told = {"object": "a", "seqno": "4294967297", "version": "7"}
            to_tell.put_nowait({"status": [{"object": "a", "state": "registered"}], "notify": [told]})
        return web.Response(status=204)

    application = web.Application()
    application.add_routes([web.post("/v1/channels", opened), web.get("/v1/channels/x", polled), web.post("/v1/channels/x", taken)])
    runner = web.AppRunner(application, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    fleet = Fleet(f"http://127.0.0.1:{port}", PolledClient)
    try:
        await fleet.join(1, lambda _: ["a"])
        async with asyncio.timeout(10):
            while not said[-1].get("acks"):
                await asyncio.sleep(0.005)
        assert said[-1]["acks"] == [{"object": "a", "seqno": "4294967297", "version": "7"}]
        assert list(fleet.heard.versions) == [7]
        assert fleet.alive() == 1
    finally:
        fleet.close()
        await runner.cleanup()
