"""What `security` counts, and one small run of it against a real service. No times are asserted."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import hostile, security
from bench.__main__ import main
from bench.accounting import ATTACKER, GATEWAY, _role
from bench.guarded import Guarded
from bench.plots import draw
from bench.report import Result
from bench.service import free_port
from bench.telling import OBJECTS, Registry
from roskva.config import load


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    found = Guarded(tmp_path, free_port())
    found.write()
    return found


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, theirs = socket.socketpair()
    mine.settimeout(5.0)
    with mine, theirs:
        yield mine, theirs


def test_the_settings_file_says_what_the_registrar_of_this_process_is_given(guarded: Guarded, tmp_path: Path) -> None:
    applications = load(tmp_path / "roskva.toml", {}, {}).applications
    assert applications == {guard.kind.application: guard.settings for guard in guarded.guards}


def test_costs_are_summed_over_turns_and_compared_with_who_asks_nothing(guarded: Guarded) -> None:
    def turn(guard: int, cpu_s: float) -> dict[str, float]:
        return {"guard": guard, "handshakes": 500, "handshakes_s": cpu_s, "registrations": 1_000, "registrations_s": 2 * cpu_s}

    joined = [turn(0, 0.1), turn(1, 0.2), turn(2, 0.4), turn(2, 0.4), turn(1, 0.2), turn(0, 0.1)]
    told = [{"guard": guard, "notifications": 2_000, "notifications_s": 0.1} for guard in range(3)]
    asks_nothing, by_jwt, webhook = security.costs(guarded.guards, joined, told)
    assert asks_nothing["handshakes_cpu_ms_per_1000"] == 200.0
    assert (by_jwt["handshakes_ratio"], webhook["handshakes_ratio"]) == (2.0, 4.0)
    assert (by_jwt["registrations_cpu_ms_per_1000"], by_jwt["notifications_ratio"]) == (400.0, 1.0)


def test_who_is_granted_was_not_refused() -> None:
    found = security.refusal("x", {"rate-limited": 900, "credential-refused": 50, "granted": 7}, 0.5)
    assert (found["refused"], found["granted"], found["refused_per_cpu_s"]) == (950, 7, 1_900.0)
    assert security.refusal("x", {}, 0.0)["refused_per_cpu_s"] == 0.0


def test_refusals_are_told_by_limit_and_code() -> None:
    counted = {
        'roskva_limited_total{limit="messages_per_s_max"}': 5.0,
        'roskva_limited_total{limit="connections_max"}': 0.0,
        'roskva_refused_total{reason="origin-refused"}': 2.0,
        "roskva_connections_refused_total": 3.0,
        "roskva_publish_requests_total": 9.0,
    }
    assert security.refused_in(counted) == {"messages_per_s_max": 5, "origin-refused": 2, "connections refused": 3}


def test_every_attack_is_compared_with_quiet_before_and_after(tmp_path: Path) -> None:
    quiet = {"attack": "quiet", "latencies_ms": [100.0] * 5, "delivered": 5, "attacker": {}}
    attack = {"attack": "x", "latencies_ms": [150.0] * 9 + [800.0], "delivered": 10, "attacker": {"frames": 3}}
    later = {"attack": "quiet", "latencies_ms": [200.0] * 4, "delivered": 4, "attacker": {}}
    figures = {"attacks": security.compared([quiet, attack, later])}
    in_quiet, attacked = figures["attacks"]
    assert (in_quiet["p50_ms"], in_quiet["p99_ms"], in_quiet["delivered"], in_quiet["p50_ms_each"]) == (100.0, 200.0, 9, [100.0, 200.0])
    assert (attacked["p50_ratio"], attacked["p99_ratio"], attacked["attacker"]) == (1.5, 4.0, {"frames": 3})
    assert b"<svg" in draw(Result("security", {"load": "x"}, "none", figures, []).document(), tmp_path).read_bytes()


def test_an_attacker_is_told_apart_from_the_service() -> None:
    assert _role(["/usr/bin/python", "-m", "bench.hostile", "slow", "127.0.0.1:1", "1"]) == ATTACKER
    assert _role(["/usr/bin/python", "-m", "roskva", "gateway"]) == GATEWAY
    assert set(security.ATTACKS) == set(hostile.ATTACKS)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_say_how_long_they_are(size: int, wire: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = wire
    made = hostile.frame(b"x" * size)
    assert made[1] & 0x80, "clients mask"
    # As a server would send it: without a mask.
    head = made[: len(made) - size - 4]
    sending = threading.Thread(target=theirs.sendall, args=(bytes([head[0], head[1] & 0x7F]) + head[2:] + b"x" * size,))
    sending.start()
    assert hostile.read_frame(mine) == (0x81, b"x" * size)
    sending.join()


def test_whoever_is_closed_notices_and_whoever_hears_nothing_does_not_wait(wire: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = wire
    hostile.drain(mine)
    theirs.sendall(b"\x88\x00")
    with pytest.raises(ConnectionError):
        hostile.read_frame(mine)
    theirs.close()
    with pytest.raises(ConnectionError):
        hostile.drain(mine)


async def test_a_registrar_of_this_process_tells_clients_of_all_three(guarded: Guarded) -> None:
    async with guarded.answering() as asked, Registry.open(guarded.guards, clients=3) as registry:
        assert asked() == 3
        for guard in guarded.guards:
            count, cpu_s = await registry.tell(guard.kind.application, calls=2)
            assert count == 2 * 3 * OBJECTS
            assert cpu_s > 0
        assert asked() == 3, "what was answered counts for a while"


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_security_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["security", "--seconds", "0.5", "--clients", "10", "--json", "--results", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]
    assert all(row["handshakes_cpu_ms_per_1000"] >= 0 and row["notifications_cpu_ms_per_1000"] > 0 for row in figures["asking"])
    by_kind = {row["what"]: row["codes"] for row in figures["refused"]}
    assert set(by_kind["no credential"]) == {"credential-required"}
    assert set(by_kind["a forged credential"]) == {"credential-refused"}
    assert by_kind["a million, above the limit of their address"]["rate-limited"] > 0
    attacks = {row["attack"]: row for row in figures["attacks"]}
    assert set(attacks) == {security.QUIET, *security.ATTACKS.values()}
    assert all(0 < row["delivered"] <= row["expected"] and not row["lost_connections"] for row in attacks.values())  # some collapse
    forged = attacks[security.ATTACKS["handshakes"]]  # how many come in so short a time is the machine's; whether the limit is reached, too
    assert forged["attacker"]["connections"] >= hostile.HANDSHAKING_CONNECTIONS
    codes = {name.removeprefix("handshakes: ") for name in forged["attacker"] if name.startswith("handshakes: ")}
    assert codes <= {"credential-refused", "rate-limited"}
    assert sum(forged["refused_by_the_gateway"].values()) > 0
    assert attacks[security.ATTACKS["messages"]]["attacker"]["messages"] > 0
    assert attacks[security.ATTACKS["oversized"]]["attacker"]["frames"] > 0
    assert attacks[security.ATTACKS["slow"]]["attacker"]["connections"] >= hostile.SLOW_CONNECTIONS
    assert (tmp_path / "security.svg").exists()
