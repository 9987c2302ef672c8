"""The measured part of docs/peers.md: what other services do under the load of `latency` and `throughput`, beside our kept results.

The others were measured once, each by itself: 1,000 clients with 5 of 1,000 channels each, about 100 bytes a message, publisher, clients
and server on the same two cores. Ours are what bench/results has, each with its name and date; nothing is chosen among runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_PEERS: Final = (
    "Centrifugo 6.9.1, memory",
    "the same, cache recovery mode",
    "nchan (nginx)",
    "NATS core",
    "NATS KV, fsync before it acknowledges",
)
_ROWS: Final = (
    ("200 publishes/s: p50 / p95 / p99, ms",
     "0.46 / 0.66 / 0.82", "0.60 / 0.96 / 11.9", "0.34 / 0.72 / 1.46", "0.46 / 0.79 / 2.16", "1.45 / 5.85 / 57"),
    ("2,000 single publishes/s: p50 / p95 (ours: p99), ms",
     "0.49 / 1.0", "0.56 / 1.2", "0.44 / 2.25", "0.46 / 1.47", "overload at 1,159/s"),
    ("highest deliveries/s, single publishes (batches of 50)", "41,000 (97,000)", "46,000 (107,000)", "51,000", "not measured", "6,700"),
    ("server CPU seconds of 10,000 deliveries, at 10,000/s", "0.46", "0.54", "0.23", "0.34", "1.18"),
    ("KiB per idle connection with 5 subscriptions, at 10,000", "44", "49", "12", "44", "139"),
)  # fmt: skip
_BUSY_PER_S: Final = 10_000.0  # deliveries
_NONE: Final = ("not measured in full size", "-")


def table(kept: Mapping[str, Mapping[str, Any]]) -> str:
    """`kept`: the results in full size, by name."""
    ours = (_quiet(kept), _busy(kept), _highest(kept), _cpu(kept), _memory(kept))
    head = [f"| | {' | '.join(_PEERS)} | Roskva | of which result |", "|---" * (len(_PEERS) + 3) + "|"]
    return "\n".join([*head, *(f"| {' | '.join((*row, *found))} |" for row, found in zip(_ROWS, ours, strict=True))])


def _quiet(kept: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    if "latency" not in kept:
        return _NONE
    times = kept["latency"]["figures"]["publish_to_client_ms"]
    return f"{times['p50']:.1f} / {times['p95']:.1f} / {times['p99']:.1f}", _source(kept["latency"])


def _busy(kept: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """As the others, in single publishes; and what requests of ten make of it."""
    if "throughput" not in kept:
        return _NONE
    single, calls = (_single(kept["throughput"], way) for way in (_WAYS[0], _WAYS[2]))
    told, source = f"{single}; {calls} in calls of its library", _source(kept["throughput"], _registrations(kept["throughput"]))
    busy = kept.get("latency", {}).get("figures", {}).get("at_10,000_deliveries_per_s")
    if not busy:
        return told, source
    times = busy["publish_to_client_ms"]
    together = f"p50 {times['p50']:.1f} / p95 {times['p95']:.1f} in requests of ten" + (
        "" if busy["kept_up"] else ", which it did not keep up with"
    )
    return f"{told}; {together}", f"{source}; {_source(kept['latency'])}"


def _single(throughput: Mapping[str, Any], way: str) -> str:
    steps = throughput["figures"]["fan_outs"][f"5, {way}"]["steps"]
    step = next((one for one in steps if one["offered_per_s"] == _BUSY_PER_S), None)
    return f"{step['p50_ms']:.0f} / {step['p99_ms']:.0f}" if step else "not reached"


def _highest(kept: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    if "throughput" not in kept:
        return _NONE
    fans = kept["throughput"]["figures"]["fan_outs"]
    single, batches, calls = (f"{fans[f'5, {way}']['highest_per_s']:,.0f}" for way in _WAYS)
    return f"{single} ({batches}); {calls} in calls of its library", _source(kept["throughput"], _registrations(kept["throughput"]))


def _cpu(kept: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    if "throughput" not in kept:
        return _NONE
    costs = kept["throughput"]["figures"]["cpu_s_per_10_000_deliveries_at_10_000_per_s"]
    single, batches, calls = (f"{costs[f'5, {way}']['service']:.2f}" if f"5, {way}" in costs else "not reached" for way in _WAYS)
    return f"{single} ({batches} in batches of 50, {calls} in calls of its library), Spark included", _source(
        kept["throughput"], _registrations(kept["throughput"])
    )


def _memory(kept: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    if "idle" not in kept:
        return _NONE
    return f"{kept['idle']['figures']['kib_per_client']:.1f}, the kernel's part not counted", _source(kept["idle"])


_WAYS: Final = ("single publishes", "batches of 50", "single calls of the Publisher")


def _registrations(throughput: Mapping[str, Any]) -> str:
    """Who hears more is told more in one message: the others' clients had five channels."""
    return f", {throughput['settings']['registrations_per_client']['5, single publishes']} registrations for each client"


def _source(result: Mapping[str, Any], load: str = "") -> str:
    return f"`{result['name']}`, {result['measured_at'][:16]}{load}"
