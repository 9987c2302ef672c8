"""`roskva drop`, `roskva invalidate` and `roskva reset`, as a person types them."""

from __future__ import annotations

import http.server
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roskva.cli import main, order
from roskva.cli.drop import WHAT, addresses
from roskva.config import Settings
from roskva.errors import PartitionUnavailable, RoskvaError
from roskva.feed import TOPICS, UPDATES, Entry
from roskva.feed.sqlite import SqliteFeed
from roskva.table import TABLES, Cell, Mutation, RowKey, open_table
from roskva.table import manifest as manifest_module
from roskva.table.manifest import COMPLETE, RECOVERING, Address, Manifest, PartitionRecord
from roskva.table.sqlite import SqliteTable

CELL = Cell(b"name", 1, b"value")


class Data:
    """The engines of another process, over the data directory that is dropped."""

    def __init__(self, path: Path) -> None:
        settings = Settings(data=path)
        self.manifest = Manifest.open(path / "manifest.db", settings.partitions, settings.data_center)
        self.table = SqliteTable(path, self.manifest)
        self.feed = SqliteFeed(path, self.manifest, 3600.0, 1 << 20)
        self.partitions = settings.partitions

    def fill(self) -> None:
        self.table.write([Mutation(RowKey(table, p, b"row"), [CELL]) for table in TABLES for p in range(self.partitions)])
        for topic in TOPICS:
            for partition in range(self.partitions):
                self.feed.append_to(topic, partition, [Entry(b"key", b"value")])
        self.feed.subscribe("me", [UPDATES])
        self.manifest.raise_epoch("demo", 0)

    def states(self) -> dict[Address, PartitionRecord]:
        return dict(self.manifest.snapshot().records)

    def close(self) -> None:
        self.table.close()
        self.feed.close()
        self.manifest.close()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Data]:
    (tmp_path / "keys.json").write_text("{}")
    opened = Data(tmp_path)
    opened.fill()
    yield opened
    opened.close()


def test_what_may_be_dropped_is_what_the_command_line_says() -> None:
    assert WHAT == ("registrar", "matcher", "scratch", "feed", "all")
    assert {address.name for address in addresses("all", 4)} == {*TABLES, *TOPICS, "subscriptions"}


@pytest.mark.parametrize("what", WHAT)
def test_exactly_what_is_named_begins_anew_as_recovering(what: str, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = data.states()
    assert main(["drop", what, "--data", str(tmp_path), "--yes"]) == 0
    text = capsys.readouterr().out
    assert f"drop {what}" in text
    assert "MB" in text
    after = data.states()
    named = set(addresses(what, data.partitions))
    assert named <= before.keys()
    for address, (incarnation, state, created) in after.items():
        if address not in named:
            assert (incarnation, state, created) == before[address]
        else:
            assert incarnation > before[address][0]
            assert created == (address.kind != "subscriptions")
            assert state == RECOVERING or address.kind == "subscriptions"
    assert data.manifest.epoch("demo") == 1, "epochs stay"
    assert (tmp_path / "keys.json").exists(), "keys stay"


def test_without_a_terminal_it_refuses(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    before = data.states()
    assert main(["drop", "all", "--data", str(tmp_path)]) == 1
    assert "--yes" in capsys.readouterr().err
    assert data.states() == before


class Terminal:
    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._answer


@pytest.mark.parametrize("answer", ["no\n", "\n", "", "y\n"])
def test_anything_but_yes_drops_nothing(
    answer: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    before = data.states()
    assert main(["drop", "matcher", "--data", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "made anew" in text, "it says what it costs before it asks"
    assert "Nothing was dropped." in text
    assert data.states() == before


def test_yes_drops(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    assert main(["drop", "matcher", "--data", str(tmp_path)]) == 0
    assert data.manifest.record("table", "matcher", 0).state == RECOVERING


def test_what_is_no_data_directory_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drop", "all", "--data", str(tmp_path / "nowhere"), "--yes"]) == 1
    assert "not a data directory" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_data_directory_of_an_earlier_version_is_refused_by_every_command_but_drop_all(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data.close()
    monkeypatch.setattr(manifest_module, "SCHEMA", manifest_module.SCHEMA + 1)
    assert main(["drop", "matcher", "--data", str(tmp_path), "--yes"]) == 1
    assert "roskva drop all" in capsys.readouterr().err
    assert main(["drop", "all", "--data", str(tmp_path), "--yes"]) == 0
    assert "earlier version" in capsys.readouterr().out
    anew = Data(tmp_path)
    assert {state for _, state, _ in anew.states().values()} == {RECOVERING}, f"none counts as {COMPLETE}"
    assert anew.table.read([RowKey("matcher", 0, b"row")]) == {RowKey("matcher", 0, b"row"): {}}
    assert (tmp_path / "keys.json").exists()
    anew.close()


def test_a_partition_that_cannot_be_made_now_is_left_to_the_service(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> int:
        raise PartitionUnavailable("busy", "x")

    monkeypatch.setattr(open_table(Settings(data=tmp_path)), "incarnation", busy)
    assert main(["drop", "matcher", "--data", str(tmp_path), "--yes"]) == 0


MEANT: list[tuple[str, dict[str, str]]] = [
    ("demo", {"application": "demo"}),
    ("demo/*", {"application": "demo"}),
    ("demo/hello", {"application": "demo", "object": "hello"}),
    ("demo/user/17/*", {"application": "demo", "prefix": "user/17/"}),
    ("demo/a*b", {"application": "demo", "object": "a*b"}),
    ("demo/a**", {"application": "demo", "prefix": "a*"}),
    ("demo/base64:YSo", {"application": "demo", "object": "a*"}),
    ("demo/base64:_w*", {"application": "demo", "prefix": "base64:_w"}),
]


@pytest.mark.parametrize(("text", "request_body"), MEANT, ids=[text for text, _ in MEANT])
def test_what_an_invalidation_names(text: str, request_body: dict[str, str]) -> None:
    assert order.what_is_meant(text) == request_body


@pytest.mark.parametrize("text", ["", "/x", "DEMO", "demo/", "demo/" + "x" * 129, "demo/base64:=", "demo/base64:*"])
def test_what_cannot_be_named_is_a_named_error(text: str) -> None:
    with pytest.raises(RoskvaError):
        order.what_is_meant(text)


Serve = Callable[..., tuple[str, list[tuple[str, Any]]]]


@pytest.fixture
def service() -> Iterator[Serve]:
    """A stand-in: statuses come one after the other, the last one again and again; what is posted is noted."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(*pipelines: dict[str, Any], refusal: dict[str, Any] | None = None) -> tuple[str, list[tuple[str, Any]]]:
        posted: list[tuple[str, Any]] = []
        statuses = [*pipelines]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, {"pipeline": statuses.pop(0) if len(statuses) > 1 else statuses[0]})

            def do_POST(self) -> None:
                posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                if refusal is not None:
                    self._answer(404, {"error": refusal})
                else:
                    self._answer(200, {"application": "demo", "epoch": 3, "accepted": True, "time_ms": 1_000})

            def _answer(self, status: int, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}", posted

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_LOOK_S", 0.001)


def pipeline(said_ms: int, lag: int, invalidated: int = 0, boot: str = "a", alive: bool = True) -> dict[str, Any]:
    counts = {"invalidated": invalidated}
    return {"alive": alive, "boot": boot, "said_ms": said_ms, "lag": {"fan-outs": {"0": lag, "1": 0}}, "counts": counts}


def test_reset_says_which_epoch_holds(service: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url, posted = service({})
    assert main(["reset", "demo", "--url", url]) == 0
    assert posted == [("/v1/reset", {"application": "demo"})]
    assert "epoch 3" in capsys.readouterr().out
    assert main(["reset", "demo", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 3
    assert main(["reset", "DEMO", "--url", url]) == 1
    assert len(posted) == 2


def test_invalidate_waits_until_the_pipeline_says_so_itself_and_later(service: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """No lag in what it said before the record was durable means nothing."""
    looks = [pipeline(900, 0, 10), pipeline(900, 0, 10), pipeline(1_500, 3, 10), pipeline(2_000, 0, 35)]
    url, posted = service(*looks, pipeline(9_999, 0, 99_999))
    assert main(["invalidate", "demo/a*", "--url", url]) == 0
    assert posted == [("/v1/invalidate", {"application": "demo", "prefix": "a"})]
    said = capsys.readouterr()
    assert "25 registrations" in said.out
    assert "3 records" in said.err


def test_invalidate_of_another_run_of_the_pipeline_counts_nothing(service: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url, _ = service(pipeline(900, 0, 10), pipeline(2_000, 0, 5, boot="b"))
    assert main(["invalidate", "demo", "--url", url]) == 0
    assert "everyone registered" in capsys.readouterr().out
    url, _ = service(pipeline(900, 0, 10), pipeline(2_000, 0, 12))
    assert main(["invalidate", "demo", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["told"] == 2


def test_invalidate_need_not_wait(service: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url, posted = service(pipeline(1, 7))
    assert main(["invalidate", "demo/x", "--url", url, "--no-wait"]) == 0
    assert posted == [("/v1/invalidate", {"application": "demo", "object": "x"})]
    assert "accepted" in capsys.readouterr().out


def test_invalidate_waits_for_a_pipeline_that_is_started_again(service: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url, _ = service(pipeline(900, 0), pipeline(900, 3, alive=False), pipeline(900, 3, alive=False), pipeline(2_000, 0, 9, boot="b"))
    assert main(["invalidate", "demo/x", "--url", url]) == 0
    assert "everyone registered" in capsys.readouterr().out


def test_invalidate_says_why_it_stops_waiting(service: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(order, "_SILENCE_MAX_S", 0.05)
    url, _ = service(pipeline(1, 7), pipeline(1, 7, alive=False))
    assert main(["invalidate", "demo/x", "--url", url]) == 1
    assert "not running" in capsys.readouterr().err
    url, _ = service(pipeline(1, 7))
    assert main(["invalidate", "demo/x", "--url", url, "--timeout", "0.05"]) == 1
    assert "goes on" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["reset", "invalidate"])
def test_the_services_refusal_is_its_own_words(command: str, service: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url, _ = service(pipeline(1, 0), refusal={"code": "unknown-application", "message": "There is no application 'demo' here."})
    assert main([command, "demo", "--url", url]) == 1
    assert "There is no application 'demo' here." in capsys.readouterr().err
