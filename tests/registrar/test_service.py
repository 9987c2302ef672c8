"""The Registrar's service on real SQLite engines, with channels that a test holds in its hand."""

from __future__ import annotations

import asyncio

import msgspec

from roskva.config import Settings
from roskva.model import (
    DROP_COPY,
    NOT_OWNER,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    ClientId,
    Propagation,
    object_key,
)
from roskva.protocol.messages import (
    Ack,
    ClientMessage,
    Init,
    Notify,
    Register,
    Sync,
    SyncObject,
    Unregister,
)
from roskva.protocol.summaries import SetDigest
from roskva.registrar.cells import client_row
from roskva.registrar.core import blind
from roskva.registrar.row import ClientRow
from roskva.table.interface import Mutation
from roskva.table.marks import marks_for
from tests.registrar.place import HeldChannel, Place, acknowledging, told


async def test_a_registration_is_durable_with_its_pending_marker_before_the_matcher_hears_of_it(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    row = place.row(token)
    assert row.is_pending(event.object, event.seqno)
    assert row.standing(event.object) == (event.seqno, True)


async def test_a_grant_tells_the_whole_policy_of_the_application(place: Place) -> None:
    """Clients may not be upgraded for years: what they are to do, and may expect, is the server's to say."""
    channel = HeldChannel()
    await place.start_client(channel)
    config = (await channel.until(lambda m: m.config)).config
    assert config is not None
    demo = place.settings.applications["demo"]
    told = {name: getattr(config, name) for name in msgspec.structs.asdict(config) if hasattr(demo, name)}
    assert told == {name: getattr(demo, name) for name in told}
    assert {"heartbeat_s", "heartbeat_smear", "keepalive_s", "offline_s", "resend_min_s", "resend_max_s", "quiet_s"} <= told.keys()
    assert (config.resend_min_s, config.resend_max_s) == (0.3, 1.0)


async def test_an_acknowledged_notification_is_never_written(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    acknowledging(place, channel, token)
    event = await place.register(channel, token, "hello")
    assert await place.registrar.propagate([told(event, OUTCOME_UNKNOWN)]) == [SETTLED]
    await channel.until(lambda m: m.status)
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    row = place.row(token)
    assert list(row.waiting()) == []
    assert row.logged(event.object, event.seqno) is None
    assert row.unknown(event.object) is None
    assert not row.is_pending(event.object, event.seqno)


async def test_an_unacknowledged_notification_is_stored_before_the_call_is_answered_then_resent(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)])
    assert [(w.version, w.seqno) for w in place.row(token).waiting()] == [(7, event.seqno)]
    notify = Notify(object="hello", seqno=str(event.seqno), version="7")
    async with asyncio.timeout(5):
        while sum(notify in m.notify for m in channel.received) < 2:
            await asyncio.sleep(0.05)
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="hello", seqno=str(event.seqno), version="7")]))
    async with asyncio.timeout(5):
        while list(place.row(token).waiting()):
            await asyncio.sleep(0.02)


async def test_a_client_that_was_offline_gets_the_latest_version_once_when_it_returns(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    place.registrar.closed(channel)
    for version in range(1, 30):
        assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, version)]) == [SETTLED]
    back = HeldChannel()
    place.say(back, ClientMessage(token=token, summary=SetDigest([b"hello"]).summary()))
    message = await back.until(lambda m: m.notify)
    assert [n.version for n in message.notify] == ["29"]
    assert sum(len(m.notify) for m in back.received) == 1


async def test_an_acknowledgement_beyond_what_was_sent_is_ignored(place: Place) -> None:
    """Trap 16: a client that acknowledges 2^63-1 must still learn of later versions."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)])
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="hello", seqno=str(event.seqno), version=str(2**63 - 1))]))
    await asyncio.sleep(0.1)
    assert [w.version for w in place.row(token).waiting()] == [7]


async def test_an_acknowledged_version_leaves_an_unknown_standing(place: Place) -> None:
    """Trap 31: an acknowledgement clears exactly what it names."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_UNKNOWN)])
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 8)])
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="hello", seqno=str(event.seqno), version="8")]))
    async with asyncio.timeout(5):
        while len(list(place.row(token).waiting())) == 2:
            await asyncio.sleep(0.02)
    assert [w.version for w in place.row(token).waiting()] == [None]


async def test_a_repeated_register_reuses_its_seqno_and_adds_no_record(place: Place) -> None:
    """Trap 22: a client that retries while the pipeline is down must not fill the feed."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    for op in range(2, 6):
        place.say(channel, ClientMessage(token=token, register=[Register(op=op, object="hello")]))
    await asyncio.sleep(0.3)
    assert place.events() == [event]


async def test_what_is_pending_after_a_restart_is_found_by_its_mark_and_repeated(place: Place, settings: Settings) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.stop()
    heir = Place(settings, member="m2")
    await heir.registrar.start()
    try:
        async with asyncio.timeout(5):
            while heir.events() != [event, event]:
                await asyncio.sleep(0.02)
    finally:
        await heir.close()


async def test_a_blind_write_for_an_online_client_is_found_by_its_mark_and_sent(place: Place) -> None:
    """Trap 25: what a Matcher task wrote in the Registrar's stead reaches an online client within seconds."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    key = client_row(event.client, place.settings.partitions)
    decision = blind(ClientRow(event.client, place.engine.read([key])[key].values()), told(event, OUTCOME_UPDATE, 9))
    place.engine.write(marks_for([event.client], dict.fromkeys(range(place.settings.partitions), 0), place.settings.partitions, b"task"))
    place.engine.write([Mutation(key, decision.cells)])
    message = await channel.until(lambda m: m.notify)
    assert message.notify[0].version == "9"


async def test_a_registration_that_a_task_settled_blindly_is_confirmed_to_its_client(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    key = client_row(event.client, place.settings.partitions)
    decision = blind(ClientRow(event.client, place.engine.read([key])[key].values()), told(event, OUTCOME_UNKNOWN))
    place.engine.write(marks_for([event.client], dict.fromkeys(range(place.settings.partitions), 0), place.settings.partitions, b"task"))
    place.engine.write([Mutation(key, decision.cells)])
    confirmed = await channel.until(lambda m: m.status)
    assert [(status.object, status.state) for status in confirmed.status] == [("hello", "registered")]
    await channel.until(lambda m: m.notify)


async def test_an_old_session_is_superseded_at_the_first_message_of_the_new_one(place: Place) -> None:
    first, second = HeldChannel(), HeldChannel()
    token = await place.start_client(first)
    later = await place.start_client(second, prior=token)
    assert place.client(later) == place.client(token)
    refused = await first.until(lambda m: m.start_anew)
    assert refused.start_anew is not None
    assert (refused.start_anew.code, refused.start_anew.keep) == ("session-superseded", True)


async def test_a_grant_that_is_never_used_supersedes_nobody(place: Place) -> None:
    """Trap 37: a held-back init of an earlier start arrives late."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    late = HeldChannel()
    place.say(late, ClientMessage(init=Init(nonce="late", application="demo", device="d1", prior=token)))
    await late.until(lambda m: m.grant)
    event = await place.register(channel, token, "hello")
    assert place.row(token).standing(event.object) == (event.seqno, True)
    assert not any(m.start_anew for m in channel.received)


async def test_a_propagation_for_a_client_that_is_gone_drops_the_matchers_copy(place: Place) -> None:
    ghost = Propagation(ClientId("ghost"), object_key("demo", 0, b"hello"), 1 << 32, OUTCOME_UPDATE, 3)
    assert await place.registrar.propagate([ghost]) == [DROP_COPY]


async def test_a_row_that_is_behind_the_matchers_copy_is_reissued(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    ahead = Propagation(event.client, event.object, event.seqno + 10, OUTCOME_UPDATE, 3)
    assert await place.registrar.propagate([ahead]) == [SETTLED]
    newest = max(place.events(), key=lambda one: one.seqno)
    assert newest.repair
    assert newest.seqno > event.seqno + 10


async def test_a_registrar_that_is_not_the_owner_says_so(settings: Settings) -> None:
    place = Place(settings, member="m1", others=("m2",))
    await place.registrar.start()
    try:
        clients = [ClientId(f"c{i}") for i in range(40)]
        verdicts = await place.registrar.propagate(
            [Propagation(client, object_key("demo", 0, b"x"), 1, OUTCOME_UPDATE, 1) for client in clients]
        )
        assert set(verdicts) <= {NOT_OWNER, DROP_COPY}
        owners = {place.members.owner(partition).id for partition in range(settings.partitions)}  # type: ignore[union-attr]
        assert (NOT_OWNER in verdicts) == ("m2" in owners)
    finally:
        await place.close()


async def test_a_sync_registers_what_is_missing_and_unregisters_what_is_too_much(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    kept = await place.register(channel, token, "kept", op=1)
    gone = await place.register(channel, token, "gone", op=2)
    place.say(channel, ClientMessage(token=token, sync=Sync(op=3, objects=[SyncObject(object="kept"), SyncObject(object="new")])))
    async with asyncio.timeout(5):
        while len(place.events()) < 4:
            await asyncio.sleep(0.01)
    row = place.row(token)
    assert row.standing(kept.object) == (kept.seqno, True)
    assert row.standing(gone.object) is not None
    assert not row.standing(gone.object).registered  # type: ignore[union-attr]
    assert row.digest.matches(SetDigest([b"kept", b"new"]).summary())


async def test_after_unregistering_nothing_more_is_sent(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_VERSION, 3)])
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="hello")]))
    async with asyncio.timeout(5):
        while len(place.events()) < 2:
            await asyncio.sleep(0.01)
    off = max(place.events(), key=lambda one: one.seqno)
    assert await place.registrar.propagate([told(off, OUTCOME_UNREGISTERED)]) == [SETTLED]
    await channel.until(lambda m: any(s.state == "unregistered" for s in m.status))
    count = sum(len(m.notify) for m in channel.received)
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 4)]) == [SETTLED]
    await asyncio.sleep(0.7)
    assert sum(len(m.notify) for m in channel.received) == count


async def test_the_client_learns_when_everything_is_settled(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_VERSION, 3)])
    await channel.until(lambda m: m.unsettled > 0)
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="hello", seqno=str(event.seqno), version="3")]))
    channel.received.clear()
    message = await channel.until(lambda m: m.unsettled == 0)
    assert message.summary == SetDigest([b"hello"]).summary()


async def test_too_many_operations_are_refused_whole_with_a_named_error(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    many = [Register(op=n + 1, object=f"o{n}") for n in range(place.settings.operations_per_message_max + 1)]
    place.say(channel, ClientMessage(token=token, register=many))
    message = await channel.until(lambda m: m.error)
    assert message.error is not None
    assert message.error.code == "too-many-operations"
    assert place.events() == []


async def test_an_unknown_application_is_refused_with_a_named_error(place: Place) -> None:
    channel = HeldChannel()
    place.say(channel, ClientMessage(init=Init(nonce="n", application="nope", device="d")))
    message = await channel.until(lambda m: m.error)
    assert message.error is not None
    assert message.error.code == "unknown-application"


async def test_a_lost_registrar_partition_is_noticed_and_its_clients_are_told_to_start_anew(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    partition = client_row(place.client(token), place.settings.partitions).partition
    for path in place.settings.data.glob(f"table/registrar-{partition}.*"):
        path.unlink()
    refused = await channel.until(lambda m: m.start_anew)
    assert refused.start_anew is not None
    back = HeldChannel()
    assert place.client(await place.start_client(back, prior=token)) != place.client(token)


async def test_a_partition_lost_between_an_admission_and_the_first_look_is_noticed_too(place: Place) -> None:
    """Trap 9: what the first look finds is not what the client was admitted to."""
    await place.registrar.stop()  # no round has looked yet
    rounds = place.registrar.rounds
    rounds.incarnations.clear()
    channel = HeldChannel()
    token = await place.start_client(channel)
    partition = client_row(place.client(token), place.settings.partitions).partition
    for path in place.settings.data.glob(f"table/registrar-{partition}.*"):
        path.unlink()
    await rounds._notice_lost_partitions()
    assert any(message.start_anew for message in channel.received)
    assert place.registrar.sessions == {}
