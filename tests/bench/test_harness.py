"""The measuring tools themselves, without a service: what they count, and that they cannot flatter it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from picows import WSFrame, WSMsgType, WSTransport

from bench import __main__ as command
from bench import accounting, latency
from bench.__main__ import CAPTURE, NAMES, SHORTER, _parser, chosen, form_of, shortened
from bench.burst import burst_figures
from bench.clients import Heard, LeanClient
from bench.load import Publishers
from bench.plots import draw
from bench.report import Aim, Result, module_of, percentiles
from bench.service import BenchFailed, Service
from bench.throughput import learning_times_ms
from bench.world import Options, World


@pytest.mark.parametrize(("clients", "registrations", "fan_out"), [(1_000, 5, 5), (1_000, 10, 1), (200, 5, 5), (40, 5, 5)])
def test_every_object_has_exactly_its_fan_out_of_different_clients(clients: int, registrations: int, fan_out: int) -> None:
    world = World(clients, registrations, fan_out)
    names_of = world.names_of()
    wished = [names_of(client) for client in range(clients)]
    assert all(len(set(names)) == registrations for names in wished)
    assert set(Counter(name for names in wished for name in names).values()) == {fan_out}
    assert len(world.objects) == clients * registrations // fan_out


def test_percentiles_are_of_the_values_and_never_beyond_them() -> None:
    assert percentiles([]) == {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
    assert percentiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0, "max": 7.0}
    assert percentiles([float(value) for value in range(1_000, 0, -1)]) == {"p50": 501.0, "p95": 951.0, "p99": 991.0, "max": 1_000.0}


def test_a_ratio_above_one_is_better_than_the_aim_whichever_way_is_better() -> None:
    assert Aim("latency", "ms", 100.0, 50.0).ratio == 2.0
    assert Aim("latency", "ms", 100.0, 50.0).met
    assert Aim("rate", "/s", 100.0, 50.0, larger_is_better=True).ratio == 0.5
    assert not Aim("rate", "/s", 100.0, 50.0, larger_is_better=True).met


def test_an_aim_is_missed_where_the_service_did_not_keep_up_however_fast_the_rest_came() -> None:
    aim = Aim("latency", "ms", 100.0, 50.0, kept_up=False)
    assert (aim.met, aim.ratio) == (False, 0.0)
    assert "missed, since it did not keep up" in Result("x", {}, "none", {}, [aim]).table()
    result = Result("x", {"publishes": "x"}, "none", {"kept_up": False, "publish_to_client_ms": {"p50": 1.0, "p99": 2.0}}, [])
    assert [one.met for one in latency._aims(result, "", 3.0, 20.0)] == [False, False]


def test_only_what_was_accepted_of_a_burst_is_worked_off_and_a_refusal_fails_it() -> None:
    backlog = [{"s": 1.0, "updates": 900.0}, {"s": 4.0, "updates": 0.0}]
    figures = burst_figures(2_500, {"accepted": 2_000, "refused": 0, "seconds": 1.0}, 1.0, backlog)
    assert (figures["worked_off_per_s"], figures["largest_backlog"]) == (500.0, 900.0)
    with pytest.raises(BenchFailed, match="1,000 of 2,500 updates"):
        burst_figures(2_500, {"accepted": 1_000, "refused": 1_000, "seconds": 1.0}, 1.0, backlog)


def test_cpu_of_a_run_is_found_by_its_name_and_told_apart_by_role() -> None:
    run = f"test-{os.getpid()}"
    before = accounting.snapshot(run)
    busy = "import time; end = time.time() + 1.0\nwhile time.time() < end: pass\ntime.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", busy], env={**os.environ, accounting.RUN_VARIABLE: run})
    try:
        time.sleep(1.5)
        used = before.until(accounting.snapshot(run))
        assert used[accounting.SUPERVISOR] > 0.1
        assert accounting.GENERATOR in used
        assert accounting.memory_kib(child.pid) > 1_000
    finally:
        child.kill()
        child.wait()
    assert accounting.processes(run) == {}


class _Gateway(asyncio.Protocol):
    """Answers publishes after a while, all or none of them."""

    def __init__(self, delay_s: float, status: str, asked: Counter[int]) -> None:
        self._delay_s = delay_s
        self._status = status
        self._asked = asked

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        self._asked[id(self)] += 1
        answer = f'HTTP/1.1 {self._status}\r\nContent-Length: 25\r\n\r\n{{"results":[{{"ok":true}}]}}'.encode()
        asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, answer)


async def _publish(delay_s: float, status: str = "200 OK", connections: int = 1, asked: Counter[int] | None = None) -> Publishers:
    counts = Counter[int]() if asked is None else asked
    server = await asyncio.get_running_loop().create_server(lambda: _Gateway(delay_s, status, counts), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with Publishers(f"http://127.0.0.1:{port}", ["a", "b", "c"], connections) as publishers:
            await publishers.paced(100.0, 0.2)
            await publishers.drained(10.0)
    return publishers


async def test_a_slow_service_is_timed_from_when_each_publish_was_due() -> None:
    publishers = await _publish(delay_s=0.05)
    assert publishers.accepted == 20
    # 20 publishes, due every 10 ms, over one connection that takes 50 ms for each: the last waits for all before it.
    assert max(publishers.answers_ms) > 20 * 50 - 200 - 50
    due_s = publishers.published_s[1:]
    assert due_s[-1] - due_s[0] == pytest.approx(0.19, abs=0.001)


async def test_publishes_that_are_refused_or_lost_are_not_counted_as_accepted() -> None:
    publishers = await _publish(delay_s=0.0, status="503 Service Unavailable", connections=4)
    assert (publishers.accepted, publishers.refused) == (0, 20)


async def test_connections_take_turns_so_that_none_is_closed_for_being_idle() -> None:
    asked = Counter[int]()
    publishers = await _publish(delay_s=0.0, connections=4, asked=asked)
    assert list(asked.values()) == [5, 5, 5, 5]
    assert publishers.connections_lost == 0


async def test_objects_take_turns_and_versions_are_running_numbers() -> None:
    publishers = await _publish(delay_s=0.0, connections=8)
    assert publishers.last_version == 20
    assert [publishers.object_of(version) for version in (1, 2, 3, 4)] == ["b", "c", "a", "b"]


class _Frame:
    def __init__(self, message: Mapping[str, object]) -> None:
        self.msg_type = WSMsgType.TEXT
        self._data = json.dumps(message).encode()

    def get_payload_as_memoryview(self) -> memoryview:
        return memoryview(self._data)


class _Transport:
    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []

    def send(self, kind: object, data: bytes) -> None:
        self.sent.append(json.loads(data))


def _hears(client: LeanClient, transport: _Transport, message: Mapping[str, object]) -> None:
    """picows makes its frames and transports only for a connection; these stand for them, with what the client uses of both."""
    client.on_ws_frame(cast(WSTransport, transport), cast(WSFrame, _Frame(message)))


def test_a_lean_client_acknowledges_what_it_is_told_and_counts_each_version_once() -> None:
    heard, transport = Heard(), _Transport()
    client = LeanClient("device", ["a"], heard)
    client._acks = b'{"token":"t","acks":'
    told = [{"object": "a", "seqno": "4294967297", "version": "7"}]
    for message in ({"time_ms": 5, "notify": told}, {"time_ms": 6, "notify": told}):
        _hears(client, transport, message)
    assert transport.sent == [{"token": "t", "acks": told}] * 2
    assert (list(heard.versions), list(heard.sent_ms), heard.repeated) == ([7], [5], 1)
    _hears(client, transport, {"notify": [{"object": "a", "seqno": "4294967297"}]})
    assert (heard.unknown, client.known) == (1, {"a": 7})


async def test_a_lean_client_that_is_refused_says_why() -> None:
    client, transport = LeanClient("device", ["a"], Heard()), _Transport()
    client.on_ws_connected(cast(WSTransport, transport))
    asking = asyncio.ensure_future(client.register())
    await asyncio.sleep(0)
    _hears(client, transport, {"error": {"code": "token-invalid"}})
    with pytest.raises(BenchFailed, match="token-invalid"):
        await asking


def test_the_time_of_a_collapsed_update_counts_until_what_overtook_it_arrived() -> None:
    heard = Heard()
    # Two objects, versions 1 to 6 in turns, one a second. One client had version 1, and of 3 and 5 heard only 5, at second 10.
    heard.versions.append(5)
    heard.before.append(1)
    heard.received_s.append(10.0)
    published_s = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert learning_times_ms(heard, published_s, objects=2, first=2) == [5_000.0, 7_000.0]
    assert learning_times_ms(heard, published_s, objects=2, first=4) == [5_000.0]  # 3 was published before this step


@pytest.mark.parametrize("name", [*NAMES, *CAPTURE])
def test_the_command_line_knows_every_measurement(name: str) -> None:
    assert _parser().parse_args([name, "--json", "--seconds", "1"]).names == [name]


def test_all_is_without_those_of_capture_which_have_a_word_of_their_own() -> None:
    assert chosen(["all"]) == NAMES
    assert chosen(["capture-lag", "capture", "latency"]) == ("capture-lag", *(name for name in CAPTURE if name != "capture-lag"), "latency")
    assert not set(NAMES) & set(CAPTURE)
    assert (module_of("figure8"), module_of("capture-lag")) == ("bench.figure8", "bench.capture.lag")


def test_a_result_is_written_with_its_conditions_and_drawn(tmp_path: Path) -> None:
    rounds = [{"notifications": 5, "caught_up_ms": 12.0, "handshake_ms": 3.0}]
    result = Result("missed", {"load": "x"}, "none", {"rounds": rounds}, [Aim("told", "", 5.0, 5.0)], {"gateway": 0.5}, 2.0)
    document = json.loads(result.write(tmp_path).read_text())
    assert document["aims"][0]["met"]
    assert document["machine"]["cores"] == os.cpu_count()
    assert document["machine"]["packages"]["pyspark"] != "none"
    assert document["machine"]["python_loop_ms"] > 0
    assert document["machine"]["commit"]
    assert b"<svg" in draw(document, tmp_path).read_bytes()
    assert "CPU seconds in 2 s: gateway 0.5" in result.table()


def test_all_makes_some_smaller_but_for_what_was_asked_for() -> None:
    assert shortened("failover", Options()) == Options(**SHORTER["failover"])
    asked = Options(clients=7, settings={"settling_s": "3", "partitions": "2"})
    assert shortened("failover", asked) == asked
    assert shortened("publish", asked) == asked
    assert set(SHORTER) <= set(NAMES)


def test_the_form_of_a_measurement_is_what_was_chosen_otherwise() -> None:
    assert form_of(Options()) == ""
    assert form_of(Options(8.0, 30_000, None, {"settling_s": "20"})) == "30,000 clients, 8 s, settling_s = 20"
    assert form_of(shortened("publish", Options())) == "", "what `all` leaves as it is, is in full size"


def test_a_smaller_form_is_kept_beside_the_full_size_and_never_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "SMALLER", tmp_path / "smaller")
    monkeypatch.setattr(command, "draw", lambda document, folder: written.append(f"{folder.relative_to(tmp_path)}: {document['form']}"))
    monkeypatch.setattr(command, "measure", lambda name, options: Result(name, {}, "none", {}, []))
    monkeypatch.setattr(command, "NAMES", ("latency",))
    monkeypatch.setattr(command, "GROUPS", {"all": ("latency",), "capture": ()})
    monkeypatch.setattr("bench.document.write", lambda: written.append("tables"))
    for asked in (["latency"], ["all"], ["all", "--full"], ["latency", "--clients", "7"]):
        assert command.main(asked) == 0
    of_all = ["smaller: 12 s", "tables", "tables"]  # and how long all took together
    assert written == [".: ", "tables", *of_all, ".: ", "tables", "smaller: 7 clients", "tables"]
    assert json.loads((tmp_path / "smaller" / "all.json").read_text())["figures"]["took_s"].keys() == {"latency"}
    assert json.loads((tmp_path / "latency.json").read_text())["form"] == ""
    written.clear()
    assert command.main(["latency", "--clients", "7", "--results", str(tmp_path / "elsewhere")]) == 0
    assert written == ["elsewhere: 7 clients"], "where it was asked for, and in no table"


def test_samples_of_several_gateways_are_added_up_and_a_maximum_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'# HELP x y\nlongest_ms{gateway="a"} 52\nlongest_ms{gateway="b"} 71\nsent{way="x",gateway="a"} 3\nsent{way="x",gateway="b"} 4\n'
    monkeypatch.setattr(Service, "get", lambda self, path: text)
    service = Service("run", "", Path(), cast("subprocess.Popen[bytes]", None), {}, "", Path())
    assert service.largest("longest_ms") == 71.0
    assert service.largest("none") == 0.0
    assert service.metrics()["longest_ms"] == 123.0
    assert next(value for name, value in service.metrics().items() if name.startswith("sent")) == 7.0
