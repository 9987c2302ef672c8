"""A user of the shop who asks for what is not its own, answers what it was not told, and lies about what it has; in any order."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from typing import Any

import pytest

from roskva.protocol.summaries import bucket_of
from tests.security.adversary import EMPTY, LETTERS, Adversary, Town, summaries, summary_of, token_of

INIT = {"nonce": "n", "application": "shop", "device": "den"}


def spelled(name: bytes) -> str:
    return "base64:" + base64.urlsafe_b64encode(name).rstrip(b"=").decode()


async def refusals(adversary: Adversary, token: str, names: list[str], op: int = 1) -> dict[str, Any]:
    """By name, how registrations were refused: once by registering, once by a sync."""
    start = len(adversary.heard)
    await adversary.say(token=token, register=[{"op": op + place, "object": name} for place, name in enumerate(names)])
    await adversary.say(token=token, sync={"op": op + len(names), "objects": [{"object": name} for name in names]})
    found: dict[str, Any] = {}
    async with asyncio.timeout(10):
        while len(found) < len(set(names)) or sum(len(one.get("status", ())) for one in adversary.heard[start:]) < 2 * len(set(names)):
            await asyncio.sleep(0.01)
            for message in adversary.heard[start:]:
                for status in message.get("status", ()):
                    found[status["object"]] = (status["state"], status.get("transient", False), status["code"])
    return found


# What is asked for.


async def test_objects_of_others(town: Town) -> None:
    """Other users' and other applications', however they are spelled. One that anybody may have is registered meanwhile."""
    others = [
        "inbox:ann",
        "inbox:eve2",
        "inbox:eves",
        "inbox:",
        "inbox:*",
        "inbox:{sub}",
        "Inbox:eve",
        "inbox:ev\N{CYRILLIC SMALL LETTER IE}",
        "inbox:eve\N{ZERO WIDTH SPACE}",
        " inbox:eve",
        "*",
        "new",
        "ledger:carl",
        "bank/ledger:carl",
        "shop/inbox:ann",
        "shop/../bank/ledger:carl",
        "bank:ledger:carl",
        "bank\0\0\0\0\0ledger:carl",
        "shop\0\0\0\0\0inbox:ann",
        "inbox:eve\0inbox:ann",
        "inbox:eve:\0",
        "news:\n",
        "\0inbox:ann",
        spelled(b"inbox:ann"),
        spelled(b"ledger:carl"),
        spelled(b"bank\0\0\0\0\0ledger:carl"),
        spelled(spelled(b"inbox:eve").encode()),
        spelled(b"\xff\xfe"),
    ]
    async with town.innocent():
        adversary = await town.adversary()
        adversary.may_hear = {"inbox:eve"}
        token = await adversary.enter(town.shop.credential("eve"))
        found = await refusals(adversary, token, others)
        assert found == dict.fromkeys(others, ("failed", False, "not-authorized"))
        assert town.gateway.registrar.counters.not_authorized == 2 * len(others)
        assert summaries(adversary) == [EMPTY]
        start = len(adversary.heard)
        await adversary.say(token=token, register=[{"op": 90, "object": spelled(b"inbox:eve")}, {"op": 91, "object": "inbox:ann"}])
        await adversary.until(lambda one: {"object": "inbox:eve", "state": "registered"} in one.get("status", ()), start)
        assert summaries(adversary) == [EMPTY, summary_of("inbox:eve")]


async def test_names_that_are_none(town: Town) -> None:
    broken = ["", "base64:!", "base64:", "x" * 129, "base64:" + "A" * 400, "base64:aW5ib3g6YW5u="]
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve"))
        found = await refusals(adversary, token, broken)
        assert {code for _, _, code in found.values()} == {"invalid-name"}
        half = json.dumps({"token": token, "register": [{"op": 9, "object": "inbox:?"}]}).replace("?", "\\ud800")
        await adversary.socket.send_str(half)
        answer = await adversary.until(lambda one: "error" in one)
        assert answer["error"]["code"] == "malformed-message"
        assert town.gateway.metrics.messages_malformed == 1
        assert town.gateway.registrar.counters.registrations == 1  # of the innocent
        assert summaries(adversary) == [EMPTY]


@pytest.mark.parametrize("user", ["*", "ann*", "*:*", "{sub}", "ann:x", "an", "a\N{COMBINING ACUTE ACCENT}nn"])
async def test_users_whose_names_look_like_patterns(town: Town, user: str) -> None:
    """A name stands for itself."""
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential(user))
        others = [name for name in ("inbox:ann", "inbox:ann:1", "inbox:annie", "inbox:bob", "inbox:") if name != f"inbox:{user}"]
        assert set((await refusals(adversary, token, others)).values()) == {("failed", False, "not-authorized")}
        assert town.gateway.registrar.counters.not_authorized == 2 * len(others)
        assert summaries(adversary) == [EMPTY]


async def test_claims_of_other_kinds_match_nothing(town: Town) -> None:
    town.write(registrable=["inbox:{sub}", "team:{team}", "room:{realm.rooms}"])
    await town.gateway.reloading.look()
    claims: dict[str, Any] = {"team": {"name": "a"}, "realm": ["rooms"], "rooms": "1"}
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve", **claims))
        others = ["team:a", "team:", "team:{'name': 'a'}", "room:1", "room:rooms", "room:"]
        assert set((await refusals(adversary, token, others)).values()) == {("failed", False, "not-authorized")}
        assert town.gateway.registrar.counters.not_authorized == 2 * len(others)


# What is answered.


async def test_acknowledgements_of_what_was_never_sent(town: Town) -> None:
    """Objects that it never registered for, versions and seqnos that nobody sent; before any registration, and after."""
    async with town.innocent() as ann:
        adversary = await town.adversary()
        adversary.may_hear = {"inbox:eve"}
        token = await adversary.enter(town.shop.credential("eve"))
        acknowledged = town.gateway.registrar.counters.acknowledged
        (session,) = [one for one in town.gateway.registrar.sessions.values() if one.token != token_of(ann)]
        seqnos = ["0", "1", "4294967297", str(2**32 + 2), str(2**63 - 1), "9999999999999999999"]
        acks = [
            {"object": name, "seqno": seqno, "version": version, "epoch": epoch}
            for name in (LETTERS, "inbox:eve", "ledger:carl", "", "\0")
            for seqno in seqnos
            for version in ("0", "1", str(2**63 - 1), "9999999999999999999", None)
            for epoch in (0, 1, 2**32 - 1)
        ]
        await adversary.say(token=token, acks=acks)
        await adversary.say(token=token, register=[{"op": 1, "object": "inbox:eve"}])
        await adversary.until(lambda one: one.get("status"))
        version = await town.publish("inbox:eve")
        await adversary.until(lambda one: any(told.get("version") == str(version) for told in one.get("notify", ())))
        await adversary.say(token=token, acks=acks)
        later = str(version + 1)
        (entry,) = [one for one in session.outstanding.values() if one.version == version]
        await adversary.say(token=token, acks=[{"object": "inbox:eve", "seqno": str(entry.seqno), "version": later}])
        await adversary.quiet(0.1)
        # What it is told stays owed to it until it acknowledges just that.
        assert [one.version for one in session.outstanding.values() if one.version is not None] == [version]
        assert town.gateway.registrar.counters.acknowledged - acknowledged <= 1  # the unknown, which it may name
        for number in ("-1", "01", "1e3", "18446744073709551616", "x"):
            error = (await adversary.ask(token=token, acks=[{"object": "inbox:eve", "seqno": number}]))["error"]
            assert error["code"] == "malformed-message"
        assert town.gateway.metrics.messages_malformed == 5


# What it says that it has.


async def test_summaries_that_lie_cause_one_sync_request_a_minute(town: Town) -> None:
    lies = [
        {"count": 0, "digest": "f" * 32},
        {"count": 4_000_000_000, "digest": "0" * 32},
        {"count": 2**32, "digest": "f" * 32},
        {"count": 1, "digest": summary_of(LETTERS)["digest"]},
    ]
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve"))
        for number in range(400):
            await adversary.say(token=token, summary=lies[number % len(lies)])
        start = len(adversary.heard)
        await adversary.say(token=token, summary=EMPTY, unregister=[{"op": 1, "object": "news:end"}])
        await adversary.until(lambda one: one.get("status"), start)
        assert sum("sync_request" in message for message in adversary.heard) == 1
        assert town.gateway.registrar.counters.sync_requests == 1
        assert summaries(adversary) == [EMPTY]
        for broken in ({"count": -1, "digest": "0" * 32}, {"count": 2**32 + 1, "digest": "0" * 32}, {"count": 1, "digest": "F" * 32}):
            assert (await adversary.ask(token=token, summary=broken))["error"]["code"] == "malformed-message"
        assert town.gateway.metrics.messages_malformed == 3


async def test_summaries_of_buckets_that_lie_are_answered_once_each(town: Town) -> None:
    """As many as fit into a message: one answer, of at most 256 buckets."""
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve"))
        many = [{"bucket": number % 256, "count": 4_000_000_000, "digest": "f" * 32} for number in range(12_000)]
        began_s = time.thread_time()
        for op in range(1, 6):
            await adversary.say(token=token, sync={"op": op, "summaries": many})
        await adversary.until(lambda one: one.get("sync_request", {}).get("op") == 5)
        assert time.thread_time() - began_s < 2.0
        answers = [message["sync_request"] for message in adversary.heard if "sync_request" in message]
        assert [answer["op"] for answer in answers] == [1, 2, 3, 4, 5]
        assert all(answer["buckets"] == list(range(256)) for answer in answers)
        assert town.gateway.registrar.counters.registrations == 1
        assert summaries(adversary) == [EMPTY]


async def test_a_sync_of_very_many_in_messages_that_are_allowed(town: Town) -> None:
    """Whoever states a million gets as many as a client may have, and the rest is refused by name, as often as it tries."""
    town.write(registrations_per_client_max=1_500)
    await town.gateway.reloading.look()
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve"))
        names = [f"news:{number}" for number in range(6_000)]
        adversary.may_hear = set(names)
        by_bucket: dict[int, list[str]] = {}
        for name in names:
            by_bucket.setdefault(bucket_of(name.encode()), []).append(name)
        buckets, counters, stated = sorted(by_bucket), town.gateway.registrar.counters, 0
        for op, place in enumerate(range(0, len(buckets), 32), 1):
            some = buckets[place : place + 32]
            objects = [{"object": name} for bucket in some for name in by_bucket[bucket]]
            stated += len(objects)
            await adversary.say(token=token, sync={"op": op, "buckets": some, "objects": objects})
            async with asyncio.timeout(10):
                while counters.registrations - 1 + counters.over_limits < stated:
                    await asyncio.sleep(0.01)
        assert (await adversary.ask(token=token))["summary"]["count"] == 1_500
        assert max(summary["count"] for summary in summaries(adversary)) == 1_500
        refused = [status for message in adversary.heard for status in message.get("status", ()) if status["state"] == "failed"]
        assert {(status["code"], status.get("transient", False)) for status in refused} == {("too-many-registrations", False)}
        assert (counters.over_limits, counters.registrations) == (6_000 - 1_500, 1 + 1_500)


async def test_a_sync_of_very_many_in_one_message(town: Town) -> None:
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve"))
        for many in ({"sync": {"op": 1, "objects": [{"object": f"news:{number}"} for number in range(30_000)]}},
                     {"register": [{"op": number + 1, "object": "news:1"} for number in range(20_000)]},
                     {"unregister": [{"op": number + 1, "object": "news:1"} for number in range(20_000)]},
                     {"acks": [{"object": "news:1", "seqno": "1"}] * 20_000}):  # fmt: skip
            assert (await adversary.ask(token=token, **many))["error"]["code"] == "too-many-operations"
        assert town.gateway.registrar.counters.over_limits == 4
        assert summaries(adversary) == [EMPTY]
        with contextlib.suppress(ConnectionError):  # the gateway does not wait for the rest of it
            await adversary.say(token=token, sync={"op": 1, "objects": [{"object": f"news:{number}"} for number in range(1_000_000)]})
        assert await adversary.ended() in (1006, 1009)  # the name may be lost with what was still on its way
        assert town.gateway.registrar.counters.registrations == 1
        async with asyncio.timeout(5):
            while town.gateway.metrics.connections > 1:
                await asyncio.sleep(0.01)


# In which order.


async def test_operations_in_any_order(town: Town) -> None:
    """Numbers that go down, come twice, or at once; unregistrations before registrations; acknowledgements before both."""
    async with town.innocent():
        adversary = await town.adversary()
        adversary.may_hear = {"news:2", "news:4"}
        assert (await adversary.ask(acks=[{"object": "news:1", "seqno": "1"}]))["error"]["code"] == "malformed-message"
        assert (await adversary.ask(register=[{"op": 1, "object": "news:1"}]))["error"]["code"] == "malformed-message"
        assert town.gateway.metrics.messages_malformed == 2
        token = await adversary.enter(town.shop.credential("eve"))
        await adversary.say(token=token, acks=[{"object": "news:1", "seqno": "4294967297"}])
        start = len(adversary.heard)
        await adversary.say(token=token, unregister=[{"op": 2**53, "object": "news:1"}])
        gone = await adversary.until(lambda one: one.get("status"), start)
        assert gone["status"] == [{"object": "news:1", "state": "unregistered"}]
        for op in (2**53, 2**53 - 1, 7, 1):  # late: ignored, and the summary says so
            assert (await adversary.ask(token=token, register=[{"op": op, "object": "news:1"}]))["summary"] == EMPTY
            assert (await adversary.ask(token=token, sync={"op": 1, "objects": []}))["summary"] == EMPTY
        both = {"register": [{"op": 9, "object": "news:2"}], "unregister": [{"op": 9, "object": "news:2"}, {"op": 8, "object": "news:2"}]}
        await adversary.ask(token=token, **both)
        for number in (0, -1, 2**53 + 1, 1.5, "1"):
            assert (await adversary.ask(token=token, register=[{"op": number, "object": "news:3"}]))["error"]["code"] == "malformed-message"
        assert town.gateway.metrics.messages_malformed == 7
        start = len(adversary.heard)
        await adversary.say(token=token, register=[{"op": 10, "object": "news:4"}])
        await adversary.until(lambda one: {"object": "news:4", "state": "registered"} in one.get("status", ()), start)
        assert summaries(adversary)[-1]["count"] <= 2


async def test_an_init_in_the_middle_of_a_session(town: Town) -> None:
    """The session lives until the new one speaks; one without a credential is refused and changes nothing."""
    async with town.innocent():
        adversary = await town.adversary()
        mine = town.shop.credential("eve")
        first = await adversary.enter(mine)
        assert await adversary.wanted(init=INIT | {"nonce": "x"}) == "credential-required"
        assert await adversary.wanted(init=INIT | {"nonce": "y", "prior": first}, credential="nonsense") == "credential-refused"
        assert (await adversary.ask(token=first))["summary"] == EMPTY
        second = (await adversary.ask(init=INIT | {"nonce": "z", "prior": first}, credential=mine))["grant"]["token"]
        assert (await adversary.ask(token=first))["summary"] == EMPTY
        assert await adversary.wanted(token=second) == "credential-required"  # not by the handshake, since the first one lives
        await adversary.ask(token=second, credential=mine)
        old = await adversary.ask(token=first, credential=mine, register=[{"op": 1, "object": "news:1"}])
        assert old["start_anew"] == {"code": "session-superseded", "keep": True}
        counters = town.gateway.registrar.counters
        assert (counters.superseded, counters.credentials_refused, counters.registrations) == (1, 3, 1)
        bad = await adversary.ask(init=INIT | {"application": "nowhere"}, credential=mine)
        assert bad["error"]["code"] == "unknown-application"
        assert "bank" not in json.dumps(adversary.heard)


async def test_messages_of_a_superseded_session(town: Town) -> None:
    async with town.innocent():
        old, new = await town.adversary(), await town.adversary()
        mine = town.shop.credential("eve")
        first = await old.enter(mine)
        start = len(old.heard)
        await new.enter(mine, prior=first)
        told = await old.until(lambda one: "start_anew" in one, start)
        assert told["start_anew"]["code"] == "session-superseded"
        for message in ({"register": [{"op": 5, "object": "inbox:eve"}]}, {"sync": {"op": 6, "objects": [{"object": "news:1"}]}},
                        {"forget": True}, {}):  # fmt: skip
            answer = await old.ask(token=first, credential=mine, **message)
            assert answer["start_anew"] == {"code": "session-superseded", "keep": True}
        assert town.gateway.registrar.counters.superseded == 5
        assert town.gateway.registrar.counters.registrations == 1
        assert len(town.gateway.registrar.sessions) == 2
        assert summaries(new) == [EMPTY]


async def test_two_inits_with_one_nonce(town: Town) -> None:
    """A nonce is no secret and no name: each connection has a client of its own, of its own user."""
    async with town.innocent() as ann:
        adversary, other = await town.adversary(), await town.adversary()
        assert ann._core is not None
        init = INIT | {"device": "her-phone"}
        one = (await adversary.ask(init=init, credential=town.shop.credential("eve")))["grant"]["token"]
        two = (await other.ask(init=init, credential=town.shop.credential("mallory")))["grant"]["token"]
        assert one != two
        assert await adversary.anew(token=two, credential=town.shop.credential("eve")) == "token-invalid"
        assert await other.wanted(token=one) == "credential-required"
        assert (await adversary.ask(token=one, credential=town.shop.credential("eve")))["summary"] == EMPTY
        assert (await other.ask(token=two, credential=town.shop.credential("mallory")))["summary"] == EMPTY
        counters = town.gateway.registrar.counters
        assert (counters.started_anew, counters.credentials_refused) == (1, 1)
        assert len(town.gateway.registrar.sessions) == 3
