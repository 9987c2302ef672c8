"""A small crowd against a real gateway: it arrives, hears everything, loses messages and lines, and returns."""

from __future__ import annotations

import asyncio
from typing import Any, SupportsIndex

import pytest

from roskva.errors import BadRequest, ServiceUnreachable, TrustRefused
from roskva.gateway.service import Gateway
from roskva.keys import load_keys
from roskva.load.generator import Generator
from roskva.load.plan import Plan
from tests.gateway.test_channels import until

PLAN = Plan(30, registrations=4, objects=40, lines=2, publishers=2, batch=3)


def key_of(gateway: Gateway) -> str:
    return load_keys(gateway.settings.data).trusted


async def arrived(generator: Generator, count: int = 30) -> None:
    generator.wanted = count

    def are_there() -> bool:
        generator.check()
        return generator.counts.in_sync == count

    await until(are_there, 30.0)


async def test_a_crowd_arrives_and_is_told_every_accepted_version(gateway: Gateway) -> None:
    async with Generator(PLAN, gateway.url, key_of(gateway)) as generator:
        await arrived(generator)
        assert len(gateway.registrar.sessions) == 30
        assert len(gateway.port.lines) == 2
        for line in gateway.port.lines:  # numbers that follow each other take the least memory there
            assert [client.name for client in line.clients.values()] == list(range(15))
        generator.rate_per_s = 300.0
        await until(lambda: generator.counts.published > 100)
        assert await generator.drained(20.0)
        counts = generator.counts
        assert counts.published == generator.publishing.answers.count
        assert counts.missing == 0
        assert counts.notified > 100
        assert counts.publish_refused == counts.publish_lost == counts.publish_skipped == 0
        report = generator.report()
        assert report.latencies.count == counts.notified
        assert report.line_down == ""
        assert generator.report().latencies.count == 0  # each tells of the time since the last
    await until(lambda: not gateway.registrar.sessions)


async def test_updates_share_a_request_only_while_all_connections_wait(gateway: Gateway) -> None:
    plan = Plan(30, registrations=4, objects=40, lines=2, publishers=1, batch=1_000)
    async with Generator(plan, gateway.url, key_of(gateway)) as generator:
        await arrived(generator)
        generator.rate_per_s = 20.0
        await until(lambda: generator.counts.published >= 10)
        assert gateway.metrics.publish_requests >= 0.5 * generator.counts.published
        before, published = gateway.metrics.publish_requests, generator.counts.published
        generator.rate_per_s = 20_000.0
        await until(lambda: generator.counts.published >= published + 10_000)
        assert gateway.metrics.publish_requests - before < 0.7 * (generator.counts.published - published)
        assert generator.report().latencies.summary()


async def test_each_client_updates_as_often_as_asked(gateway: Gateway) -> None:
    async with Generator(PLAN, gateway.url, key_of(gateway)) as generator:
        generator.update_every_s = 0.5  # also while they are few: the first are no measure for all
        await arrived(generator)
        await until(lambda: generator.counts.published >= 60)
        assert await generator.drained(20.0)
    told = {slot // 4 for slot, version in enumerate(generator.clients.versions) if version > generator.clients.since_us}
    assert len(told) > 20  # all over the crowd


async def test_messages_that_are_lost_are_made_up_for(gateway: Gateway) -> None:
    lossy = Plan(30, registrations=4, objects=40, lines=2, publishers=2, batch=3, drop=0.2)
    async with Generator(lossy, gateway.url, key_of(gateway)) as generator:
        await arrived(generator)
        generator.rate_per_s = 200.0
        await until(lambda: generator.counts.published > 60)
        assert await generator.drained(30.0)
        assert generator.counts.dropped > 20
        assert generator.counts.retries > 0


async def test_a_line_that_breaks_is_made_again_and_its_clients_go_on(gateway: Gateway) -> None:
    async with Generator(PLAN, gateway.url, key_of(gateway)) as generator:
        await arrived(generator)
        handshakes = gateway.registrar.counters.handshakes
        for line in list(gateway.port.lines):
            assert line._transport is not None
            line._transport.abort()
        await until(lambda: generator.counts.in_sync == 0)
        assert generator.report().line_down
        await until(lambda: generator.counts.in_sync == 30)
        assert generator.counts.interrupted == 2
        assert gateway.registrar.counters.handshakes == handshakes  # the same sessions, over other lines


async def test_who_fell_out_and_did_not_come_back_is_not_complete(gateway: Gateway) -> None:
    async with Generator(PLAN, gateway.url, key_of(gateway)) as generator:
        await arrived(generator)
        assert await generator.drained(20.0)
        generator.clients.gone(7)  # and nothing brings it back
        assert not await generator.drained(0.5)
        assert generator.counts.missing == 0
        assert generator.lacking.startswith("1 of 30 clients are not in sync")


async def test_what_is_accepted_is_compared_and_set_by_one_process_at_a_time(gateway: Gateway) -> None:
    held = Held()
    latest = Watched(held)
    async with Generator(PLAN, gateway.url, key_of(gateway), latest=latest, lock=held) as generator:
        await arrived(generator)
        generator.rate_per_s = 300.0
        await until(lambda: generator.counts.published > 30)
        assert await generator.drained(20.0)
    assert latest.set_without == 0 < sum(version > 0 for version in latest)


class Watched(list[int]):
    """Versions by object, and how often one was set by who did not hold the lock."""

    def __init__(self, held: Held) -> None:
        super().__init__([0] * PLAN.objects)
        self._held = held
        self.set_without = 0

    def __setitem__(self, key: SupportsIndex | slice, value: Any) -> None:
        self.set_without += not self._held.held
        super().__setitem__(key, value)


class Held:
    held = False

    def __enter__(self) -> None:
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


async def test_clients_return_with_their_ids_and_register_nothing_again(gateway: Gateway) -> None:
    async with Generator(PLAN, gateway.url, key_of(gateway)) as generator:
        await arrived(generator)
        tokens = list(generator.clients.tokens)
    await until(lambda: not gateway.registrar.sessions)
    registrations, handshakes = gateway.registrar.counters.registrations, gateway.registrar.counters.handshakes
    async with Generator(PLAN, gateway.url, key_of(gateway), tokens=tokens) as generator:
        await arrived(generator)
        assert generator.clients.tokens != tokens
        tokens = list(generator.clients.tokens)
    assert gateway.registrar.counters.handshakes == handshakes + 30
    await until(lambda: not gateway.registrar.sessions)
    resumed = Plan(30, registrations=4, objects=40, lines=2, resume=True)
    async with Generator(resumed, gateway.url, key_of(gateway), tokens=tokens) as generator:
        await arrived(generator)
        assert generator.clients.tokens == tokens
    assert gateway.registrar.counters.handshakes == handshakes + 30
    assert gateway.registrar.counters.registrations == registrations


async def test_two_parts_of_a_crowd_hear_of_each_others_publishes(gateway: Gateway) -> None:
    key, latest = key_of(gateway), [0] * PLAN.objects
    async with (
        Generator(PLAN, gateway.url, key, first=0, count=15, latest=latest) as one,
        Generator(PLAN, gateway.url, key, first=15, count=15, latest=latest) as other,
    ):
        await asyncio.gather(arrived(one, 15), arrived(other, 15))
        one.rate_per_s = 300.0
        await until(lambda: one.counts.published > 60)
        assert await one.drained(20.0)
        assert await other.drained(20.0)
        assert other.counts.notified > 0 == other.counts.published


async def test_a_wrong_key_and_nobody_there_and_another_application_are_told_at_once(gateway: Gateway) -> None:
    with pytest.raises(TrustRefused):
        async with Generator(PLAN, gateway.url, "wrong"):
            pass
    with pytest.raises(ServiceUnreachable):
        async with Generator(PLAN, "http://127.0.0.1:9", "key"):
            pass
    with pytest.raises(BadRequest, match="no application"):
        async with Generator(Plan(3, application="nobodys"), gateway.url, key_of(gateway)) as generator:
            await arrived(generator, 3)
