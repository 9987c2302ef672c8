"""Registrations and their sync (Thialfi 4.1.3): the client's core without I/O."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from roskva.client.actions import RegistrationFailed
from roskva.client.operations import MESSAGES_UNANSWERED_MAX
from roskva.client.state import encode_state
from roskva.client.syncing import STATEMENTS_MAX
from roskva.errors import InvalidSetting
from roskva.protocol.messages import BUCKETS, ClientMessage, Config, Sync, SyncRequest
from roskva.protocol.summaries import SetDigest, bucket_of, bucket_summaries, differing_buckets
from tests.client.scripted import Bench, status


def names(count: int) -> list[bytes]:
    return [b"object-%d" % number for number in range(count)]


def operations(said: list[ClientMessage]) -> list[tuple[int, str, bool]]:
    """(number, object, is it a registration), in the order sent."""
    found = []
    for message in said:
        found += [(one.op, one.object, True) for one in message.register]
        found += [(one.op, one.object, False) for one in message.unregister]
    return found


def syncs(said: list[ClientMessage]) -> list[ClientMessage]:
    return [message for message in said if message.sync is not None]


def returning(*server_has: bytes) -> Bench:
    """A client that starts again with the state of an earlier run, not yet granted."""
    bench = Bench(state=encode_state("demo", "phone", "token-0"))
    bench.has = set(server_has)
    bench.start()
    return bench


def test_operations_wait_for_the_handshake_then_go_together() -> None:
    bench = Bench()
    bench.do(bench.core.start(bench.now))
    bench.register(b"a", b"b")
    bench.do(bench.core.connected(bench.now))
    bench.grant()
    message = bench.take_said()[-1]
    assert [(one.op, one.object) for one in message.register] == [(1, "a"), (2, "b")]
    assert message.summary == SetDigest([b"a", b"b"]).summary()


def test_the_version_held_travels_with_the_registration() -> None:
    bench = Bench().live()
    bench.do(bench.core.register(bench.now, b"a", version=7, epoch=2))
    (register,) = bench.said[0].register
    assert (register.version, register.epoch) == ("7", 2)


def test_an_interval_travels_with_every_repeat_and_sync() -> None:
    bench = Bench().live()
    bench.do(bench.core.register(bench.now, b"a", interval_ms=500))
    bench.pass_time(10.0)
    stated = [one.notify_interval_ms for message in bench.take_said() for one in message.register]
    assert len(stated) > 1
    assert set(stated) == {500}
    bench.has = {b"a"}
    bench.say(status=[status(b"a")])
    bench.has = set()
    bench.say()
    (sync,) = [message.sync for message in syncs(bench.take_said())]
    assert sync is not None
    assert sync.objects is not None
    assert [(one.object, one.notify_interval_ms) for one in sync.objects] == [("a", 500)]


def test_another_interval_is_said_once_more_the_same_or_none_is_not() -> None:
    bench = Bench().live()
    bench.do(bench.core.register(bench.now, b"a", interval_ms=500))
    bench.has = {b"a"}
    bench.say(status=[status(b"a")])
    bench.take_said()
    bench.do(bench.core.register(bench.now, b"a"))
    bench.do(bench.core.register(bench.now, b"a", interval_ms=500))
    assert operations(bench.take_said()) == []
    bench.do(bench.core.register(bench.now, b"a", interval_ms=0))
    (message,) = bench.take_said()
    assert [(one.object, one.notify_interval_ms) for one in message.register] == [("a", 0)]
    bench.say(status=[status(b"a")])
    assert not bench.core.operations


@pytest.mark.parametrize("interval_ms", [-1, 3_600_001, 500.0, 1.5, True, "500"])
def test_what_is_no_interval_is_refused_before_anything_is_done(interval_ms: Any) -> None:
    """The service would refuse the whole message, and whatever else is in it, for ever."""
    bench = Bench().live()
    with pytest.raises(InvalidSetting, match=r"notify_interval_ms is .* whole number from 0 to 3,600,000"):
        bench.core.register(bench.now, b"a", interval_ms=interval_ms)
    assert b"a" not in bench.core.desired


def test_after_a_restart_intervals_are_stated_though_the_summaries_agree() -> None:
    bench = returning(b"a", b"b")
    bench.grant()
    bench.do(bench.core.register(bench.now, b"a", interval_ms=500))
    bench.register(b"b")
    bench.pass_time(0.5)
    assert [(one.object, one.notify_interval_ms) for message in bench.said for one in message.register] == [("a", 500)]


def test_a_status_confirms_and_is_reported_once() -> None:
    bench = Bench().live()
    bench.register(b"a")
    bench.has = {b"a"}
    bench.say(status=[status(b"a")])
    bench.say(status=[status(b"a")])
    assert bench.statuses() == [(b"a", True)]
    bench.do(bench.core.unregister(bench.now, b"a"))
    bench.has = set()
    bench.say(status=[status(b"a", "unregistered")])
    assert bench.statuses() == [(b"a", True), (b"a", False)]
    bench.said.clear()
    bench.pass_time(600)
    assert operations(bench.said) == []


def test_an_unanswered_operation_is_repeated_under_new_numbers_with_growing_pauses() -> None:
    bench = Bench(dice=1.0).live()
    bench.register(b"a")
    sent_at = [bench.now]
    for _ in range(400):
        before = len(bench.said)
        bench.pass_time(1)
        sent_at += [bench.now] * (len(bench.said) - before)
    numbers = [op for op, _, _ in operations(bench.said)]
    assert numbers == list(range(1, len(numbers) + 1))
    pauses = [later - earlier for earlier, later in itertools.pairwise(sent_at)]
    assert pauses[:6] == pytest.approx([2, 4, 8, 16, 32, 60], abs=1.1)
    assert max(pauses) <= 61


def test_pauses_stay_between_the_limits_whatever_the_dice_say() -> None:
    bench = Bench(dice=0.0).live()
    bench.register(b"a")
    bench.pass_time(10)
    assert len(operations(bench.said)) == 11  # dice of 0 mean retry_min_s each time


def test_a_later_wish_replaces_an_unanswered_one() -> None:
    bench = Bench().live()
    bench.register(b"a")
    bench.do(bench.core.unregister(bench.now, b"a"))
    bench.register(b"a")
    assert operations(bench.said) == [(1, "a", True), (2, "a", False), (3, "a", True)]
    bench.has = set()
    bench.say(status=[status(b"a", "unregistered")])  # the late answer to the second
    assert bench.statuses() == []
    bench.has = {b"a"}
    bench.say(status=[status(b"a")])
    assert bench.statuses() == [(b"a", True)]


def test_numbers_begin_at_one_with_each_grant_and_what_is_open_is_sent_again() -> None:
    bench = Bench().live()
    bench.register(b"a", b"b")
    bench.anew("token-elsewhere", keep=True)
    bench.grant("token-2")
    assert operations(bench.said[-1:]) == [(1, "a", True), (2, "b", True)]


def test_a_reconnect_sends_what_is_open_at_once() -> None:
    bench = Bench().live()
    bench.register(b"a")
    bench.take_said()
    bench.do(bench.core.disconnected(bench.now))
    bench.register(b"b")
    assert bench.said == []
    bench.do(bench.core.connected(bench.now))
    assert operations(bench.said) == [(2, "a", True), (3, "b", True)]


def test_many_operations_are_split_and_only_so_many_are_unanswered() -> None:
    bench = Bench(config=Config(operations_per_message_max=10)).live()
    wished = names(100)
    bench.do(bench.core.disconnected(bench.now))
    bench.register(*wished)
    bench.do(bench.core.connected(bench.now))
    assert [len(message.register) for message in bench.said] == [10] * MESSAGES_UNANSWERED_MAX
    for _ in range(20):
        for message in bench.take_said():
            bench.has |= {one.object.encode() for one in message.register}
            bench.say(status=[status(one.object.encode()) for one in message.register])
    assert bench.has == set(wished)
    assert bench.core.in_sync(bench.now)


def test_a_message_stays_below_the_byte_limit_with_the_longest_names() -> None:
    from roskva.protocol.messages import encode

    config = Config(message_bytes_max=20_000)
    bench = Bench(config=config).live()
    bench.do(bench.core.disconnected(bench.now))
    for number in range(200):
        bench.do(bench.core.register(bench.now, b'"' * 120 + b"%08d" % number, version=2**63 - 1, epoch=2**32 - 1))
    bench.do(bench.core.connected(bench.now))
    assert len(bench.said) > 1
    assert max(len(encode(message)) for message in bench.said) < 20_000


def test_a_permanent_failure_leaves_the_desired_set() -> None:
    """Trap 21: else the summaries would differ for ever, and the client would sync for ever."""
    bench = Bench().live()
    bench.register(b"a", b"bad")
    bench.has = {b"a"}
    bench.say(status=[status(b"a"), status(b"bad", "failed", code="invalid-name", message="no")])
    assert RegistrationFailed(b"bad", False, "invalid-name", "no") in bench.actions
    bench.said.clear()
    bench.pass_time(300)
    assert operations(bench.said) == []
    assert syncs(bench.said) == []
    assert bench.core.in_sync(bench.now)


def test_a_transient_failure_is_reported_and_tried_again() -> None:
    bench = Bench(dice=1.0).live()
    bench.register(b"a")
    bench.say(status=[status(b"a", "failed", transient=True, code="partition-unavailable", message="busy")])
    assert bench.actions == [RegistrationFailed(b"a", True, "partition-unavailable", "busy")]
    bench.said.clear()
    bench.pass_time(3.9)
    assert bench.said == []
    bench.pass_time(0.2)
    assert operations(bench.said) == [(2, "a", True)]


def test_a_transient_failure_after_a_sync_becomes_an_operation() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    bench.has = set()
    bench.say()
    assert len(syncs(bench.take_said())) == 1
    bench.say(status=[status(b"a", "failed", transient=True, code="partition-unavailable")])
    bench.pass_time(2)
    assert operations(bench.said) == [(3, "a", True)]


def test_a_restart_with_equal_summaries_resends_nothing() -> None:
    """ "In the normal case when digests match, no registrations are resent to the server." """
    bench = returning(b"a", b"b")
    bench.register(b"a", b"b")
    bench.grant()
    bench.pass_time(300)
    assert operations(bench.said) == []
    assert syncs(bench.said) == []
    assert sorted(bench.statuses()) == [(b"a", True), (b"b", True)]
    assert bench.core.in_sync(bench.now)


def test_a_restart_leaves_the_application_time_to_restate() -> None:
    bench = returning(b"a", b"b", b"c")
    bench.grant()
    for name in (b"a", b"b", b"c"):
        bench.pass_time(0.6)
        assert bench.core.in_sync(bench.now) is False
        bench.register(name)
    bench.pass_time(300)
    assert operations(bench.said) == []
    assert syncs(bench.said) == []
    assert bench.core.in_sync(bench.now)


def test_a_restart_with_other_wishes_states_them_all_when_the_application_is_done() -> None:
    bench = returning(b"a", b"b")
    bench.register(b"a", b"c")
    bench.grant()
    assert operations(bench.said) == []
    bench.pass_time(1.5)
    assert operations(bench.said) == []
    (message,) = syncs(bench.take_said())
    assert message.sync is not None
    assert [stated.object for stated in message.sync.objects or []] == ["a", "c"]
    bench.has = {b"a", b"c"}
    bench.say(status=[status(b"c"), status(b"b", "unregistered")])
    assert sorted(bench.statuses()) == [(b"a", True), (b"c", True)]


def test_a_restart_that_never_stops_restating_is_bounded() -> None:
    bench = returning(b"a")
    bench.grant()
    for number in range(30):
        bench.pass_time(0.5)
        bench.register(b"new-%d" % number)
    assert syncs(bench.said)


def test_a_restart_without_wishes_states_that_too() -> None:
    bench = returning(b"a")
    bench.grant()
    bench.pass_time(2)
    (message,) = syncs(bench.said)
    assert message.sync is not None
    assert message.sync.objects == []


def test_a_restart_of_a_client_whose_registrations_are_lost_registers_at_once() -> None:
    bench = returning()
    bench.register(b"a")
    bench.grant()
    assert operations(bench.said) == [(1, "a", True)]


def test_no_sync_while_operations_are_in_flight() -> None:
    """Trap 23: the server requests a sync while operations are in flight."""
    bench = Bench().live()
    bench.registered(b"a")
    bench.register(b"b")
    assert [message.sync for message in bench.take_said()] == [None]  # the operation alone, though the summaries differ
    bench.say(sync_request=SyncRequest())
    assert bench.said == []
    bench.has = {b"a", b"b"}
    bench.say(status=[status(b"b")])
    assert bench.said == []


def test_differing_summaries_with_nothing_in_flight_are_stated_with_the_versions_held() -> None:
    bench = Bench().live()
    bench.do(bench.core.register(bench.now, b"a", version=3, epoch=1))
    bench.has = {b"a"}
    bench.say(status=[status(b"a")])
    bench.said.clear()
    bench.has = {b"x"}
    bench.say()
    (message,) = syncs(bench.said)
    assert message.sync is not None
    (stated,) = message.sync.objects or []
    assert (stated.object, stated.version, stated.epoch) == ("a", "3", 1)
    assert message.sync.buckets is None


def test_a_sync_is_repeated_with_growing_pauses_until_the_summaries_agree() -> None:
    bench = Bench(dice=1.0).live()
    bench.registered(b"a")
    bench.has = {b"x"}
    bench.say()
    bench.pass_time(100)
    assert 5 <= len(syncs(bench.said)) <= 6  # at 0, 2, 6, 14, 30, 62
    bench.has = {b"a"}
    bench.say()
    bench.said.clear()
    bench.pass_time(300)
    assert syncs(bench.said) == []


def test_a_servers_hint_is_obeyed_at_most_once_a_minute() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    bench.has = set()
    for _ in range(20):
        bench.say(sync_request=SyncRequest())
    assert len(syncs(bench.said)) == 1
    bench.has = {b"a"}
    bench.say(sync_request=SyncRequest())  # a late hint: the summary in the same message agrees
    assert len(syncs(bench.said)) == 1


def test_a_hint_with_equal_summaries_does_nothing() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    assert bench.say(sync_request=SyncRequest()) == []


def test_what_the_server_dropped_is_reported_and_repaired() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    bench.has = set()
    bench.say(status=[status(b"a", "unregistered")])
    assert bench.statuses() == [(b"a", False)]
    assert len(syncs(bench.said)) == 1
    bench.has = {b"a"}
    bench.say(status=[status(b"a")])
    assert bench.statuses() == [(b"a", False), (b"a", True)]


@pytest.mark.parametrize("count", [256, 257, 3000])
def test_up_to_256_registrations_are_stated_at_once_above_that_by_buckets(count: int) -> None:
    bench = Bench().live()
    wished = names(count)
    bench.registered(*wished)
    missing, extra = wished[0], b"extra"
    bench.has = (set(wished) - {missing}) | {extra}
    bench.say()
    (message,) = syncs(bench.take_said())
    assert message.sync is not None
    if count <= 256:
        assert len(message.sync.objects or []) == count
        return
    assert message.sync.objects is None
    theirs = bucket_summaries(bench.has)
    assert message.sync.summaries is not None
    differing = differing_buckets(message.sync.summaries, theirs)
    assert set(differing) == {bucket_of(missing), bucket_of(extra)}
    bench.say(sync_request=SyncRequest(op=message.sync.op, buckets=differing))
    (answer,) = syncs(bench.take_said())
    assert answer.sync is not None
    assert answer.sync.op > message.sync.op
    assert answer.sync.buckets == differing
    stated = {one.object.encode() for one in answer.sync.objects or []}
    assert stated == {name for name in wished if bucket_of(name) in differing}
    bench.say(sync_request=SyncRequest(op=message.sync.op, buckets=differing))  # a repeat
    assert syncs(bench.said) == []
    bench.has = set(wished)
    bench.say()
    assert bench.core.in_sync(bench.now)


def come_back_to_nothing(bench: Bench, wished: list[bytes]) -> Sync:
    """A client with many registrations comes to a server that has none of them: its first word is the summaries of its buckets."""
    bench.do(bench.core.disconnected(bench.now))
    bench.register(*wished)
    bench.anew(keep=False)
    bench.do(bench.core.connected(bench.now))
    bench.anew(keep=False)
    bench.grant("token-2")
    asked = syncs(bench.take_said())[0].sync
    assert asked is not None
    assert asked.summaries is not None
    return asked


def test_buckets_are_never_split_and_messages_stay_within_the_limit() -> None:
    bench = Bench(config=Config(operations_per_message_max=1_000, message_bytes_max=50_000)).live()
    asked = come_back_to_nothing(bench, names(3000))
    bench.say(sync_request=SyncRequest(op=asked.op, buckets=list(range(BUCKETS))))
    parts = [message.sync for message in bench.take_said() if message.sync is not None]
    assert all(len(part.objects or []) <= 114 for part in parts)
    assert sorted(bucket for part in parts for bucket in part.buckets or []) == list(range(BUCKETS))
    assert [part.op for part in parts] == list(range(asked.op + 1, asked.op + 1 + len(parts)))
    for part in parts:
        assert all(bucket_of(one.object.encode()) in (part.buckets or []) for one in part.objects or [])
    assert sum(len(part.objects or []) for part in parts) == 3000


@pytest.mark.parametrize(("objects_max", "bytes_max", "rounds"), [(100, 1 << 18, 3), (1_000, 6_100, 5)])
def test_no_more_is_stated_at_once_than_a_service_has_room_for_and_the_rest_when_that_is_dealt_with(
    objects_max: int, bytes_max: int, rounds: int
) -> None:
    bench = Bench(config=Config(operations_per_message_max=objects_max, message_bytes_max=bytes_max)).live()
    asked = come_back_to_nothing(bench, names(1000))
    for _ in range(rounds):
        missing = differing_buckets(asked.summaries or [], bucket_summaries(bench.has))
        bench.say(sync_request=SyncRequest(op=asked.op, buckets=missing))
        said = [message.sync for message in bench.take_said() if message.sync is not None]
        parts = [sync for sync in said if sync.summaries is None]
        assert 0 < len(parts) <= STATEMENTS_MAX
        assert sum(len(part.objects or []) for part in parts) <= MESSAGES_UNANSWERED_MAX * objects_max
        bench.has |= {one.object.encode() for part in parts for one in part.objects or []}
        asked = said[-1]
    assert asked.summaries is None
    bench.say()
    assert bench.core.in_sync(bench.now)


def test_a_server_that_names_the_same_buckets_again_is_asked_after_a_pause() -> None:
    bench = Bench(config=Config(operations_per_message_max=100)).live()
    asked = come_back_to_nothing(bench, names(1000))
    bench.say(sync_request=SyncRequest(op=asked.op, buckets=list(range(BUCKETS))))
    again = bench.take_said()[-1].sync
    assert again is not None
    assert again.summaries is not None
    bench.say(sync_request=SyncRequest(op=again.op, buckets=list(range(BUCKETS))))
    assert all(message.sync is not None and message.sync.summaries is None for message in bench.take_said())
    bench.pass_time(4.0)
    assert any(message.sync is not None and message.sync.summaries is not None for message in bench.take_said())


def test_an_answer_to_another_sync_is_ignored() -> None:
    bench = Bench().live()
    bench.registered(*names(300))
    bench.has = set()
    bench.say()
    bench.take_said()
    bench.say(sync_request=SyncRequest(op=999, buckets=[1, 2]))
    bench.say(sync_request=SyncRequest(op=0, buckets=[1, 2]))
    assert syncs(bench.said) == []


def test_registering_twice_tells_again_and_sends_nothing() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    bench.register(b"a")
    assert bench.statuses() == [(b"a", True)]
    assert bench.said == []
    bench.do(bench.core.unregister(bench.now, b"never"))
    assert bench.said == []
