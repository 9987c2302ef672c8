"""`roskva capture check` without a database: what it says of a mapping, of files, of the publisher's own place and of the service."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from roskva.capture.interface import Finding
from roskva.capture.mapping import Rule, parse_mapping
from roskva.capture.settings import settings_of
from roskva.capture.watching import Level, level_of, log_share, metrics_text, share_of_kept
from roskva.cli import main
from roskva.cli.capture_check import TableSeen, finding_lines, mapping_findings
from roskva.cli.capture_check_roskva import subscription_findings
from tests.cli.test_capture import flow, status

TABLE = TableSeen({"id": "bigint", "title": "text", "folder": "bigint"}, frozenset({"id"}), "ALTER TABLE x REPLICA IDENTITY FULL")


def mapping(*objects: str, **more: object) -> Rule:
    return parse_mapping(["documents"], objects, **more)  # type: ignore[arg-type]


def only(rule: Rule) -> Finding:
    (finding,) = mapping_findings(rule, "documents", TABLE)
    return finding


def test_a_mapping_that_fits_is_well() -> None:
    assert only(mapping("doc:{id}", "documents")).ok
    assert only(mapping("doc:{id}", version="folder", source="{title}")).ok


@pytest.mark.parametrize("rule", [mapping("doc:{ident}"), mapping("doc:{id}", source="{ident}"), mapping("doc:{id}", version="ident")])
def test_a_column_that_is_not_there_is_named_with_those_that_are(rule: Rule) -> None:
    finding = only(rule)
    assert not finding.ok
    assert "ident" in finding.what
    assert "folder, id, title" in finding.do


def test_a_version_that_is_no_number_is_refused() -> None:
    finding = only(mapping("doc:{id}", version="title"))
    assert not finding.ok
    assert "text" in finding.means


def test_a_deleted_row_that_does_not_say_which_object_it_was_is_told_of() -> None:
    finding = only(mapping("doc:{id}", "folder:{folder}"))
    assert not finding.ok
    assert "folder" in finding.means
    assert "REPLICA IDENTITY FULL" in finding.do
    assert only(mapping("folder:{folder}", deletes=False)).ok
    assert only(mapping("folder:{folder}", skip_missing=True)).ok


def test_a_finding_says_what_follows_and_what_to_do() -> None:
    assert list(finding_lines(Finding("the moon", False, "it is dark", "wait"))) == ["FAIL  the moon", "      it is dark", "      do: wait"]
    assert list(finding_lines(Finding("the sun", True))) == ["ok    the sun"]
    assert next(iter(finding_lines(Finding("the slot", False, "", "roskva capture makes it"), later=True))) == "soon  the slot"


def settings(tmp_path: Path, more: str = "") -> Path:
    log = tmp_path / "log"
    log.mkdir(exist_ok=True)
    file = tmp_path / "capture.toml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file.write_text(f"""
[dataset]
name = "shop"
[datastore]
kind = "files"
path = "{log}"
[publisher]
listen = "127.0.0.1:{port}"
data = "{tmp_path}/data"
[applications.search]
{more}
""")
    return file


def test_check_tells_what_is_wrong_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = settings(tmp_path)
    (tmp_path / "log" / "strange.jsonl").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["capture", "check", "--config", str(file)]) == 1
    text = capsys.readouterr().out
    assert "ok    the settings file can be used" in text
    assert "soon  there is no data directory" in text
    assert "FAIL  every file of lines has the name of a segment\n      never read: strange.jsonl\n      do: name each" in text
    assert text.splitlines()[-1].endswith("to mend.")
    assert sorted(tmp_path.rglob("*")) == before


def test_check_as_json_is_a_line_for_each_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = settings(tmp_path)
    (tmp_path / "log" / "identity").write_text("shop\n")
    assert main(["capture", "check", "--json", "--config", str(file)]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["what"] for one in found if not one["ok"] and not one["made_at_start"]] == []


def test_check_sees_that_the_service_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = '[roskva]\nurl = "http://127.0.0.1:9"\napplication = "demo"\n[[roskva.mapping]]\ntable = "t"\nobject = "t:{id}"'
    assert main(["capture", "check", "--config", str(settings(tmp_path, more))]) == 1
    text = capsys.readouterr().out
    assert "FAIL  the service at http://127.0.0.1:9 takes versions of demo" in text
    assert "do: roskva up" in text


@pytest.mark.parametrize(
    ("application", "says"),
    [
        ("real_time_only = true", "with real_time_only changes are skipped"),
        ("max_age_s = 60", "with max_age_s changes are skipped"),
        ("""filter = '[table = "u"] OR [table = "t" AND operation = "insert"]'""", "leaves out updates of t, truncates of t:"),
        ("""filter = '[not table matches "t"]'""", "leaves out inserts of t, updates of t, truncates of t:"),
        ("""filter = '[table = "t" AND not operation in ("delete", "truncate")]'""", "leaves out truncates of t:"),
        (
            """filter = '[table = "t" AND not operation = "delete" AND size in 1..]'""",
            "asks t for size: of a row that does not fit, and of one",
        ),
        ("""filter = '[table = "t" AND key.id in 1..] OR [attached.topic exists]'""", "asks t for id, topic:"),
        ("""filter = '[table = "u" AND size in 1..] OR [table matches "t|v" AND not operation = "delete"]'""", ""),
        ("""filter = '[database = "shop" AND not table = "u"]'""", ""),
    ],
)
def test_check_sees_what_roskvas_own_application_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], application: str, says: str
) -> None:
    mapping = '[[roskva.mapping]]\ntable = "t"\nobject = "t:{id}"\ndeletes = false'
    more = f'[applications.roskva]\n{application}\n[roskva]\nurl = "http://127.0.0.1:9"\napplication = "demo"\n{mapping}'
    assert main(["capture", "check", "--config", str(settings(tmp_path, more))]) == 1
    text = capsys.readouterr().out
    assert f"{'FAIL' if says else 'ok  '}  [applications.roskva] gets all that the mapping is of" in text
    assert text.count("[applications.roskva] gets all") == 1
    assert says in text


def test_check_sees_that_ranges_of_a_rocksdb_are_left_out() -> None:
    found = settings_of(
        {
            "dataset": {"name": "shop"},
            "datastore": {"kind": "rocksdb", "path": "/nowhere"},
            "applications": {"roskva": {"filter": '[table = "default" AND not operation = "message"]'}},
            "roskva": {"application": "demo", "mapping": [{"table": "default", "object": "row:{key}"}]},
        }
    )
    (finding,) = subscription_findings(found)
    assert "leaves out deletions of ranges of default:" in finding.means


def test_check_sees_that_the_address_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        file = settings(tmp_path)
        text = file.read_text()
        port = next(line for line in text.splitlines() if line.startswith("listen"))
        file.write_text(text.replace(port, f'listen = "127.0.0.1:{other.getsockname()[1]}"'))
        assert main(["capture", "check", "--config", str(file)]) == 1
    assert "is free for the publisher" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("share", "level"), [(None, Level.FINE), (0.49, Level.FINE), (0.5, Level.WARNING), (0.79, Level.WARNING), (0.8, Level.ALARM)]
)
def test_half_of_what_is_kept_is_a_warning_and_four_fifths_an_alarm(share: float | None, level: Level) -> None:
    assert level_of(share) is level


def test_lag_is_a_share_of_what_is_kept_or_of_the_disk() -> None:
    assert share_of_kept(50, 100) == 0.5
    assert share_of_kept(500, 100) == 1.0
    assert share_of_kept(50, None, 150) == 0.25, "of what would be free without it"
    assert share_of_kept(50, 100, 150) == 0.5, "the datastore gives up before the disk is full"
    assert share_of_kept(50, None) is None
    assert share_of_kept(None, 100) is None
    assert log_share({"bytes_behind": None, "bytes_max": None}).level is Level.FINE


def test_metrics_are_in_the_form_of_prometheus() -> None:
    text = metrics_text(status(flow('odd"name\\', lag_s=None)), 2**30)
    lines = text.splitlines()
    assert "roskva_capture_log_share 0.01" in lines
    assert "roskva_capture_datastore_disk_free_bytes 1073741824" in lines
    assert 'roskva_capture_updates_sent_total{application="odd\\"name\\\\",shard="0"} 5' in lines
    assert 'roskva_capture_caravan_bytes_read_total{caravan="1",lead="true"} 2097152' in lines
    for line in lines:
        name = line.split()[2] if line.startswith("#") else line.split("{")[0].split()[0]
        assert f"# TYPE {name} gauge" in lines or f"# TYPE {name} counter" in lines
    assert "lag_seconds" in text
    assert "misplaced" not in text
    counted = metrics_text(status(misplaced={"missing": 3, "out of range": 0})).splitlines()
    assert 'roskva_capture_misplaced_total{reason="missing"} 3' in counted
    assert 'roskva_capture_misplaced_total{reason="out of range"} 0' in counted
    assert "None" not in text


def test_check_looks_at_datamarkers_keys_and_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = settings(tmp_path)
    alone = file.read_text()

    def told(more: str) -> str:
        file.write_text(alone.replace("[applications.search]", f"{more}\n[applications.search]"))
        main(["capture", "check", "--config", str(file)])
        return capsys.readouterr().out

    assert "FAIL  all publishers share their datamarkers" in told('peers = ["publisher", "other"]')
    assert f"ok    datamarkers can be kept in {tmp_path}/marks" in told(f'datamarkers = "{tmp_path}/marks"')
    away = told('datamarkers = "host=127.0.0.1 port=1 dbname=x password=hidden connect_timeout=1"')
    assert "FAIL  datamarkers can be kept in x at 127.0.0.1:1" in away
    assert "FAIL  all publishers know the keys of search" in away
    assert "hidden" not in away
    assert "FAIL  the publisher's certificate can be used" in told('tls_certificate = "/nowhere"\ntls_key = "/nowhere"')
    assert not (tmp_path / "marks").exists()
