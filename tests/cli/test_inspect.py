"""`roskva inspect`, and what `roskva status` and `doctor` say of unfinished work and a short disk. Against answers of a service."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roskva.cli import doctor, inspect, main
from roskva.cli.status import status_lines
from roskva.config import Settings

NOW_MS = 1_790_000_000_000
OWED = {"version": "7", "since_ms": NOW_MS, "stored": True, "sent_s_ago": 3.0}
CLIENT: dict[str, Any] = {
    "client": "c1", "application": "demo", "device": "phone", "gone": False, "session": 3, "seen_day": "2026-09-21",
    "owner": {"member": "m1", "address": "127.0.0.1:8470"}, "owned_here": True, "online": True, "online_since_ms": NOW_MS,
    "heard_s_ago": 12.0, "connected_here": True,
    "registrations": {"count": 3, "more": False, "list": [{"object": "a", "seqno": "1"}, {"object": "b", "seqno": "2"}], "next": "next"},
    "pending": {"count": 1, "list": [{"object": "c", "operation": "register", "repair": True, "since_ms": None}]},
    "unacknowledged": {"count": 1, "more": False, "list": [{"object": "a", **OWED}]},
}  # fmt: skip
OBJECT: dict[str, Any] = {
    "application": "demo", "object": "a/b", "epoch": 0, "partition": 2, "version": "7", "source": None, "known": True, "why_unknown": "",
    "records_behind": 4, "registered": {"count": 5_000, "more": True},
    "clients": {"looked_at": 1_000, "outdated": 1, "pending": 0, "unacknowledged": [{"client": "c1", "device": "phone", **OWED}]},
    "next": "",
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three pages of each; answers what was asked for."""
    urls: list[str] = []

    def answer(url: str, timeout_s: float, shown: Mapping[str, str]) -> dict[str, Any]:
        urls.append(url)
        following = {"": "one", "one": "two", "two": ""}[urllib.parse.parse_qs(url, keep_blank_values=True)["after"][0]]
        if "/clients/" in url:
            return CLIENT | {"registrations": CLIENT["registrations"] | {"next": following}}
        return OBJECT | {"next": following}

    monkeypatch.setattr(inspect, "get_json", answer)
    return urls


def test_a_client(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "client", "c 1", "--url", "http://h:1"]) == 0
    shown = capsys.readouterr().out
    assert asked[0].startswith("http://h:1/v1/inspect/clients/c%201?")
    assert len(asked) == 3
    assert "application     demo, device phone" in shown
    assert "yes, since 2026-09-2" in shown
    assert "registrations   3\n  a\n  b\n" in shown
    assert "c  register, a repair, since before the gateway that answered took over" in shown
    assert "unacknowledged  1\n  a  version 7, since 2026-09-2" in shown


def test_no_more_than_asked_for_is_read(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "client", "c1", "--limit", "1", "--json"]) == 0
    assert len(asked) == 1
    assert [one["object"] for one in json.loads(capsys.readouterr().out)["registrations"]["list"]] == ["a"]


def test_an_object_is_read_to_the_end_and_counted(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "object", "demo/a/b", "--limit", "2"]) == 0
    assert asked[0].startswith("http://127.0.0.1:8470/v1/inspect/objects/demo/a%2Fb?")
    assert len(asked) == 3
    shown = capsys.readouterr().out
    assert "registered      3,000 clients, 0 of them on their way, 3 outdated" in shown
    assert "unacknowledged  3\n" in shown
    assert shown.count("c1  (phone)  version 7, since 2026-09-2") == 2
    assert "... and 1 more: --limit shows them" in shown


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"online": None, "owned_here": False}, "only its owner knows, and connected to the gateway that answered"),
        ({"online": None, "owned_here": False}, "m1 at 127.0.0.1:8470: ask there with --url"),
        ({"online": False}, "online          no"),
        ({"owner": None}, "no gateway"),
        ({"gone": True, "application": None, "device": None}, "it was collected or lost"),
        ({"unacknowledged": {"count": 1, "more": True, "list": [{"object": "a", **OWED, "stored": False}]}}, "version 7, just sent"),
        ({"unacknowledged": {"count": 1, "more": True, "list": [{"object": "a", **OWED, "version": None}]}}, "unacknowledged  1 or more"),
    ],
)
def test_what_a_client_may_be(changes: dict[str, Any], expected: str) -> None:
    assert expected in "\n".join(inspect.client_lines(CLIENT | changes))


def test_a_version_that_does_not_count_says_why() -> None:
    clients = OBJECT["clients"] | {"unacknowledged_count": 1}
    lines = inspect.object_lines(OBJECT | {"known": False, "why_unknown": "the feed was lost", "clients": clients})
    assert "version         7, which counts as unknown: the feed was lost" in lines


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["inspect", "table", "x"], ["inspect", "client"], ["inspect", "client", "x", "--limit", "0"]]
)
def test_misuse(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_an_object_without_its_application(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "object", "hello"]) == 1
    assert "APPLICATION/NAME" in capsys.readouterr().err


def test_status_shows_what_each_of_several_gateways_holds_and_who_does_not_answer() -> None:
    members = [{"name": f"gateway-{number}", "address": "127.0.0.1:1", "answers": number != 3} for number in (1, 2, 3)]
    held = {"gateway-2": {"connections": 2_000, "sessions": 1}, "gateway-1": {"connections": 1_000, "sessions": 2}}
    text = "\n".join(status_lines({"members": members, "gateways": held, "sessions": 3}))
    assert "gateways   3: gateway-1 at 127.0.0.1:1, gateway-2 at 127.0.0.1:1, gateway-3 at 127.0.0.1:1 (does not answer" in text
    assert "  gateway-1: 1,000 connections, 2 sessions\n  gateway-2: 2,000 connections, 1 sessions\n" in text
    assert "gateway-1:" not in "\n".join(status_lines({"members": members[:1], "gateways": {"gateway-1": held["gateway-1"]}}))


def test_status_shows_what_is_unfinished() -> None:
    answer: dict[str, Any] = {
        "pending": {"clients": 2, "registrations": 1_003},
        "unacknowledged": {"clients": 3, "notifications": 40, "rows_with_more": 1},
        "rows_to_read": 9,
        "scratch": {"rows": 2_000, "more": True},
        "incomplete": {"table/matcher-1": "recovering"},
        "disk": {"free_bytes": 100 << 20, "free_bytes_min": 256 << 20, "refusing": True},
    }
    lines = status_lines(answer)
    assert "pending    1,003 registrations of 2 clients on their way" in lines
    assert "unacked    40 notifications of 3 clients online here; 1 of their rows hold more" in lines
    assert "marked     9 clients' rows to look at" in lines
    assert "scratch    2,000 or more put aside for later" in lines
    assert "partition  table/matcher-1 is recovering" in lines
    assert "disk       0.1 GiB free - publishes and registrations are refused until there is more" in lines
    assert not [line for line in status_lines({}) if line.startswith(("pending", "disk", "scratch"))]  # of an older service


def test_doctor_says_that_publishes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data=tmp_path, disk_free_bytes_min=8 << 30)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=6 << 30))
    found = doctor.check_space(settings)
    assert found.state == doctor.FAIL
    assert "publishes and registrations are refused (disk_free_bytes_min)" in found.what
    assert doctor.check_space(replace(settings, disk_free_bytes_min=1 << 30)).state == doctor.OK
