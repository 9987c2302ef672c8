"""Several processes of one load: in which order they end. What each of them does is shown by test_generator.py and test_command.py."""

from __future__ import annotations

from collections.abc import MutableSequence
from multiprocessing.connection import Connection
from typing import Any

import pytest

from roskva.load import processes
from roskva.load.measuring import Counts, Latencies, Report
from roskva.load.plan import Plan
from roskva.load.processes import Load, Target


def _work(part: processes._Part, orders: Connection, latest: MutableSequence[int], lock: Any, inherited: Any) -> None:
    """The second process's last publish is accepted late; what its clients and those of the first lack is what each then looks for."""
    what, _ = orders.recv()
    assert what == processes._DRAIN
    if part.first > 0:
        orders.recv()  # until the test says so
        with lock:
            latest[0] = 7
    orders.send(processes._Answered())
    what, _ = orders.recv()
    assert what == processes._LEARN
    orders.send(processes._Done(Report(Counts(missing=latest[0]), Latencies(), Latencies()), []))


def test_nobody_looks_for_what_is_missing_before_the_last_publish_of_all_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_work", _work)
    with Load(Plan(2), Target("http://127.0.0.1:9", "key"), 2, ["", ""]) as load:
        load.drain(5.0)
        assert load.poll(0.3) is None
        assert not any(load._done)
        load._pipes[1].send("go on")
        report = None
        while not load.is_done:
            report = load.poll(10.0)
        assert report is not None
        assert report.counts.missing == 2 * 7
