"""What a simulated client says to what it is told, message by message, by docs/protocol.md."""

from __future__ import annotations

import json
from typing import Any

from roskva.load.clients import ASKING, IN_SYNC, REGISTERING, SPEAKING, SYNCING, Clients
from roskva.load.plan import Plan
from roskva.protocol.messages import decode_client
from roskva.protocol.summaries import SetDigest

PLAN = Plan(3, registrations=2)
WALL_US = 1_000_000_000


class Table:
    """The clients, and what they said. Time passes only by `later`."""

    def __init__(self, plan: Plan = PLAN, tokens: tuple[str, ...] = ()) -> None:
        self.said: list[tuple[int, dict[str, Any]]] = []
        self.now_s = 0.0
        self.clients = Clients(plan, 0, plan.clients, self._say, lambda: 0.5, "run", 0.0)
        self.clients.tokens[: len(tokens)] = tokens
        self.clients.since_us = WALL_US

    def _say(self, number: int, message: bytes) -> None:
        decode_client(message, 1 << 20)  # it is of the documented form
        self.said.append((number, json.loads(message)))

    def last(self) -> dict[str, Any]:
        return self.said[-1][1]

    def tell(self, number: int, after_us: int = 0, **message: Any) -> None:
        self.clients.received(number, json.dumps(message).encode(), self.now_s, WALL_US + after_us)

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.clients.tick(self.now_s)


def summary_of(number: int) -> dict[str, Any]:
    digest = SetDigest(name.encode() for name in PLAN.names_of(number)).summary()
    return {"count": digest.count, "digest": digest.digest}


NOTHING = {"count": 0, "digest": "0" * 32}


def joined(number: int = 0) -> Table:
    """A client that has registered and is in sync."""
    table = Table()
    table.clients.arrive(number, 0.0)
    table.tell(number, token="T", summary=NOTHING, grant={"nonce": table.last()["init"]["nonce"], "token": "T"}, config={})
    status = [{"object": name, "state": "registered"} for name in PLAN.names_of(number)]
    table.tell(number, token="T", summary=summary_of(number), status=status)
    assert table.clients.states[number] == IN_SYNC
    return table


def test_a_new_client_handshakes_registers_and_is_in_sync_when_all_is_confirmed_and_settled() -> None:
    table = Table()
    table.clients.arrive(1, 0.0)
    first = table.last()["init"]
    assert (first["application"], first["device"], first.get("prior")) == ("demo", "load-1", None)
    table.later(5.0)
    again = table.last()["init"]
    assert again["nonce"] != first["nonce"]  # each time a new one
    table.tell(1, token="T0", summary=NOTHING, grant={"nonce": first["nonce"], "token": "T0"})
    assert table.clients.states[1] == ASKING  # only the answer to the last one counts
    table.tell(1, token="T", summary=NOTHING, grant={"nonce": again["nonce"], "token": "T"})
    assert [one["object"] for one in table.last()["register"]] == PLAN.names_of(1)
    assert table.last()["summary"] == summary_of(1)
    one, other = PLAN.names_of(1)
    table.tell(1, token="T", summary=summary_of(1), unsettled=1, status=[{"object": one, "state": "registered"}])
    table.later(5.0)
    assert [(wish["op"], wish["object"]) for wish in table.last()["register"]] == [(3, other)]  # what is open, under a new number
    table.tell(1, token="T", summary=summary_of(1), unsettled=1, status=[{"object": other, "state": "registered"}])
    assert table.clients.states[1] == REGISTERING
    table.tell(1, token="T", summary=summary_of(1))
    assert (table.clients.states[1], table.clients.counts.in_sync, table.clients.counts.registered) == (IN_SYNC, 1, 2)


def test_one_that_returns_names_its_prior_token_and_registers_nothing_if_the_summaries_agree() -> None:
    table = Table(tokens=("P",))
    table.clients.arrive(0, 0.0)
    assert table.last()["init"]["prior"] == "P"
    table.tell(0, token="T", summary=summary_of(0), grant={"nonce": table.last()["init"]["nonce"], "token": "T"})
    assert table.last() == {"token": "T", "summary": summary_of(0)}
    assert table.clients.states[0] == SPEAKING
    table.tell(0, token="T", summary=summary_of(0))
    assert table.clients.states[0] == IN_SYNC
    assert len(table.said) == 2


def test_the_line_may_say_that_all_is_settled() -> None:
    table = Table(tokens=("P",))
    table.clients.arrive(0, 0.0)
    table.clients.settled(0, 0.0)
    assert table.clients.states[0] == ASKING
    table.tell(0, token="T", summary=summary_of(0), grant={"nonce": table.last()["init"]["nonce"], "token": "T"})
    table.clients.settled(0, 0.0)
    assert table.clients.states[0] == SPEAKING  # of this session nothing came yet
    table.tell(0, token="T", summary=summary_of(0), unsettled=2)
    assert table.clients.states[0] == SPEAKING
    table.clients.settled(7, 0.0)  # somebody else's
    table.clients.settled(0, 0.0)
    assert table.clients.states[0] == IN_SYNC
    table.tell(0, token="T", summary=NOTHING, unsettled=1)
    table.clients.settled(0, 0.0)
    assert table.clients.states[0] == SYNCING  # the summary still differs


def test_one_that_goes_on_with_its_session_only_speaks() -> None:
    table = Table(Plan(3, registrations=2, resume=True), tokens=("P",))
    table.clients.arrive(0, 0.0)
    assert table.last() == {"token": "P", "summary": summary_of(0)}
    table.clients.arrive(1, 0.0)
    assert "init" in table.last()  # it has nothing to go on with


def test_one_whose_summary_differs_states_all_its_registrations() -> None:
    table = joined()
    table.tell(0, token="T", summary=NOTHING)
    assert [one["object"] for one in table.last()["sync"]["objects"]] == PLAN.names_of(0)
    assert (table.clients.states[0], table.clients.counts.in_sync) == (SYNCING, 0)
    table.later(10.0)
    assert table.last()["sync"]["op"] == 4
    table.tell(0, token="T", summary=summary_of(0))
    assert table.clients.states[0] == IN_SYNC


def test_every_notification_is_acknowledged_as_it_came_and_counted_once() -> None:
    table = joined()
    name = PLAN.names_of(0)[1]
    told = [{"object": name, "seqno": "4294967297", "version": str(WALL_US + 5_000)}]
    for _ in range(2):
        table.tell(0, after_us=12_000, token="T", summary=summary_of(0), unsettled=1, notify=told)
        assert table.last()["acks"] == told
    counts = table.clients.counts
    assert (counts.notified, counts.repeated, counts.in_sync) == (1, 1, 1)
    assert table.clients.latencies.max_us == 7_000
    older = [{"object": PLAN.names_of(0)[0], "seqno": "4294967297", "version": "7"}, {"object": name, "seqno": "4294967297"}]
    table.tell(0, token="T", summary=summary_of(0), notify=older)
    assert table.last()["acks"] == older
    assert (counts.told_earlier, counts.unknown, counts.notified) == (1, 1, 1)


def test_what_is_for_another_session_is_not_heard() -> None:
    table = joined()
    said = len(table.said)
    table.tell(0, token="OLD", notify=[{"object": PLAN.names_of(0)[0], "seqno": "1", "version": "9"}])
    table.tell(7, token="T")
    table.tell(0, token="OLD", start_anew={"code": "session-superseded", "keep": True})
    assert len(table.said) == said
    assert table.clients.states[0] == IN_SYNC


def test_a_version_of_a_later_epoch_is_newer_however_small() -> None:
    table = joined()
    name = PLAN.names_of(0)[0]
    table.tell(0, token="T", notify=[{"object": name, "seqno": "1", "version": str(WALL_US + 9)}])
    table.tell(0, after_us=3, token="T", notify=[{"object": name, "seqno": "2", "version": str(WALL_US + 1), "epoch": 1}])
    assert (table.clients.counts.notified, table.clients.counts.repeated) == (2, 0)
    assert table.last()["acks"][0]["epoch"] == 1


def test_a_silent_client_heartbeats_and_speaking_puts_that_off() -> None:
    table = joined()
    table.later(1_000.0)
    table.tell(0, token="T", notify=[{"object": PLAN.names_of(0)[0], "seqno": "1", "version": "9"}])
    said = len(table.said)
    table.later(1_100.0)
    assert len(table.said) == said
    table.later(200.0)
    assert table.said[said:] == [(0, {"token": "T", "summary": summary_of(0)})]
    assert table.clients.counts.heartbeats == 1


def test_told_to_start_anew_it_handshakes_with_its_token_or_without() -> None:
    table = joined()
    table.tell(0, token="T", start_anew={"code": "session-superseded", "keep": True})
    assert table.last()["init"]["prior"] == "T"
    table.tell(0, token="T2", summary=summary_of(0), grant={"nonce": table.last()["init"]["nonce"], "token": "T2"})
    table.tell(0, token="T2", start_anew={"code": "token-invalid", "keep": False})
    assert "prior" not in table.last()["init"]
    assert table.clients.counts.started_anew == 2


def test_who_is_refused_waits_as_long_as_the_service_says() -> None:
    table = Table()
    table.clients.arrive(0, 0.0)
    table.tell(0, error={"code": "overloaded", "message": "Later.", "transient": True, "retry_after_s": 20.0})
    table.later(15.0)
    assert len(table.said) == 1
    table.later(30.0)
    assert len(table.said) == 2
    assert (table.clients.counts.errors["overloaded"], table.clients.counts.said) == (1, "Later.")
    assert not table.clients.failure


def test_what_no_patience_helps_against_is_a_failure() -> None:
    table = Table()
    table.clients.arrive(0, 0.0)
    table.tell(0, error={"code": "unknown-application", "message": "There is no application 'demo' here."})
    assert "no application" in table.clients.failure
    table = Table()
    table.clients.arrive(0, 0.0)
    table.tell(0, credential={"wanted": True, "code": "credential-required", "message": "Show one."})
    assert "asks its clients who their users are" in table.clients.failure


def test_what_is_missing_is_what_was_accepted_and_not_told_to_somebody_in_sync() -> None:
    table = joined()
    latest = [0] * PLAN.objects
    assert table.clients.missing(latest) == 0
    for number in PLAN.objects_of(0) + PLAN.objects_of(1):
        latest[number] = WALL_US + 1
    assert table.clients.missing(latest) == 2  # client 1 is not there
    table.tell(0, token="T", notify=[{"object": PLAN.names_of(0)[0], "seqno": "1", "version": str(WALL_US + 1)}])
    assert table.clients.missing(latest) == 1
    table.tell(0, after_us=5, token="T", notify=[{"object": PLAN.names_of(0)[1], "seqno": "1"}])
    assert table.clients.missing(latest) == 0  # unknown covers whatever was published before it


def test_a_client_is_small() -> None:
    clients = Clients(Plan(1_000), 0, 1_000, lambda number, message: None, lambda: 0.5, "run", 0.0)
    columns = [value for value in vars(clients).values() if isinstance(value, (bytearray, list)) or hasattr(value, "itemsize")]
    size = sum(value.__sizeof__() for value in columns) + 8 * 1_000  # and two numbers in the wheel
    assert size < 150_000  # the token itself has some 150 bytes more
