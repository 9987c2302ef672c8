"""The parts of `failover` and `sweeping` that decide what is counted, without a service."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import cast

import pytest
from picows import WSTransport

from bench.accounting import GATEWAY, GENERATOR, JVM, OTHERS, WORKERS, Snapshot, name_in
from bench.clients import Heard
from bench.failover import HOLDING_BACK, Usage, one_object_each, over_time
from bench.filling import Filled, Population, fill
from bench.plots import draw
from bench.report import Aim, Result
from bench.returning import ReturningClient, ReturningFleet
from bench.service import BenchFailed, summed_samples
from bench.sweeping import QUIET, Phase, latencies_ms, sweep_figures, walk
from bench.world import World
from roskva.config import Settings
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.frame import Progress, Request, Swept, task_of
from roskva.protocol.messages import Grant, Notify, ServerMessage, StartAnew, Status
from roskva.table import COMPLETE, open_manifest

SMALL = World(60, 5, 5, prefix="filled")


def test_informed_over_time_begins_with_the_first_and_ends_with_the_last() -> None:
    times_s = [float(number) for number in range(1_000, 0, -1)]
    points = over_time(times_s, points=10)
    assert points[0] == [1.0, 1]
    assert points[-1] == [1_000.0, 1_000]
    assert all(seconds == count for seconds, count in points)
    assert over_time([]) == []
    assert over_time([2.0]) == [[2.0, 1]]


def test_every_client_registered_one_of_the_chosen_objects() -> None:
    names_of = World(1_000, 5, 5).names_of()
    for clients in (range(1_000), range(0, 1_000, HOLDING_BACK)):
        chosen = set(one_object_each(names_of, clients))
        assert all(chosen & set(names_of(client)) for client in clients)
        assert len(chosen) <= len(clients)


def test_cost_above_steady_state_counts_the_new_gateway_whole_and_the_dead_one_not() -> None:
    steady = Usage.between(
        Snapshot(0.0, {(1, GATEWAY): 5.0, (2, JVM): 1.0, (9, GENERATOR): 0.0}, 10.0),
        Snapshot(10.0, {(1, GATEWAY): 6.0, (2, JVM): 1.5, (9, GENERATOR): 0.2}, 12.0),
    )
    assert steady.rounded() == {"gateway": 1.0, "pipeline": 0.5, "supervisor": 0.0, "load generator": 0.2, OTHERS: 0.3}
    loss = Usage.between(
        Snapshot(10.0, {(1, GATEWAY): 6.0, (2, JVM): 1.5, (9, GENERATOR): 0.2}, 12.0),
        Snapshot(15.0, {(3, GATEWAY): 4.0, (2, JVM): 2.0, (9, GENERATOR): 3.2}, 20.0),
    )
    assert loss.above(steady) == {"gateway": 3.5, "pipeline": 0.25, "supervisor": 0.0, "load generator": 2.9, OTHERS: 0.35}


class _Transport:
    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []

    def send(self, kind: object, data: bytes) -> None:
        self.sent.append(json.loads(data))

    def disconnect(self, graceful: bool = True) -> None: ...


async def _connected() -> tuple[ReturningFleet, ReturningClient, _Transport]:
    """A client with one registration that the server has confirmed, and the end of its connection."""
    fleet, transport = ReturningFleet("http://127.0.0.1:1"), _Transport()
    client = ReturningClient(fleet, 0, "device", ["a"])
    fleet.clients.append(client)
    client.on_ws_connected(cast(WSTransport, transport))
    init = cast(dict[str, str], transport.sent[-1]["init"])
    client.received(ServerMessage(token="t", grant=Grant(nonce=init["nonce"], token="t")))
    client.received(_in_sync(client))
    return fleet, client, transport


def _in_sync(client: ReturningClient, **what: object) -> ServerMessage:
    """The server has what the client wishes for, and says so."""
    return ServerMessage(token="t", summary=client._core.desired.summary(), **what)  # type: ignore[arg-type]


async def test_a_client_is_informed_when_it_is_in_sync_and_was_told_what_it_must_hear() -> None:
    fleet, client, transport = await _connected()
    assert transport.sent[-1]["register"]  # not answered: not in sync
    assert not fleet.event.informed_s
    client.received(_registered(client))
    assert len(fleet.event.informed_s) == 1
    event = fleet.begin_event()
    client.to_hear[b"a"] = 8
    client.received(_in_sync(client, notify=[Notify(object="a", seqno="4294967297", version="7")]))
    assert not event.informed_s  # an older version than it must hear of
    client.received(_in_sync(client, notify=[Notify(object="a", seqno="4294967297", version="8")]))
    assert len(event.informed_s) == 1
    assert transport.sent[-1]["acks"] == [{"object": "a", "seqno": "4294967297", "version": "8"}]
    assert event.counts["told a version"] == 2
    await fleet.close()


def _registered(client: ReturningClient) -> ServerMessage:
    return _in_sync(client, status=[Status(object="a", state="registered")])


async def test_a_client_that_holds_back_acknowledges_when_it_is_told_again() -> None:
    fleet, client, transport = await _connected()
    client.received(_registered(client))
    client.held = []
    told = [Notify(object="a", seqno="4294967297", version="7")]
    sent = len(transport.sent)
    client.received(_in_sync(client, notify=told, unsettled=1))
    assert len(transport.sent) == sent
    event = fleet.begin_event()
    client.give_back()
    assert client.to_hear == {b"a": 7}
    client.received(_in_sync(client, notify=told, unsettled=1))
    assert transport.sent[-1]["acks"]
    assert not event.informed_s  # the server has not said that it has the acknowledgement
    client.received(_in_sync(client))
    assert len(event.informed_s) == 1
    await fleet.close()


async def test_a_lost_client_comes_back_by_itself_and_what_it_met_is_counted() -> None:
    fleet, client, transport = await _connected()
    event = fleet.begin_event()
    client.received(ServerMessage(token="t", start_anew=StartAnew(code="token-elsewhere", keep=True)))
    assert cast(dict[str, str], transport.sent[-1]["init"])["prior"] == "t"
    assert event.counts["told to start anew: token-elsewhere"] == 1
    client.on_ws_disconnected(cast(WSTransport, transport))
    deadline_s = time.monotonic() + 10.0
    while not event.counts["connection failed: ConnectionRefusedError"] and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)  # nobody listens at port 1
    assert event.counts["connection failed: ConnectionRefusedError"]
    with pytest.raises(BenchFailed, match="1 clients were not informed"):
        await fleet.informed(0.05)
    await fleet.close()


def test_who_registered_an_object_is_who_the_clients_say() -> None:
    population = Population(SMALL)
    forth = {(client, number, seqno) for client in range(60) for number, seqno in population.registered_by(client)}
    back = {(client, number, seqno) for number in range(population.objects) for client, seqno in population.registered_for(number)}
    assert forth == back
    assert len(forth) == 60 * 5


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Filled]:
    data = tmp_path_factory.mktemp("filled") / "data"
    return data, fill(data, SMALL, time.time())


def _swept(data: Path, sweep: str) -> Swept:
    connected = Connections(Settings(data=data))
    task = task_of(sweep)(connected, Request(sweep, int(time.time() * 1000), dry_run=True), Progress())
    total = Swept()
    for partition in range(4):
        total.add(task.run(partition))
    return total


def test_filled_tables_are_partitions_of_the_manifest_in_which_sweeps_find_nothing_to_do(filled: tuple[Path, Filled]) -> None:
    data, found = filled
    assert (found.clients, found.objects, found.cells) == (60, 60, 60 * 13 + 60 * 6)
    records = open_manifest(Settings(data=data)).snapshot().records
    assert {record.state for address, record in records.items() if address.kind == "table"} == {COMPLETE}
    compared = _swept(data, "compare")
    assert (compared.looked_at, compared.proposed, compared.left) == (120, 0, 0)
    assert compared.counts == {"compared": 300, "copies": 300}
    collected = _swept(data, "collect")
    assert (collected.looked_at, collected.proposed) == (60, 0)
    assert _swept(data, "zombies").proposed == 0
    told = walk(data)
    assert (told["rows"], told["proposed"]) == (60, 300)


def test_a_copy_that_is_missing_from_a_filled_table_is_found(tmp_path: Path) -> None:
    fill(tmp_path / "data", SMALL, time.time())
    path = next((tmp_path / "data" / "table").glob("matcher-0.*.db"))
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM cells WHERE row = (SELECT min(row) FROM cells)")
    connection.close()
    assert _swept(tmp_path / "data", "compare").counts["missing"] == 5


def test_a_notification_belongs_to_the_sweep_that_ran_when_it_was_published() -> None:
    heard = Heard()
    for version, received_s in ((1, 1.5), (2, 11.0), (3, 13.0), (4, 99.0)):
        heard.versions.append(version)
        heard.received_s.append(received_s)
    published_s = [0.0, 1.0, 9.0, 12.0, 50.0]
    phases = [Phase(QUIET, 0.0, 5.0), Phase("compare", 8.0, 10.0), Phase(QUIET, 11.0, 20.0)]
    assert latencies_ms(heard, published_s, phases) == {QUIET: [500.0, 1_000.0], "compare": [2_000.0]}


def test_a_sweeps_line_tells_rows_per_second_and_ratios(tmp_path: Path) -> None:
    phase = Phase("compare", 100.0, 110.0, Swept(looked_at=1_000), 5.0, {WORKERS: 9.0})
    quiet_ms = {"p50": 100.0, "p99": 200.0}
    line = sweep_figures(phase, [150.0, 150.0, 150.0, 500.0], quiet_ms, {WORKERS: 0.1})
    assert (line["rows_per_s"], line["p50_ratio"], line["p99_ratio"]) == (200.0, 1.5, 2.5)
    assert line["cpu_s_above_quiet"] == {WORKERS: 8.0}
    sweeping = Result("sweeping", {"load": "x"}, "none", {"sweeps": [line]}, [])
    assert b"<svg" in draw(sweeping.document(), tmp_path).read_bytes()
    loss = {"informed_over_time": [[1.0, 1]], "connected_over_time": []}
    failover = Result("failover", {"load": "x"}, "none", {"kill": loss, "drop": loss}, [Aim("informed", "s", 15.0, 1.0)])
    assert b"<svg" in draw(failover.document(), tmp_path).read_bytes()


def test_of_several_gateways_each_is_named_and_all_are_summed() -> None:
    names = {1: "gateway-1", 2: "gateway-2"}
    used = Snapshot(0.0, {(1, GATEWAY): 5.0, (2, GATEWAY): 1.0}, 10.0, names).until(
        Snapshot(9.0, {(1, GATEWAY): 6.0, (2, GATEWAY): 3.5}, 14.0, names)
    )
    assert used == {"gateway": 3.5, "gateway-1": 1.0, "gateway-2": 2.5, OTHERS: 0.5}
    assert name_in(["python", "-m", "roskva", "gateway", "--name", "gateway-1"]) == "gateway-1"
    assert name_in(["python", "-m", "roskva", "gateway", "--name"]) == ""


def test_samples_are_summed_over_gateways() -> None:
    lines = ("# TYPE a gauge", 'a{gateway="x"} 1.0', 'a{gateway="y"} 2.0', 'b{gateway="x",way="sent"} 3.0', "c 4.0")
    assert summed_samples("\n".join(lines)) == {"a": 3.0, 'b{way="sent"}': 3.0, "c": 4.0}
