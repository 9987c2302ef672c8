"""Wormhole, section 5: what operators see of a publisher that runs, and change of it; and what runs it."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.capture.publisher import ApplicationSettings, status
from roskva.capture.settings import load
from roskva.capture.watching import metrics_text
from roskva.cli.capture_run import MISUSED, SILENCE_S_MAX, Supervisor
from roskva.cli.keeping import Display
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import command, publishing, subscriber
from tests.capture.shell.watching import Watching, until

APPLICATION = ApplicationSettings(KEY, start="oldest")
SETTINGS = """
[dataset]
name = "shop"
[datastore]
kind = "files"
path = "{folder}"
[publisher]
data = "{folder}/data"
[applications.search]
"""
ROSKVA = """
[roskva]
application = "demo"
[[roskva.mapping]]
table = "documents"
object = "doc:{id}"
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[NumberLog]:
    log = NumberLog(tmp_path / "numbers")
    yield log
    log.close()


def supervisor(folder: Path, more: str = "") -> Supervisor:
    file = folder / "capture.toml"
    file.write_text(SETTINGS.format(folder=folder) + more)
    arguments = argparse.Namespace(config=str(file), metrics=None, datamarkers=None)
    return Supervisor(load(file), "run", Display(io.StringIO()), arguments, ("roskva",))


def test_5_the_settings_on_the_machine_itself_say_what_runs_there(tmp_path: Path) -> None:
    """ "The monitor periodically checks the configuration system [...] and based on that determines whether to run a publisher or not": one
    beside each database, no central one. Here `roskva capture` is that monitor, and a file of settings, read when it starts, is the
    configuration."""
    assert [child.name for child in supervisor(tmp_path).wanted()] == ["publisher"]
    assert [child.name for child in supervisor(tmp_path, ROSKVA).wanted()] == ["publisher", "notifier"]


def test_5_a_publisher_that_hangs_is_started_again_and_one_with_a_wrong_configuration_is_not(tmp_path: Path) -> None:
    """The publisher is kept running without anybody's help; here also one that still runs, and does not answer any more."""
    keeping = supervisor(tmp_path)
    (publisher,) = keeping.wanted()
    publisher.started, publisher.starts = 100.0, 1
    assert keeping.verdict(publisher, 1_000.0) is None, "it may wait for its database"
    keeping._pulse.answered = 200.0
    assert keeping.verdict(publisher, 200.0 + SILENCE_S_MAX) is None
    assert keeping.verdict(publisher, 201.0 + SILENCE_S_MAX) is not None
    assert not keeping.hopeless(publisher, -9)
    assert keeping.hopeless(publisher, MISUSED)


async def test_5_the_maximum_rate_of_a_caravan_is_changed_without_a_restart(tmp_path: Path, log: NumberLog) -> None:
    """ "The maximum rate at which a caravan can send updates can be changed without restarting the publisher": here through the socket of
    `roskva capture set`."""
    rates = []
    async with publishing(tmp_path, log):
        for rate in (4_000, 8_000):
            await command(tmp_path, command="set", caravan_rate_max=rate, caravan_rate_min=4_000)
            rates += [caravan["bytes_per_s_max"] for caravan in (await command(tmp_path, command="status"))["caravans"]]
    assert rates == [4_000, 8_000]


async def test_5_the_datamarkers_of_all_flows_can_be_asked_for(tmp_path: Path, log: NumberLog) -> None:
    """ "We use it to access state (e.g., what are the datamarkers of all flows on it)": also of those that nobody takes."""
    watching = Watching(2)
    log.append(10)
    applications = {"watch": APPLICATION, "nobody": APPLICATION}
    async with publishing(tmp_path, log, 2, applications=applications) as publisher, subscriber(publisher, watching):
        await until(lambda: {s.stored for s in publisher.core.flows() if s.flow.application == "watch"} == {log.retained().end})
        flows = await command(tmp_path, command="flows")
    found = {(flow["application"], flow["shard"]): flow["datamarker"] for flow in flows}
    assert found == {("watch", 0): "0/10", ("watch", 1): "0/10", ("nobody", 0): "0/0", ("nobody", 1): "0/0"}


async def test_5_statistics_are_collected_and_aggregated_now_and_then(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Monitoring statistics that the publisher collects and aggregates every 30 seconds (e.g., the rate of updates sent to all
    applications)": here every 5 s."""
    assert status.PERIOD_S == 5.0
    monkeypatch.setattr(status, "PERIOD_S", 0.05)
    rates: set[float] = set()

    def look() -> bool:
        rates.add(publisher.statistics.rates["sent_updates_per_s"])
        return watching.has_all(200) and len(rates) > 1 and publisher.statistics.rates["sent_updates_per_s"] == 0.0

    watching = Watching(1)
    log.append(100)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        await until(lambda: watching.has_all(100))
        log.append(100)
        await until(look)
    assert max(rates) > 0.0


async def test_5_every_flow_and_caravan_has_statistics_that_tell_its_health(tmp_path: Path, log: NumberLog) -> None:
    """ "The publisher collects over 100 such monitoring statistics that we use to determine the health": here as many as there are flows,
    caravans and their figures, in the form of Prometheus."""
    applications = {f"a{number}": APPLICATION for number in range(4)}
    async with publishing(tmp_path, log, 2, applications=applications) as publisher:
        await until(lambda: len(publisher.owning.held) == 8)
        lines = metrics_text(publisher.status()).splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert len(samples) > 100
    for application in applications:
        for shard in (0, 1):
            of_flow = [line for line in samples if f'{{application="{application}",shard="{shard}"}}' in line]
            assert {"lag_bytes", "updates_sent_total", "falls_total", "losses_total"} <= {
                line.split("{")[0].removeprefix("roskva_capture_") for line in of_flow
            }
