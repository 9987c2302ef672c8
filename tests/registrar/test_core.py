"""The Registrar's core: handshakes, ordering, sync, judgement, settling, repair (Thialfi 4.1.2 to 4.1.4, 4.2).

Long, since the core is one module; a class for each of its duties, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.errors import TokenInvalid
from roskva.model import (
    DROP_COPY,
    OUTCOME_COVERED,
    OUTCOME_LOST,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    ClientId,
    ObjectKey,
    Propagation,
    name_to_text,
    object_key,
    seqno_of,
    session_of,
)
from roskva.protocol.messages import Register, Status, Sync, SyncObject, Unregister
from roskva.protocol.summaries import bucket_of, bucket_summaries
from roskva.protocol.tokens import Claims
from roskva.registrar import core
from roskva.registrar.cells import (
    ACKNOWLEDGED,
    WAITING,
    Created,
    Pending,
    created_cell,
    done_cell,
    log_cell,
    registration_cells,
    seqno_cell,
    unknown_cell,
)
from roskva.registrar.core import Admission, Decision, Operations
from roskva.registrar.row import ClientRow, Standing, Waiting
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell

CLIENT = ClientId("client-1")
CREATED = Created("demo", "phone")
HELLO = object_key("demo", 0, b"hello")
OTHER = object_key("demo", 0, b"other")
LIMIT = 100_000
FIRST = seqno_of(1, 1)


def a_row(*cells: Cell, session: int = 1, epoch: int = 0) -> ClientRow:
    return ClientRow(CLIENT, [created_cell(CREATED), seqno_cell(seqno_of(session, 0)), *cells], epoch)


def registered(seqno: int = FIRST, *more: Cell, done: bool = True, key: ObjectKey = HELLO) -> ClientRow:
    row = a_row(*registration_cells(key, seqno, registered=True, pending=Pending()), seqno_cell(seqno), *more)
    row.apply([done_cell(key, seqno)] if done else [])
    return row


def commit(row: ClientRow, decision: Decision) -> Decision:
    for cells in decision.writes:
        row.apply(cells)
    return decision


def operate(
    row: ClientRow,
    *operations: Register | Unregister,
    session: int = 1,
    numbers: Operations | None = None,
    limit: int = LIMIT,
) -> Decision:
    register = [one for one in operations if isinstance(one, Register)]
    unregister = [one for one in operations if isinstance(one, Unregister)]
    return core.operate(row, session, numbers if numbers is not None else Operations(), register, unregister, limit)


def register(op: int, name: str = "hello", version: str | None = None, epoch: int = 0, interval_ms: int | None = None) -> Register:
    return Register(op=op, object=name, version=version, epoch=epoch, notify_interval_ms=interval_ms)


def unregister(op: int, name: str = "hello") -> Unregister:
    return Unregister(op=op, object=name)


def told(outcome: int = OUTCOME_UPDATE, version: int = 0, seqno: int = FIRST, key: ObjectKey = HELLO) -> Propagation:
    return Propagation(CLIENT, key, seqno, outcome, version)


def settle(row: ClientRow, one: Propagation, acknowledged: bool = False) -> list[Cell]:
    """What a Registrar writes for a propagation that it delivers, its client having acknowledged in time or not."""
    tell, version = core.notification_of(row, one)
    cells = core.settle(row, one, tell and not acknowledged, version)
    row.apply(cells)
    return cells


class TestAnotherInterval:
    """To state one makes a registration anew, and must cost the client nothing that the old one owed it."""

    def events(self, row: ClientRow, *operations: Register) -> list[tuple[int | None, bool]]:
        return [(one.held, one.repair) for one in commit(row, operate(row, *operations)).events]

    def test_a_version_that_the_client_holds_is_stated_again(self) -> None:
        assert self.events(registered(), register(1, version="8", interval_ms=500)) == [(8, False)]

    def test_a_repair_under_way_stays_one_whatever_version_is_stated(self) -> None:
        row = registered()
        commit(row, core.reissue(row, [(HELLO, FIRST)]))
        assert self.events(row, register(1, version="8", interval_ms=500)) == [(None, True)]

    def test_an_unknown_that_waits_is_owed_by_the_new_registration(self) -> None:
        row = registered(FIRST, unknown_cell(HELLO, FIRST, WAITING))
        assert self.events(row, register(1, version="8", interval_ms=500)) == [(None, True)]

    def test_an_unknown_that_was_acknowledged_is_not(self) -> None:
        row = registered(FIRST, unknown_cell(HELLO, FIRST, ACKNOWLEDGED))
        assert self.events(row, register(1, version="8", interval_ms=500)) == [(8, False)]

    def test_two_in_one_message_carry_it_on(self) -> None:
        row = registered(FIRST, unknown_cell(HELLO, FIRST, WAITING))
        both = register(1, version="8", interval_ms=500), register(2, version="8", interval_ms=600)
        assert self.events(row, *both) == [(None, True), (None, True)]


class TestHandshake:
    def test_a_new_client_gets_its_first_session_and_its_row_in_one_write(self) -> None:
        granted = core.grant(ClientRow(CLIENT), CREATED, day=20_000)
        row = ClientRow(CLIENT, granted.cells)
        assert granted.session == 1
        assert (row.created, row.seqno, row.seen_day) == (CREATED, seqno_of(1, 0), 20_000)

    def test_every_start_gets_a_session_above_all_before_it(self) -> None:
        row = registered(seqno_of(7, 3))
        granted = core.grant(row, CREATED, day=1)
        assert granted.session == 8
        assert all(cell.name != b"created" for cell in granted.cells)

    def test_two_grants_in_a_row_are_two_sessions(self) -> None:
        """Trap 37: two clones of one state must not get the same number."""
        row = a_row(session=1)
        first = core.grant(row, CREATED, day=1)
        row.apply(first.cells)
        assert core.grant(row, CREATED, day=1).session == first.session + 1 == 3

    def test_the_operations_of_a_new_start_outrank_those_of_the_old_though_both_count_from_one(self) -> None:
        """Trap 24: numbered by the client's own counter, a restarted client would be ignored as late."""
        row = a_row()
        commit(row, operate(row, register(op=900)))
        row.apply(core.grant(row, CREATED, day=1).cells)
        decision = operate(row, unregister(op=1), session=2, numbers=Operations())
        assert [event.seqno for event in decision.events] == [seqno_of(2, 1)]
        commit(row, decision)
        assert row.standing(HELLO) == Standing(seqno_of(2, 1), registered=False)


PRIOR = Claims(CLIENT, "demo", "phone", 3, "local", 1)


class TestKeepingAnId:
    def may(self, row: ClientRow, prior: Claims = PRIOR, incarnation: int = 1, device: str = "phone") -> bool:
        return core.may_keep_id(row, prior, Created("demo", device), "local", incarnation)

    def test_a_known_client_keeps_its_id(self) -> None:
        assert self.may(a_row(session=3))
        assert self.may(a_row(session=9))

    def test_an_id_whose_row_is_gone_is_not_kept(self) -> None:
        """Trap 38: the Matcher may still hold later cells of it, which would silently win over new registrations."""
        assert not self.may(ClientRow(CLIENT))
        assert not self.may(ClientRow(CLIENT, [seqno_cell(seqno_of(3, 0))]))

    def test_a_token_ahead_of_its_row_proves_that_the_table_was_rolled_back(self) -> None:
        """Trap 42: a restored backup looks sound in every other way."""
        assert not self.may(a_row(session=2))

    @pytest.mark.parametrize(
        "prior",
        [
            PRIOR._replace(application="shop"),
            PRIOR._replace(data_center="elsewhere"),
            PRIOR._replace(incarnation=2),
        ],
    )
    def test_a_token_of_another_place_is_not_continued(self, prior: Claims) -> None:
        assert not self.may(a_row(session=3), prior)

    def test_another_installation_does_not_take_over_an_id(self) -> None:
        assert not self.may(a_row(session=3), device="laptop")

    def test_a_partition_that_was_lost_meanwhile_does_not_know_the_id(self) -> None:
        assert not self.may(a_row(session=3), incarnation=2)


class TestAdmission:
    def test_the_granted_session_is_welcome_whether_or_not_another_spoke(self) -> None:
        row = a_row(session=3)
        assert core.admit(row, 3, active=None) == Admission.WELCOME
        assert core.admit(row, 3, active=2) == Admission.WELCOME
        assert core.admit(row, 3, active=3) == Admission.WELCOME

    def test_a_grant_takes_effect_only_when_it_is_used(self) -> None:
        """Trap 37: a late repeat of an old `init` grants a session that nobody uses; the living one goes on."""
        row = a_row(session=3)
        assert core.admit(row, 2, active=2) == Admission.WELCOME

    def test_once_a_later_session_spoke_the_earlier_is_superseded(self) -> None:
        assert core.admit(a_row(session=3), 2, active=3) == Admission.SUPERSEDED

    def test_a_held_back_message_of_an_earlier_start_supersedes_nobody_after_the_owner_moved(self) -> None:
        """Trap 37: the new owner remembers nobody, and the row alone must decide."""
        assert core.admit(a_row(session=3), 2, active=None) == Admission.SUPERSEDED
        assert core.admit(a_row(session=3), 3, active=None) == Admission.WELCOME

    def test_of_two_unused_grants_the_earlier_may_still_be_used_first(self) -> None:
        """The answer to the second `init` was lost; the client goes on with the first."""
        row = a_row(session=3)
        assert core.admit(row, 2, active=1) == Admission.WELCOME
        assert core.admit(row, 3, active=2) == Admission.WELCOME

    def test_a_client_without_a_row_starts_anew(self) -> None:
        assert core.admit(ClientRow(CLIENT), 1, active=None) == Admission.GONE
        assert core.admit(ClientRow(CLIENT), 1, active=1) == Admission.GONE

    def test_a_session_above_the_granted_one_starts_anew(self) -> None:
        """Trap 42: only the token shows that a backup was restored."""
        assert core.admit(a_row(session=2), 3, active=None) == Admission.GONE
        assert core.admit(a_row(session=2), 3, active=2) == Admission.GONE


class TestOperations:
    def test_a_registration_is_one_write_of_reg_pending_and_seqno_and_one_event(self) -> None:
        row = a_row()
        decision = operate(row, register(1, version="7"))
        pending = Pending(held=7)
        assert decision.writes == [[*registration_cells(HELLO, FIRST, registered=True, pending=pending), seqno_cell(FIRST)]]
        (event,) = decision.events
        assert (event.client, event.object, event.seqno) == (CLIENT, HELLO, FIRST)
        assert (event.registered, event.device, event.held, event.repair) == (True, "phone", 7, False)
        assert decision.statuses == []

    def test_nothing_is_written_into_a_row_that_was_lost_under_a_living_session(self) -> None:
        """Trap 9: registrations in a row without `created` belong to nobody, and yet the summaries would agree."""
        for row in (ClientRow(CLIENT), ClientRow(CLIENT, [seqno_cell(FIRST)])):
            with pytest.raises(TokenInvalid):
                operate(row, register(1))
            with pytest.raises(TokenInvalid):
                core.sync(row, 1, Operations(), Sync(op=1, objects=[SyncObject(object="hello")]), LIMIT)

    def test_seqnos_of_a_session_grow_with_every_operation(self) -> None:
        row = a_row()
        first = commit(row, operate(row, register(1, "a"), register(2, "b")))
        second = commit(row, operate(row, unregister(3, "a")))
        assert [event.seqno for event in first.events + second.events] == [FIRST, FIRST + 1, FIRST + 2]

    def test_a_repeat_of_what_is_pending_reuses_its_seqno_and_adds_nothing(self) -> None:
        """Trap 22: while the pipeline is down, every retry would else cost a seqno, two cells and a feed record."""
        row = a_row()
        numbers = Operations()
        commit(row, operate(row, register(1), numbers=numbers))
        assert operate(row, register(2), numbers=numbers) == Decision()
        commit(row, operate(row, unregister(3), numbers=numbers))
        assert operate(row, unregister(4), numbers=numbers) == Decision()

    def test_a_repeat_of_what_is_done_is_answered_at_once(self) -> None:
        row = registered()
        assert operate(row, register(5)) == Decision(statuses=[Status(object="hello", state="registered")])
        assert operate(a_row(), unregister(5)) == Decision(statuses=[Status(object="hello", state="unregistered")])

    def test_an_operation_that_comes_after_a_later_one_on_its_object_is_ignored(self) -> None:
        row, numbers = a_row(), Operations()
        commit(row, operate(row, register(5), numbers=numbers))
        assert operate(row, unregister(4), numbers=numbers) == Decision()
        assert operate(row, unregister(5), numbers=numbers) == Decision()
        assert operate(row, register(4, "other"), numbers=numbers).events != []

    def test_operations_older_than_the_last_sync_are_ignored(self) -> None:
        row, numbers = a_row(), Operations()
        core.sync(row, 1, numbers, Sync(op=5, objects=[]), LIMIT)
        assert operate(row, register(4), numbers=numbers) == Decision()
        assert operate(row, register(6), numbers=numbers).events != []

    def test_the_numbers_of_a_session_are_bounded_and_forgetting_them_only_lets_late_ones_through(self) -> None:
        numbers = Operations()
        for number in range(1, 25_001):
            assert not numbers.late(object_key("demo", 0, b"%d" % number), number)
            assert len(numbers.last) <= 10_000
        assert numbers.late(object_key("demo", 0, b"25000"), 25_000)

    def test_operations_of_one_message_take_effect_in_the_order_of_their_numbers(self) -> None:
        row = a_row()
        commit(row, operate(row, register(1), unregister(2)))
        assert row.standing(HELLO) == Standing(FIRST + 1, registered=False)
        row = a_row()
        decision = commit(row, operate(row, unregister(1), register(2)))
        assert row.standing(HELLO) == Standing(FIRST, registered=True)
        assert decision.statuses == [Status(object="hello", state="unregistered")]

    def test_one_registration_beyond_the_limit_fails_for_good_and_the_others_go_through(self) -> None:
        """Trap 21: a refusal that the client would keep trying is an endless sync."""
        row = registered()
        decision = operate(row, register(1, "a"), register(2, "b"), limit=2)
        assert [event.object for event in decision.events] == [object_key("demo", 0, b"a")]
        (status,) = decision.statuses
        assert (status.object, status.state, status.transient, status.code) == ("b", "failed", False, "too-many-registrations")
        assert status.message

    def test_an_unregistration_makes_room_within_one_message(self) -> None:
        decision = operate(registered(), unregister(1), register(2, "a"), limit=1)
        assert [event.registered for event in decision.events] == [False, True]
        assert decision.statuses == []

    @pytest.mark.parametrize(
        ("bad", "code"),
        [
            (register(1, ""), "invalid-name"),
            (register(1, "x" * 129), "invalid-name"),
            (register(1, "base64:!"), "invalid-name"),
            (unregister(1, ""), "invalid-name"),
            (register(1, version="9223372036854775808"), "invalid-version"),
        ],
    )
    def test_a_bad_operation_fails_for_good_by_name_and_the_others_go_through(self, bad: Register | Unregister, code: str) -> None:
        """Trap 21: the object must leave the desired set."""
        decision = operate(a_row(), bad, register(2, "good"))
        assert [event.object for event in decision.events] == [object_key("demo", 0, b"good")]
        (status,) = decision.statuses
        assert (status.object, status.state, status.transient, status.code) == (bad.object, "failed", False, code)

    def test_a_held_version_counts_only_in_its_own_epoch(self) -> None:
        """Traps 33 and 34: v100 of before a reset says nothing about v5 after it."""
        row = a_row(epoch=1)
        assert operate(row, register(1, version="100")).events[0].held is None
        assert operate(row, register(1, version="100", epoch=1)).events[0].held == 100
        assert operate(row, register(1, version="100", epoch=2)).events[0].held is None

    def test_registrations_are_of_the_present_epoch(self) -> None:
        assert operate(a_row(epoch=3), register(1)).events[0].object == object_key("demo", 3, b"hello")

    def test_an_earlier_session_goes_on_in_its_own_numbers_beside_an_unused_grant(self) -> None:
        row = registered(FIRST)
        row.apply(core.grant(row, CREATED, day=1).cells)
        decision = commit(row, operate(row, register(2, "other"), session=1))
        assert decision.events[0].seqno == FIRST + 1
        assert row.seqno == seqno_of(2, 0)

    def test_an_operation_outranks_a_repair_that_was_numbered_beside_an_unused_grant(self) -> None:
        """Else the unregistration would lose against the repaired registration, at every retry."""
        row = registered(FIRST)
        row.apply(core.grant(row, CREATED, day=1).cells)
        commit(row, core.reissue(row, [(HELLO, 0)]))
        assert row.standing(HELLO) == Standing(seqno_of(2, 1), registered=True)
        commit(row, operate(row, unregister(2), session=1))
        assert row.standing(HELLO) == Standing(seqno_of(2, 2), registered=False)

    def test_no_write_holds_more_cells_than_an_engine_takes_and_each_carries_its_seqno(self) -> None:
        row = a_row()
        decision = operate(row, *(register(number, f"object-{number}") for number in range(1, 1_001)))
        assert sum(len(cells) for cells in decision.writes) == 2_000 + len(decision.writes)
        for cells in decision.writes:
            assert len(cells) <= CELLS_PER_WRITE_MAX
            row.apply(cells)
            assert row.seqno == max(cell.timestamp for cell in cells)
        assert (row.digest.count, row.pending_count, row.seqno) == (1_000, 1_000, seqno_of(1, 1_000))

    def test_a_crash_between_two_writes_leaves_what_a_repeat_completes(self) -> None:
        row = a_row()
        asked = [register(number, f"object-{number}") for number in range(1, 1_001)]
        row.apply(operate(row, *asked).writes[0])
        commit(row, operate(row, *asked))
        assert row.digest.count == 1_000
        standings = [row.standing(key) for key in row.registered()]
        assert len({standing.seqno for standing in standings if standing}) == 1_000


names = st.sampled_from([b"a", b"b", b"c", b"d", b"\xff"])
name_sets = st.sets(names, max_size=5)


def row_of(members: set[bytes]) -> ClientRow:
    row = a_row()
    for number, name in enumerate(sorted(members), 1):
        key = object_key("demo", 0, name)
        row.apply([*registration_cells(key, seqno_of(1, number), True, Pending()), done_cell(key, seqno_of(1, number))])
    row.apply([seqno_cell(seqno_of(1, len(members)))])
    return row


def state(members: set[bytes]) -> list[SyncObject]:
    return [SyncObject(object=name_to_text(name)) for name in sorted(members)]


def registered_names(row: ClientRow) -> set[bytes]:
    return {key[len(b"demo") + 5 :] for key in row.registered()}


class TestSync:
    @given(name_sets, name_sets)
    def test_a_full_sync_makes_the_registrations_equal_and_writes_only_differences(self, server: set[bytes], client: set[bytes]) -> None:
        row = row_of(server)
        decision = commit(row, core.sync(row, 1, Operations(), Sync(op=1, objects=state(client)), LIMIT))
        assert registered_names(row) == client
        assert len(decision.events) == len(server ^ client)
        assert sum(len(cells) for cells in decision.writes) == (2 * len(server ^ client) + 1 if server != client else 0)
        assert {one.object for one in decision.statuses} == {name_to_text(name) for name in server & client}

    @given(name_sets, name_sets, st.sets(names, max_size=3))
    def test_a_bucket_sync_is_authoritative_for_the_buckets_that_it_names_and_no_others(
        self, server: set[bytes], client: set[bytes], named: set[bytes]
    ) -> None:
        row = row_of(server)
        buckets = sorted({bucket_of(name) for name in named})
        commit(row, core.sync(row, 1, Operations(), Sync(op=1, objects=state(client), buckets=buckets), LIMIT))
        inside = {name for name in server | client if bucket_of(name) in buckets}
        assert registered_names(row) == (server - inside) | (client & inside)

    @given(name_sets, name_sets)
    def test_summaries_are_answered_with_the_buckets_that_differ_and_change_nothing(self, server: set[bytes], client: set[bytes]) -> None:
        decision = core.sync(row_of(server), 1, Operations(), Sync(op=9, summaries=bucket_summaries(client)), LIMIT)
        assert (decision.writes, decision.events, decision.statuses) == ([], [], [])
        assert decision.sync_request is not None
        assert decision.sync_request.op == 9
        assert decision.sync_request.buckets == sorted({bucket_of(name) for name in server ^ client})

    @given(name_sets, name_sets)
    def test_summaries_then_the_differing_buckets_make_the_registrations_equal(self, server: set[bytes], client: set[bytes]) -> None:
        row, numbers = row_of(server), Operations()
        asked = core.sync(row, 1, numbers, Sync(op=1, summaries=bucket_summaries(client)), LIMIT).sync_request
        assert asked is not None
        assert asked.buckets is not None
        objects = state({name for name in client if bucket_of(name) in asked.buckets})
        commit(row, core.sync(row, 1, numbers, Sync(op=2, objects=objects, buckets=asked.buckets), LIMIT))
        assert registered_names(row) == client

    def test_a_late_sync_is_ignored(self) -> None:
        row, numbers = row_of({b"a"}), Operations()
        core.sync(row, 1, numbers, Sync(op=5, objects=state({b"a"})), LIMIT)
        assert core.sync(row, 1, numbers, Sync(op=4, objects=[]), LIMIT) == Decision()
        assert core.sync(row, 1, numbers, Sync(op=5, objects=[]), LIMIT) == Decision()

    def test_a_sync_leaves_alone_what_a_later_operation_put(self) -> None:
        """Trap 23: a sync that was overtaken must not correct what came after it."""
        row, numbers = row_of({b"a"}), Operations()
        commit(row, operate(row, register(6, "b"), unregister(7, "a"), numbers=numbers))
        decision = core.sync(row, 1, numbers, Sync(op=5, objects=state({b"a"})), LIMIT)
        assert decision.events == []
        assert registered_names(row) == {b"b"}

    def test_an_object_that_is_pending_is_no_difference(self) -> None:
        row = registered(done=False)
        assert core.sync(row, 1, Operations(), Sync(op=1, objects=[SyncObject(object="hello")]), LIMIT) == Decision()

    def test_a_bad_name_fails_for_good_and_the_rest_is_applied(self) -> None:
        """Trap 21: it would differ for ever."""
        row = a_row()
        objects = [SyncObject(object=""), SyncObject(object="b", version="9223372036854775808"), SyncObject(object="good")]
        decision = commit(row, core.sync(row, 1, Operations(), Sync(op=1, objects=objects), LIMIT))
        assert registered_names(row) == {b"good"}
        assert [(one.object, one.code, one.transient) for one in decision.statuses] == [
            ("", "invalid-name", False),
            ("b", "invalid-version", False),
        ]

    def test_a_sync_beyond_the_limit_fails_for_good_where_it_is_full(self) -> None:
        row = row_of({b"a"})
        decision = commit(row, core.sync(row, 1, Operations(), Sync(op=1, objects=state({b"b", b"c"})), registrations_max=1))
        assert len(registered_names(row)) == 1
        assert [one.code for one in decision.statuses] == ["too-many-registrations"]

    def test_a_sync_states_versions_held_as_a_registration_does(self) -> None:
        row = a_row(epoch=2)
        objects = [SyncObject(object="a", version="7", epoch=2), SyncObject(object="b", version="7", epoch=1)]
        decision = core.sync(row, 1, Operations(), Sync(op=1, objects=objects), LIMIT)
        assert [event.held for event in decision.events] == [7, None]

    def test_after_a_reset_a_sync_registers_everything_anew(self) -> None:
        row = ClientRow(CLIENT, [cell for cells in (row_of({b"a"})._cells.values(),) for cell in cells], epoch=1)
        decision = core.sync(row, 1, Operations(), Sync(op=1, objects=state({b"a"})), LIMIT)
        assert [event.object for event in decision.events] == [object_key("demo", 1, b"a")]

    def test_a_large_sync_is_written_in_pieces_that_an_engine_takes(self) -> None:
        objects = [SyncObject(object=str(number)) for number in range(1_000)]
        decision = core.sync(a_row(), 1, Operations(), Sync(op=1, objects=objects), LIMIT)
        assert [len(cells) <= CELLS_PER_WRITE_MAX for cells in decision.writes] == [True] * 3


class TestJudgement:
    """A tuple (client, object, version, s) by the row's durable registration @r: the six cases."""

    def test_s_equal_r_is_delivered(self) -> None:
        for outcome in (OUTCOME_UPDATE, OUTCOME_VERSION, OUTCOME_UNKNOWN, OUTCOME_COVERED):
            judgement = core.judge(registered(), told(outcome, 7))
            assert (judgement.verdict, judgement.reissue) == (None, False)

    def test_s_below_r_is_void(self) -> None:
        """That registration's own read saw this version."""
        assert core.judge(registered(FIRST + 5), told(version=7, seqno=FIRST)).verdict == SETTLED

    def test_s_up_to_an_unregistration_is_void(self) -> None:
        row = registered(FIRST)
        row.apply(registration_cells(HELLO, FIRST + 1, registered=False, pending=Pending()))
        for seqno in (FIRST, FIRST + 1):
            assert core.judge(row, told(version=7, seqno=seqno)).verdict == SETTLED
        assert core.judge(row, told(OUTCOME_VERSION, 7, FIRST)).verdict == SETTLED

    def test_without_created_it_is_void_and_the_copy_goes(self) -> None:
        """Trap 26: a dead id must leave the Matcher."""
        row = ClientRow(CLIENT, registration_cells(HELLO, FIRST, registered=True, pending=Pending()))
        assert core.judge(row, told(version=7)).verdict == DROP_COPY
        assert core.judge(ClientRow(CLIENT), told(OUTCOME_VERSION, 7)).verdict == DROP_COPY

    def test_s_above_r_of_a_registration_is_repaired(self) -> None:
        judgement = core.judge(registered(FIRST), told(version=7, seqno=FIRST + 1))
        assert (judgement.verdict, judgement.reissue) == (None, True)
        assert core.judge(registered(FIRST), told(OUTCOME_UNREGISTERED, seqno=FIRST + 1)).reissue

    def test_s_above_r_of_nothing_registered_drops_the_copy(self) -> None:
        assert core.judge(a_row(), told(version=7)).verdict == DROP_COPY
        row = registered(FIRST)
        row.apply(registration_cells(HELLO, FIRST + 1, registered=False, pending=Pending()))
        assert core.judge(row, told(version=7, seqno=FIRST + 2)).verdict == DROP_COPY

    def test_the_confirmation_of_an_unregistration_is_delivered_once_and_void_where_it_does_not_fit(self) -> None:
        row = a_row(*registration_cells(HELLO, FIRST, registered=False, pending=Pending()))
        assert core.judge(row, told(OUTCOME_UNREGISTERED)) == core.Judgement()
        assert core.judge(registered(), told(OUTCOME_UNREGISTERED)).verdict == SETTLED
        assert core.judge(a_row(), told(OUTCOME_UNREGISTERED)).verdict == SETTLED

    @given(st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(0, 4), st.booleans())
    def test_every_case_has_exactly_one_judgement(self, s: int, r: int, live: bool, outcome: int, created: bool) -> None:
        row = ClientRow(CLIENT, registration_cells(HELLO, r, live, Pending()))
        row.apply([created_cell(CREATED)] if created else [])
        judgement = core.judge(row, told(outcome, 7, s))
        assert not (judgement.verdict is not None and judgement.reissue)
        delivered = judgement == core.Judgement()
        assert delivered == (created and s == r and live == (outcome != OUTCOME_UNREGISTERED))


class TestDelivery:
    def test_an_acknowledged_notification_is_never_written(self) -> None:
        row = registered()
        assert settle(row, told(version=7), acknowledged=True) == []

    def test_an_unacknowledged_one_is_stored_and_waits(self) -> None:
        row = registered()
        assert settle(row, told(version=7)) == [log_cell(HELLO, FIRST, 7, WAITING)]
        assert list(row.waiting()) == [Waiting(HELLO, FIRST, 7)]

    def test_a_registration_is_settled_together_with_its_notification_in_one_write(self) -> None:
        """Trap 15: with the marker cleared first, a crash would leave the notification with nobody."""
        for outcome, cell in (
            (OUTCOME_VERSION, log_cell(HELLO, FIRST, 7, WAITING)),
            (OUTCOME_UNKNOWN, unknown_cell(HELLO, FIRST, WAITING)),
        ):
            row = registered(done=False)
            assert settle(row, told(outcome, 7)) == [done_cell(HELLO, FIRST), cell]
            assert row.pending_count == 0

    def test_an_acknowledged_registration_only_clears_its_marker(self) -> None:
        row = registered(done=False)
        assert settle(row, told(OUTCOME_VERSION, 7), acknowledged=True) == [done_cell(HELLO, FIRST)]

    @pytest.mark.parametrize("outcome", [OUTCOME_COVERED, OUTCOME_UNREGISTERED])
    def test_what_tells_nothing_only_clears_its_marker(self, outcome: int) -> None:
        live = outcome == OUTCOME_COVERED
        row = a_row(*registration_cells(HELLO, FIRST, live, Pending()))
        assert core.notification_of(row, told(outcome)) == (False, None)
        assert settle(row, told(outcome)) == [done_cell(HELLO, FIRST)]

    def test_an_update_does_not_clear_the_marker_of_a_registration(self) -> None:
        row = registered(done=False)
        assert settle(row, told(OUTCOME_UPDATE, 7)) == [log_cell(HELLO, FIRST, 7, WAITING)]
        assert row.is_pending(HELLO, FIRST)

    def test_a_repeat_of_what_is_stored_writes_nothing_and_is_told_again(self) -> None:
        row = registered()
        settle(row, told(version=7))
        assert core.notification_of(row, told(version=7)) == (True, 7)
        assert settle(row, told(version=7)) == []

    def test_a_lower_version_than_the_stored_one_tells_the_stored_one(self) -> None:
        row = registered()
        settle(row, told(version=9))
        assert core.notification_of(row, told(version=7)) == (True, 9)
        assert settle(row, told(version=7)) == []

    def test_a_higher_version_takes_the_place_of_the_stored_one(self) -> None:
        row = registered()
        settle(row, told(version=7))
        assert settle(row, told(version=9)) == [log_cell(HELLO, FIRST, 9, WAITING)]
        assert list(row.waiting()) == [Waiting(HELLO, FIRST, 9)]

    def test_what_is_acknowledged_on_disk_is_not_told_again(self) -> None:
        row = registered(FIRST, log_cell(HELLO, FIRST, 7, ACKNOWLEDGED))
        assert core.notification_of(row, told(version=7)) == (False, 7)
        assert core.notification_of(row, told(version=6))[0] is False
        assert core.notification_of(row, told(version=8)) == (True, 8)

    def test_an_unknown_is_told_until_it_is_acknowledged(self) -> None:
        row = registered(done=False)
        unknown = told(OUTCOME_UNKNOWN)
        assert core.notification_of(row, unknown) == (True, None)
        settle(row, unknown)
        assert core.notification_of(row, unknown) == (True, None)
        row.apply([core.acknowledge(HELLO, FIRST, None)])
        assert core.notification_of(row, unknown) == (False, None)

    def test_an_unknown_that_was_acknowledged_in_time_is_not_told_again(self) -> None:
        row = registered(done=False)
        settle(row, told(OUTCOME_UNKNOWN), acknowledged=True)
        assert core.notification_of(row, told(OUTCOME_UNKNOWN)) == (False, None)

    def test_the_confirmation_is_of_the_registration_and_never_of_an_update(self) -> None:
        assert core.status_of(told(OUTCOME_UPDATE, 7)) is None
        for outcome in (OUTCOME_VERSION, OUTCOME_UNKNOWN, OUTCOME_COVERED):
            assert core.status_of(told(outcome, 7)) == Status(object="hello", state="registered")
        assert core.status_of(told(OUTCOME_UNREGISTERED)) == Status(object="hello", state="unregistered")


class TestAcknowledgement:
    def test_it_clears_exactly_the_cell_that_it_names(self) -> None:
        """Trap 31: an acknowledged v8 says nothing of an unknown, which may stand for a lost v9."""
        row = registered(FIRST, log_cell(HELLO, FIRST, 8, WAITING), unknown_cell(HELLO, FIRST, WAITING))
        row.apply([core.acknowledge(HELLO, FIRST, 8)])
        assert list(row.waiting()) == [Waiting(HELLO, FIRST, None)]
        row.apply([core.acknowledge(HELLO, FIRST, None)])
        assert list(row.waiting()) == []

    def test_an_old_one_does_not_kill_what_a_new_registration_yields(self) -> None:
        """Traps 2 and 35: the same version, acknowledged for the registration before, is owed to this one."""
        row = registered(FIRST, log_cell(HELLO, FIRST, 7, ACKNOWLEDGED))
        commit(row, operate(row, unregister(1)))
        settle(row, told(OUTCOME_UNREGISTERED, seqno=FIRST + 1))
        commit(row, operate(row, register(2)))
        settle(row, told(OUTCOME_VERSION, 7, FIRST + 2))
        row.apply([core.acknowledge(HELLO, FIRST, 7)])  # late, of the registration before
        assert list(row.waiting()) == [Waiting(HELLO, FIRST + 2, 7)]

    def test_one_of_an_earlier_version_leaves_the_later_waiting(self) -> None:
        row = registered(FIRST, log_cell(HELLO, FIRST, 9, WAITING))
        row.apply([core.acknowledge(HELLO, FIRST, 8)])
        assert list(row.waiting()) == [Waiting(HELLO, FIRST, 9)]

    def test_one_of_an_earlier_session_does_not_acknowledge_for_the_new_one(self) -> None:
        """Trap 16: seqnos carry their session, so that what a superseded run acknowledges is its own."""
        later = seqno_of(2, 1)
        row = registered(later, log_cell(HELLO, later, 7, WAITING))
        row.apply([core.acknowledge(HELLO, FIRST, 7)])
        assert list(row.waiting()) == [Waiting(HELLO, later, 7)]

    def test_one_of_another_object_touches_nothing_else(self) -> None:
        row = registered(FIRST, log_cell(HELLO, FIRST, 7, WAITING))
        row.apply([core.acknowledge(OTHER, FIRST, 7), core.acknowledge(OTHER, FIRST, None)])
        assert list(row.waiting()) == [Waiting(HELLO, FIRST, 7)]


class TestReissue:
    def test_it_is_a_new_seqno_with_a_pending_marker_flagged_as_a_repair(self) -> None:
        row = registered(FIRST)
        decision = commit(row, core.reissue(row, [(HELLO, 0)]))
        assert len(decision.writes) == 1
        (event,) = decision.events
        assert (event.seqno, event.registered, event.repair, event.held, event.device) == (FIRST + 1, True, True, None, "phone")
        assert row.pending() == [(HELLO, FIRST + 1, Pending(held=None, repair=True))]
        assert row.seqno == FIRST + 1

    def test_it_outranks_what_the_matcher_holds(self) -> None:
        ahead = seqno_of(9, 40)
        row = registered(FIRST)
        commit(row, core.reissue(row, [(HELLO, ahead)]))
        assert row.standing(HELLO) == Standing(ahead + 1, registered=True)
        assert session_of(row.seqno) == 9

    def test_many_are_one_decision_in_writes_that_engines_take(self) -> None:
        keys = [object_key("demo", 0, b"%d" % number) for number in range(1_000)]
        row = a_row(*(cell for key in keys for cell in registration_cells(key, FIRST, registered=True, pending=Pending())))
        decision = commit(row, core.reissue(row, [(key, FIRST) for key in keys]))
        assert [event.seqno for event in decision.events] == [FIRST + 1 + number for number in range(1_000)]
        assert max(len(cells) for cells in decision.writes) <= CELLS_PER_WRITE_MAX
        assert len(row.pending()) == 1_000
        assert row.seqno == FIRST + 1_000

    def test_what_a_sweep_found_lost_is_reissued_as_it_stands_and_nothing_else(self) -> None:
        row = registered(FIRST)
        assert core.judge(row, told(OUTCOME_LOST)).reissue
        commit(row, core.reissue(row, [(HELLO, FIRST)]))
        assert core.judge(row, told(OUTCOME_LOST)).verdict == SETTLED, "it was registered anew since"
        commit(row, operate(row, unregister(1)))
        assert core.judge(row, told(OUTCOME_LOST, seqno=row.seqno)).verdict == SETTLED
        assert core.judge(a_row(), told(OUTCOME_LOST)).verdict == SETTLED

    def test_repeating_its_event_repeats_the_repair(self) -> None:
        """Whoever finds the marker repeats the event: it must still yield unknown."""
        row = registered(FIRST)
        decision = commit(row, core.reissue(row, [(HELLO, 0)]))
        ((key, seqno, pending),) = row.pending()
        assert core.event_of(row, key, seqno, True, pending) == decision.events[0]

    def test_it_does_not_change_the_summary(self) -> None:
        row = registered(FIRST)
        before = row.digest.summary()
        commit(row, core.reissue(row, [(HELLO, 0)]))
        assert row.digest.summary() == before


rows_in_any_state = st.builds(
    lambda created, seqno, live, cells: ClientRow(
        CLIENT,
        [
            *([created_cell(CREATED)] if created else []),
            *(registration_cells(HELLO, seqno, live, Pending()) if seqno else []),
            *cells,
        ],
    ),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
    st.lists(
        st.builds(log_cell, st.just(HELLO), st.integers(1, 3), st.integers(0, 3), st.sampled_from([WAITING, ACKNOWLEDGED]))
        | st.builds(unknown_cell, st.just(HELLO), st.integers(1, 3), st.sampled_from([WAITING, ACKNOWLEDGED]))
        | st.builds(done_cell, st.just(HELLO), st.integers(1, 3)),
        max_size=4,
    ),
)
any_propagation = st.builds(told, st.integers(0, 4), st.integers(0, 3), st.integers(1, 3))


def cells_of(row: ClientRow) -> dict[bytes, Cell]:
    return dict(row._cells)


class TestBlindWrites:
    @given(rows_in_any_state, any_propagation)
    def test_they_are_what_the_registrar_would_write_for_a_client_that_is_offline(self, row: ClientRow, one: Propagation) -> None:
        decision = core.blind(ClientRow(CLIENT, cells_of(row).values()), one)
        judgement = core.judge(row, one)
        if judgement.verdict is not None:
            assert (decision.cells, decision.verdict) == ([], judgement.verdict)
        elif judgement.reissue:
            assert decision.cells == core.reissue(row, [(HELLO, one.seqno)]).writes[0]
            assert decision.verdict == SETTLED
        else:
            tell, version = core.notification_of(row, one)
            assert decision.cells == core.settle(row, one, tell, version)
            assert decision.verdict == SETTLED

    @given(rows_in_any_state, st.lists(any_propagation, max_size=5))
    def test_they_may_be_repeated_and_what_is_owed_is_never_lost(self, row: ClientRow, story: Sequence[Propagation]) -> None:
        for one in story:
            first = core.blind(ClientRow(CLIENT, cells_of(row).values()), one)
            row.apply(first.cells)
            if core.judge(row, one) == core.Judgement():
                again = core.blind(ClientRow(CLIENT, cells_of(row).values()), one)
                assert again.cells == []
                if one.outcome == OUTCOME_UPDATE:
                    logged = row.logged(HELLO, one.seqno)
                    assert logged is not None
                    assert logged.timestamp >= one.version

    def test_a_repair_found_by_its_marker_is_pending_for_the_owner(self) -> None:
        row = registered(FIRST)
        row.apply(core.blind(ClientRow(CLIENT, cells_of(row).values()), told(version=7, seqno=FIRST + 5)).cells)
        assert row.pending() == [(HELLO, FIRST + 6, Pending(held=None, repair=True))]
