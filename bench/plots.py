"""One plot per measurement, as SVG beside its JSON. Imports matplotlib only when asked to draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.report import RESULTS

_BLUE: Final = "#2a6f97"
_RED: Final = "#b23a48"
_GREY: Final = "#8d99ae"


def draw(document: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Draw what this measurement has to show; the document is that of its JSON."""
    import matplotlib

    matplotlib.use("Agg")
    # The same figures give the same file: no date, no random ids.
    matplotlib.rcParams["svg.hashsalt"] = "roskva"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    _DRAWINGS[document["name"]](axes, document)
    axes.spines[["top", "right"]].set_visible(False)
    path = folder / f"{document['name']}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def _latency(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    steps = figures["distribution_ms"]
    axes.plot(steps, [index / (len(steps) - 1) * 100 for index in range(len(steps))], color=_BLUE)
    for aim in document["aims"]:
        part = int(aim["what"].rpartition("p")[2])
        axes.plot([aim["aim"]], [part], marker="x", color=_RED)
        axes.annotate(f"aim p{part}", (aim["aim"], part), textcoords="offset points", xytext=(6, -10), color=_RED)
    axes.set(xlabel="publish to client, ms", ylabel="% of notifications", xlim=(0, max(300, steps[-2] * 1.1)))
    axes.set_title(f"latency: {document['settings']['load']}", fontsize=10)


def _throughput(axes: Any, document: dict[str, Any]) -> None:
    for (name, fan), colour in zip(document["figures"]["fan_outs"].items(), (_BLUE, _RED), strict=False):
        steps = sorted(fan["steps"], key=lambda step: float(step["offered_per_s"]))
        points = [(step["delivered_per_s"], step["p99_ms"]) for step in steps]
        axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=f"fan-out {name}")
    axes.axhline(2_000, color=_GREY, linestyle=":")
    axes.set(xlabel="notifications delivered and acknowledged per second", ylabel="p99 publish to client, ms", yscale="log")
    axes.legend(frameon=False)
    axes.set_title("throughput, generator and service on the same cores", fontsize=10)


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


_DRAWINGS: Final[dict[str, Callable[[Any, dict[str, Any]], None]]] = {
    "latency": _latency,
    "throughput": _throughput,
    "publish": _publish,
    "missed": _missed,
    "idle": _idle,
}
