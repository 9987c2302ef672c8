"""One plot per measurement, as SVG beside its JSON. Imports matplotlib only when asked to draw."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.report import RESULTS, module_of

_BLUE: Final = "#2a6f97"
_RED: Final = "#b23a48"
_GREY: Final = "#8d99ae"
BLUE, RED, GREY = _BLUE, _RED, _GREY  # for bench/capture, whose measurements draw themselves


def draw(document: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Draw what this measurement has to show; the document is that of its JSON."""
    import matplotlib

    matplotlib.use("Agg")
    # The same figures give the same file: no date, no random ids.
    matplotlib.rcParams["svg.hashsalt"] = "roskva"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    _drawing(document["name"])(axes, document)
    axes.spines[["top", "right"]].set_visible(False)
    path = folder / f"{document['name']}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def _drawing(name: str) -> Callable[[Any, dict[str, Any]], None]:
    """Those of bench/capture are in the measurement's own module."""
    if name in _DRAWINGS:
        return _DRAWINGS[name]
    drawing: Callable[[Any, dict[str, Any]], None] = importlib.import_module(module_of(name)).draw
    return drawing


def _latency(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    steps = figures["distribution_ms"]
    axes.plot(steps, [index / (len(steps) - 1) * 100 for index in range(len(steps))], color=_BLUE)
    for aim in document["aims"]:
        part = int(aim["what"].rpartition("p")[2])
        axes.plot([aim["aim"]], [part], marker="x", color=_RED)
        axes.annotate(f"aim p{part}", (aim["aim"], part), textcoords="offset points", xytext=(6, -10), color=_RED)
    axes.set(xlabel="publish to client, ms", ylabel="% of notifications", xlim=(0, max(300, steps[-2] * 1.1)))
    busy = figures.get("at_10,000_deliveries_per_s")
    if busy and busy["distribution_ms"]:
        steps = busy["distribution_ms"]
        parts = [index / (len(steps) - 1) * 100 for index in range(len(steps))]
        axes.plot(steps, parts, color=_BLUE, linestyle=":", label="at 10,000 deliveries/s")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_title(f"latency: {document['settings']['load']}", fontsize=10)


def _throughput(axes: Any, document: dict[str, Any]) -> None:
    for (name, fan), colour in zip(document["figures"]["fan_outs"].items(), (_BLUE, _RED, _GREY), strict=False):
        steps = sorted(fan["steps"], key=lambda step: float(step["offered_per_s"]))
        points = [(step["delivered_per_s"], step["p99_ms"]) for step in steps]
        axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=f"fan-out {name}")
    axes.axhline(2_000, color=_GREY, linestyle=":")
    axes.set(xlabel="notifications delivered and acknowledged per second", ylabel="p99 publish to client, ms", yscale="log")
    axes.legend(frameon=False)
    axes.set_title("throughput, generator and service on the same cores", fontsize=10)


def _burst(axes: Any, document: dict[str, Any]) -> None:
    burst = document["figures"]["burst"]
    axes.plot([one["s"] for one in burst["backlog"]], [one["updates"] for one in burst["backlog"]], color=_BLUE)
    axes.axvline(burst["published_in_s"], color=_GREY, linestyle=":")
    axes.annotate("all published", (burst["published_in_s"], 0), textcoords="offset points", xytext=(4, 6), color=_GREY)
    axes.set(xlabel="s since the burst began", ylabel="updates that the pipeline has not processed", ylim=(0, None))
    beside = axes.twinx()
    for when, latency in document["figures"]["latency_ms"].items():
        beside.plot([burst["backlog"][-1]["s"]], [latency["p99"]], marker="o", color=_RED)
        beside.annotate(f"{when}: p99", (burst["backlog"][-1]["s"], latency["p99"]), ha="right", xytext=(-6, 0), textcoords="offset points")
    beside.set(ylabel="steady load, p99 publish to client, ms", ylim=(0, None))
    axes.set_title(f"burst: {document['settings']['load']}", fontsize=10)


def _publish(axes: Any, document: dict[str, Any]) -> None:
    runs = document["figures"]["runs"]
    names = [f"{run['publishers']} x batches of {run['batch']}" for run in runs]
    bars = axes.barh(names, [run["publishes_per_s"] for run in runs], color=_BLUE)
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.axvline(20_000, color=_GREY, linestyle=":")
    axes.set(xlabel="durable publishes per second")
    axes.set_title("publish: answered after the fsync", fontsize=10)


def _missed(axes: Any, document: dict[str, Any]) -> None:
    rounds = document["figures"]["rounds"]
    bars = axes.bar([f"return {number}" for number in range(1, len(rounds) + 1)], [one["caught_up_ms"] for one in rounds], color=_BLUE)
    axes.bar_label(bars, [f"{one['notifications']} notifications" for one in rounds], padding=3)
    axes.set(ylabel="ms from connecting to all latest versions")
    axes.set_title(f"missed: {document['settings']['load']}", fontsize=10)


def _idle(axes: Any, document: dict[str, Any]) -> None:
    samples = document["figures"]["memory_samples"]
    axes.plot([one["clients"] for one in samples], [one["gateway_mib"] for one in samples], marker="o", color=_BLUE)
    axes.set(xlabel="idle clients, 5 registrations each", ylabel="resident memory of the gateway, MiB", ylim=(0, None))
    axes.set_title(f"idle: {document['figures']['kib_per_client']:.1f} KiB per client", fontsize=10)


def _failover(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    for name, colour, label in (("kill", _BLUE, "kill -9 of the gateway"), ("drop", _RED, "all state dropped")):
        loss = figures[name]
        axes.step(*_from_nothing(loss["informed_over_time"]), where="post", color=colour, label=f"{label}: informed")
        if loss["connected_over_time"]:
            axes.step(*_from_nothing(loss["connected_over_time"]), where="post", color=colour, linestyle=":", label=f"{label}: connected")
    for aim in document["aims"]:
        axes.axvline(aim["aim"], color=_GREY, linestyle=":")
    axes.set(xlabel="s after the loss (dotted: the aims)", ylabel="clients", xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("failover: clients informed over time, generator and service on the same cores", fontsize=10)


def _from_nothing(points: list[list[float]]) -> tuple[list[float], list[float]]:
    return [0.0, *(point[0] for point in points)], [0.0, *(point[1] for point in points)]


def _sweeping(axes: Any, document: dict[str, Any]) -> None:
    sweeps = document["figures"]["sweeps"]
    names = [one["sweep"] for one in sweeps]
    bars = axes.barh(names, [one["rows_per_s"] for one in sweeps], color=_BLUE)
    labels = [f"{one['rows_per_s']:,.0f} rows/s, latency p50 x {one['p50_ratio']:.2f}, p99 x {one['p99_ratio']:.2f}" for one in sweeps]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set(xlabel="rows per second, beside the running service", xlim=(0, 1.9 * max(one["rows_per_s"] for one in sweeps)))
    axes.set_title(f"sweeping: {document['settings']['load']}", fontsize=10)


def _figure11(axes: Any, document: dict[str, Any]) -> None:
    samples = document["figures"]["samples"]
    at_s = [one["at_s"] for one in samples]
    kinds = {"versions_in_scratch": "objects in scratch", "clients_in_scratch": "clients in scratch", "lag": "in the feed, not done"}
    axes.stackplot(
        at_s, *([one[kind] for one in samples] for kind in kinds), labels=kinds.values(), colors=(_BLUE, _RED, _GREY), step="post"
    )
    for outage in document["figures"]["outages"]:
        axes.axvspan(outage["from_s"], outage["to_s"], color="black", alpha=0.07, linewidth=0)
        axes.annotate(
            f"cannot be written:\n{outage['what']}", (outage["from_s"], 1.0), xycoords=("data", "axes fraction"), va="top", fontsize=7
        )
    most = max(sum(one[kind] for kind in kinds) for one in samples)
    axes.set(xlabel="s", ylabel="buffered", xlim=(0, at_s[-1]), ylim=(0, 1.2 * most + 1))  # room for the words
    axes.legend(frameon=False, fontsize=8, loc="center", bbox_to_anchor=(0.5, 0.7))
    axes.set_title(f"figure11: {document['settings']['load']}", fontsize=9)


def _figure8(axes: Any, document: dict[str, Any]) -> None:
    lines = [one for one in document["figures"]["ways"] if one["samples"]]
    styles = ((_BLUE, "-"), (_BLUE, ":"), (_RED, "-"), (_RED, ":"), (_GREY, "-"))
    for one, (colour, style) in zip(lines, styles, strict=False):
        points = one["distribution_ms"]
        axes.step(
            [point[0] for point in points],
            [100 * point[1] for point in points],
            where="post",
            color=colour,
            linestyle=style,
            label=f"{one['what']} ({one['samples']:,})",
        )
    axes.plot([1_000], [88], marker="x", color="black")
    axes.annotate("the paper: 88 % in 1 s", (1_000, 88), textcoords="offset points", xytext=(-4, -14), ha="right", fontsize=8)
    axes.set(xlabel="ms from the receipt", ylabel="% of notifications", xscale="log", ylim=(0, 101))
    axes.legend(frameon=False, fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    axes.set_title(f"figure8: {document['settings']['load']}", fontsize=8)


def _figure9(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    ways = {"fast_path": "fast path", "pipeline_alone": "pipeline alone"}
    for (way, words), colour in zip(ways.items(), (_BLUE, _RED), strict=True):
        hops = figures[way]
        names = [f"{one['hop']}, {words}" for one in hops]
        bars = axes.barh(names, [100 * one["share"] for one in hops], color=colour)
        axes.bar_label(bars, [f"{one['mean_ms']:,.2f} ms" for one in hops], padding=3, fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="% of the mean from the receipt to the acknowledgement", xlim=(0, 110))
    axes.set_title(f"figure9: {document['settings']['load']}", fontsize=7, loc="right")


def _recovery(axes: Any, document: dict[str, Any]) -> None:
    steps = document["figures"]["steps"]
    clients = [one["clients"] for one in steps]
    axes.plot(clients, [one["gateway_ms"] for one in steps], marker="o", color=_BLUE, label="a gateway, from its start to all found")
    axes.plot(clients, [one["scan_ms"] for one in steps], marker="o", color=_RED, label="the scan itself")
    axes.set(xlabel="clients in the table", ylabel="ms", xscale="log", ylim=(0, None))
    axes.legend(frameon=False)
    axes.set_title("recovery: 1,000 unfinished operations among ever more clients", fontsize=10)


def _reconnect(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    attempts = figures["attempts_per_second"]
    axes.bar(range(len(attempts)), attempts, width=1.0, align="edge", color=_GREY, label="attempts to connect, per second")
    axes.step(*_from_nothing(figures["connected_over_time"]), where="post", color=_BLUE, linestyle=":", label="clients connected")
    axes.step(*_from_nothing(figures["in_sync_over_time"]), where="post", color=_RED, label="clients in sync")
    axes.set(xlabel="s after the gateway was told to stop", ylabel="attempts per second, clients", xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("reconnect: a clean restart of the gateway, generator and service on the same cores", fontsize=10)


def _channels(axes: Any, document: dict[str, Any]) -> None:
    parts = ("p50_ms", "p95_ms", "p99_ms")
    for number, (one, colour) in enumerate(zip(document["figures"]["channels"], (_BLUE, _RED), strict=True)):
        label = f"{one['channel']}: {one['gateway_cpu_ms_per_1000']:,.0f} ms of the gateway's CPU per 1,000 notifications"
        places = [place + 0.4 * number for place in range(len(parts))]
        axes.bar_label(axes.bar(places, [one[part] for part in parts], width=0.4, color=colour, label=label), fmt="{:,.0f}", padding=2)
    axes.set_xticks([place + 0.2 for place in range(len(parts))], [part.removesuffix("_ms") for part in parts])
    most = max(one["p99_ms"] for one in document["figures"]["channels"])
    axes.set(ylabel="publish to client, ms", ylim=(0, 1.35 * most + 1))  # room for the words
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title("channels: the same load over both, in turns", fontsize=10)


def _contacts(axes: Any, document: dict[str, Any]) -> None:
    ways = document["figures"]["ways"]
    for number, (part, colour) in enumerate((("p50", _BLUE), ("p95", _RED))):
        places = [place + 0.4 * number for place in range(len(ways))]
        bars = axes.bar(places, [one[f"stale_{part}_s"] for one in ways], width=0.4, color=colour, label=part)
        axes.bar_label(bars, fmt="{:,.2f}", padding=2, fontsize=8)
    names = [f"{one['way']}:\n{one['backend_reads_per_s']:g} reads/s" for one in ways]
    axes.set_xticks([place + 0.2 for place in range(len(ways))], names)
    most = max(one["stale_p95_s"] for one in ways)
    axes.set(ylabel="s until a change is shown", yscale="log", ylim=(None, 3 * most + 1))  # room for the words
    axes.legend(frameon=False)
    axes.set_title(f"contacts: {document['settings']['load']}", fontsize=9)


def _security(axes: Any, document: dict[str, Any]) -> None:
    attacks = document["figures"]["attacks"]
    for number, (part, colour) in enumerate((("p50", _BLUE), ("p99", _RED))):
        places = [place + 0.4 * number for place in range(len(attacks))]
        bars = axes.barh(places, [one[f"{part}_ratio"] for one in attacks], height=0.4, color=colour, label=part)
        axes.bar_label(bars, [f"{one[f'{part}_ms']:,.0f} ms" for one in attacks], padding=3, fontsize=8)
    axes.set_yticks([place + 0.2 for place in range(len(attacks))], [one["attack"] for one in attacks], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color=_GREY, linestyle=":")
    most = max(one[f"{part}_ratio"] for one in attacks for part in ("p50", "p99"))
    axes.set(xlabel="publish to a good client, times as long as in quiet", xlim=(0, 1.2 * most))  # room for the words
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_title("security: good clients while one attacks, all on the same two cores", fontsize=10)


def _figure6(axes: Any, document: dict[str, Any]) -> None:
    steps, grown = document["figures"]["steps"], document["figures"]["relative_to_the_first"]
    clients = [one["clients"] for one in steps]
    axes.plot(clients, grown["cpu_percent"], marker="o", color=_BLUE, label="CPU of the service")
    axes.plot(clients, grown["messages_in_per_s"], marker=".", color=_GREY, linestyle="--", label="messages of clients")
    axes.plot(clients, grown["service_mib"], marker=".", color=_GREY, linestyle=":", label="memory of the service")
    axes.plot(clients, [count / clients[0] for count in clients], color=_GREY, linewidth=0.5, label="users")
    axes.set(xlabel="active clients, 5 registrations each", ylabel="times as much as at the first", ylim=(0, None))
    _with_latency(axes, clients, steps)
    axes.set_title("figure6: more users; generator and service on the same cores", fontsize=10)


def _figure7(axes: Any, document: dict[str, Any]) -> None:
    steps, grown = document["figures"]["steps"], document["figures"]["relative_to_the_first"]
    delivered = [one["notified_per_s"] for one in steps]
    axes.plot(delivered, grown["cpu_percent"], marker="o", color=_BLUE, label="CPU of the service")
    axes.set(xlabel="notifications delivered and acknowledged per second", ylabel="times as much as at the first", ylim=(0, None))
    _with_latency(axes, delivered, steps)
    axes.set_title(f"figure7: {document['settings']['load']}", fontsize=8)


def _with_latency(axes: Any, along: list[float], steps: list[dict[str, Any]]) -> None:
    """Median latency on an axis of its own, at the right."""
    other = axes.twinx()
    other.plot(along, [one["p50_ms"] for one in steps], marker="x", color=_RED, label="p50, publish to client")
    other.set(ylabel="ms", ylim=(0, 1.5 * max(one["p50_ms"] for one in steps) + 1))
    lines = [*axes.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
    axes.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8, loc="upper left")


def _loss(axes: Any, document: dict[str, Any]) -> None:
    parts = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    for number, (one, colour) in enumerate(zip(document["figures"]["losses"], (_BLUE, _RED), strict=True)):
        places = [place + 0.4 * number for place in range(len(parts))]
        bars = axes.bar(places, [one[part] for part in parts], width=0.4, color=colour, label=f"{one['dropped_percent']:g} % dropped")
        axes.bar_label(bars, fmt="{:,.0f}", padding=2)
    axes.set_xticks([place + 0.2 for place in range(len(parts))], [part.removesuffix("_ms") for part in parts])
    axes.set(ylabel="publish to client, ms", yscale="log")
    axes.legend(frameon=False, loc="upper left")
    axes.set_title(f"loss: {document['settings']['load']}", fontsize=9)


def _objects(axes: Any, document: dict[str, Any]) -> None:
    steps = document["figures"]["steps"]
    bars = axes.barh([one["what"] for one in steps], [one["seconds"] for one in steps], color=_BLUE)
    axes.bar_label(bars, [f"{one['sent_kib'] + one['received_kib']:,.0f} KiB, {one['messages']:,} messages" for one in steps], padding=3)
    axes.invert_yaxis()
    axes.set(xlabel="s", xlim=(0, 1.6 * max(one["seconds"] for one in steps)))  # room for the words
    axes.set_title(f"objects: {document['settings']['load']}", fontsize=10)


def _batching(axes: Any, document: dict[str, Any]) -> None:
    steps = document["figures"]["delays"]
    cores = [one["pipeline_cpu_cores"] for one in steps]
    for part, colour in (("p50", _BLUE), ("p99", _RED)):
        axes.plot(cores, [one[f"{part}_ms"] for one in steps], marker="o", color=colour, label=part)
    for one in steps:
        axes.annotate(
            f"{one['delay_ms']} ms", (one["pipeline_cpu_cores"], one["p99_ms"]), textcoords="offset points", xytext=(6, 6), fontsize=8
        )
    axes.set(xlabel="CPU of the pipeline, cores", ylabel="publish to client, ms", xlim=(0, 1.15 * max(cores)))
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("batching: batches at least so long apart, without the fast path", fontsize=10)


_DRAWINGS: Final[dict[str, Callable[[Any, dict[str, Any]], None]]] = {
    "latency": _latency,
    "throughput": _throughput,
    "burst": _burst,
    "publish": _publish,
    "missed": _missed,
    "idle": _idle,
    "failover": _failover,
    "reconnect": _reconnect,
    "channels": _channels,
    "contacts": _contacts,
    "security": _security,
    "sweeping": _sweeping,
    "figure8": _figure8,
    "figure9": _figure9,
    "figure11": _figure11,
    "recovery": _recovery,
    "objects": _objects,
    "loss": _loss,
    "figure6": _figure6,
    "figure7": _figure7,
    "batching": _batching,
}
