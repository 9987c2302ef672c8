"""The supervisor's policy, with the time in the test's hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest

from roskva.cli import supervise
from roskva.cli.report import PipelineReport, QueryReport, pipeline_report
from roskva.cli.supervise import Child, LogFile, Progress, Restarts, Watch

PID = 7


def report(steps: int, lag: int, pid: int | None = PID, alive: bool = True, fan_out: tuple[int, int] = (0, 0)) -> PipelineReport:
    queries = {"matching": QueryReport(steps, lag), "fan-out": QueryReport(*fan_out)}
    return PipelineReport(alive=alive, pid=pid, queries=queries)


def test_pauses_double_up_to_a_limit() -> None:
    restarts = Restarts()
    pauses_s = [restarts.delay_s(lived_s=1.0) for _ in range(10)]
    assert pauses_s == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_pauses_begin_anew_after_a_minute_of_life() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.delay_s(lived_s=1.0)
    assert restarts.delay_s(lived_s=61.0) == 0.2
    assert restarts.delay_s(lived_s=1.0) == 0.4


def test_work_of_which_none_is_done_is_a_stall() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    assert progress.observe(10.0, report(steps=3, lag=5)) is None
    assert progress.observe(70.0, report(steps=3, lag=5)) is None
    assert progress.observe(70.1, report(steps=3, lag=5)) == "has work for its query matching and did none of it for 60 s"


def test_a_finished_batch_is_progress_however_large_the_lag() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    for minute in range(10):
        assert progress.observe(minute * 59.0, report(steps=minute, lag=1_000 * minute)) is None


def test_an_idle_pipeline_has_not_stalled() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    for minute in range(10):
        assert progress.observe(minute * 60.0, report(steps=3, lag=0)) is None


def test_a_query_that_hangs_is_not_hidden_by_another_that_works() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    for second in range(61):
        assert progress.observe(float(second), report(steps=second, lag=5, fan_out=(7, 1))) is None
    assert progress.observe(61.0, report(steps=61, lag=5, fan_out=(7, 1))) == "has work for its query fan-out and did none of it for 60 s"


def test_a_long_fan_out_that_moves_has_not_stalled() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    for minute in range(10):
        assert progress.observe(minute * 59.0, report(steps=0, lag=0, fan_out=(minute, 1))) is None


def test_a_moment_without_a_report_is_no_evidence() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    progress.observe(0.0, report(steps=3, lag=5))
    progress.observe(50.0, None)
    assert progress.observe(100.0, report(steps=3, lag=5)) is None
    assert progress.observe(111.0, report(steps=3, lag=5)) is not None


def test_one_that_never_runs_is_started_again() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    assert progress.observe(119.0, report(steps=0, lag=0, alive=False)) is None
    assert progress.observe(121.0, report(steps=0, lag=0, alive=False)) == "did not start within 120 s"


def test_the_last_word_of_a_predecessor_does_not_count() -> None:
    progress = Progress(0.0, stall_s=60.0, pid=PID)
    progress.observe(1.0, report(steps=9, lag=0, pid=PID + 1))
    assert not progress.running
    progress.observe(2.0, report(steps=0, lag=0))
    assert progress.running


@pytest.mark.parametrize(
    ("status", "lag_total", "alive"),
    [
        ({"pipeline": {"alive": True, "lag": {"updates": {"0": 2, "1": 3}}}}, 5, True),
        ({"pipeline": {"alive": True, "batch": -1, "pid": "x", "lag": {"updates": {"0": 2, "1": None}, "other": 7}}}, 2, True),
        ({"pipeline": {"alive": False, "state": "stopped", "lag": None}}, 0, False),
    ],
)
def test_reports_are_read_tolerantly(status: dict[str, object], lag_total: int, alive: bool) -> None:
    found = pipeline_report(status)
    assert found is not None
    assert (found.lag_total, found.alive, found.batch) == (lag_total, alive, None)


def test_queries_of_another_form_are_left_out() -> None:
    queries = {"matching": {"steps": 1, "lag": 2}, "other": {"steps": "x"}, "third": 3}
    found = pipeline_report({"pipeline": {"queries": queries}})
    assert found is not None
    assert found.queries == {"matching": QueryReport(1, 2)}


def test_a_status_without_a_report_has_none() -> None:
    assert pipeline_report({}) is None
    assert pipeline_report({"pipeline": "gone"}) is None


def test_a_log_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    log = LogFile(path)
    assert log.new_lines() == []
    path.write_text("one\ntwo\nthr")
    assert log.new_lines() == ["one", "two"]
    with path.open("a") as file:
        file.write("ee\n")
    assert log.new_lines() == ["three"]
    assert log.tail(2) == ["two", "three"]


def test_a_log_that_existed_before_is_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_text("ERROR of yesterday\n")
    assert LogFile(path).new_lines() == []


def test_a_large_log_is_moved_aside_while_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "LOG_BYTES_MAX", 100)
    path = tmp_path / "part.log"
    log = LogFile(path)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 200 + b"\n")
        log.rotate()
        assert path.stat().st_size == 0
        assert (tmp_path / "part.log.1").stat().st_size == 201
        writer.write(b"after\n")
    assert log.new_lines() == ["after"]


def test_a_large_log_is_emptied_even_if_there_is_no_room_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "LOG_BYTES_MAX", 100)
    path = tmp_path / "part.log"
    path.write_bytes(b"x" * 200)
    (tmp_path / "part.log.1").symlink_to("/dev/full")
    LogFile(path).rotate()
    assert path.stat().st_size == 0
    assert not (tmp_path / "part.log.1").is_symlink()


def test_a_log_that_was_deleted_is_read_from_its_new_begin(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_text("of before\n")
    log = LogFile(path)
    path.unlink()
    assert (log.new_lines(), log.tail()) == ([], [])
    path.write_text("anew\n")
    assert log.new_lines() == ["anew"]


def test_a_part_that_cannot_be_started_says_why_and_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file where the folder should be")
    child = Child("part", ["true"], {}, "run", tmp_path / "log" / "part.log")
    assert "log" in child.start(0.0)
    pause_s = child.schedule(0.0)
    assert not child.due(pause_s - 0.01)
    assert child.due(pause_s)


class Gateway(ThreadingHTTPServer):
    """Answers every request; counts connections, and breaks the one it has when asked to."""

    connections = 0
    answers = 0
    hang_up = False
    slow_report: threading.Event | None = None  # until which /pipeline waits


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        cast(Gateway, self.server).connections += 1

    def do_GET(self) -> None:
        server = cast(Gateway, self.server)
        server.answers += 1
        if server.hang_up:
            server.hang_up, self.close_connection = False, True
            return
        if self.path == "/pipeline" and server.slow_report is not None:
            server.slow_report.wait()
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def test_the_watch_asks_over_one_connection_and_makes_another_only_if_that_broke() -> None:
    """When ten thousand clients connect at once, a new connection waits behind all of them: a busy gateway was taken for a dead one."""
    with Gateway(("127.0.0.1", 0), Answering) as gateway:
        threading.Thread(target=gateway.serve_forever, args=(0.01,), daemon=True).start()
        watch = Watch(f"http://127.0.0.1:{gateway.server_port}", interval_s=0.01, timeout_s=5.0)
        watch.start()
        wait_until(lambda: gateway.answers > 20)
        assert gateway.connections == 1
        assert watch.answered > 0.0
        gateway.hang_up = True
        wait_until(lambda: gateway.connections == 2)
        before_s = watch.answered
        wait_until(lambda: watch.answered > before_s)
        watch.stop()
        watch.join(10)
        gateway.shutdown()


def test_a_gateway_that_is_well_and_only_slow_to_report_of_the_pipeline_counts_as_one_that_answers() -> None:
    with Gateway(("127.0.0.1", 0), Answering) as gateway:
        gateway.slow_report = threading.Event()
        threading.Thread(target=gateway.serve_forever, args=(0.01,), daemon=True).start()
        watch = Watch(f"http://127.0.0.1:{gateway.server_port}", interval_s=0.01, timeout_s=60.0, report_s=0.05)
        watch.start()
        for _ in range(3):
            before_s = watch.answered
            wait_until(lambda before_s=before_s: watch.answered > before_s)  # type: ignore[misc]
        assert watch.pipeline is None
        gateway.slow_report.set()
        watch.stop()
        watch.join(10)
        gateway.shutdown()


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
