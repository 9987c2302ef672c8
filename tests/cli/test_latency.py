"""`roskva latency`: over all gateways that answer, for a person and for programs (cli/latency.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roskva.cli import main
from roskva.cli.latency import Seen, document, lines, look
from roskva.errors import ServiceUnreachable, Unavailable
from roskva.model import Stamps, object_key
from roskva.telemetry import latency as of
from roskva.telemetry.latency import Latency

STATUS, LATENCY = "/v1/status", "/v1/inspect/latency"
STAMPS = Stamps(object_key("demo", 0, b"x"), 7, published_us=500, received_us=1_000, durable_us=3_000, sent_us=3_500)


def answer(member: str, updates: int, per_s: float = 20.0) -> dict[str, Any]:
    measured = Latency()
    for _ in range(updates):
        measured.accepted(STAMPS)
        measured.sent(STAMPS)
        measured.acknowledged(STAMPS, 9_000)
    return {"member": member, "since_ms": 1_000, "stamps_per_s": per_s, **measured.document()}


def members(**addresses: str) -> dict[str, Any]:
    return {"members": [{"id": identity, "address": address} for identity, address in addresses.items()]}


def test_all_gateways_are_asked_by_name_and_added_up() -> None:
    """Several may share one port: who answers there is a matter of chance, and passes on what another one is asked."""
    answers = {LATENCY: answer("b", 3), f"{LATENCY}?member=a": answer("a", 2), f"{LATENCY}?member=b": answer("b", 3)}

    def ask(address: str, path: str) -> dict[str, Any]:
        if path == STATUS:
            return members(a="one:1", b="one:1", c="one:1")
        if path not in answers:
            raise ServiceUnreachable(f"{address} does not answer.")
        return answers[path]

    seen = look("http://one:1", ask)
    assert (seen.gateways, seen.missing, seen.sampled) == (2, ["c"], 5)
    assert seen.histograms[of.FAST, of.TO_SENT].count == 5
    assert "not reached: c" in lines(seen, "")


def test_a_person_sees_whole_times_their_distribution_and_what_each_hop_adds() -> None:
    seen = look("http://one:1", lambda address, path: members(a="one:1") if path == STATUS else answer("a", 2))
    text = "\n".join(lines(seen, "since yesterday"))
    assert "1 gateway, 2 updates sampled since yesterday" in text
    assert "fast path, to the first attempt to send" in text
    assert "received to durable" in text
    assert "before the receipt, by the publishers' clocks" in text
    assert "pipeline" not in text, "of which nothing was seen"


def test_what_came_since_an_earlier_look() -> None:
    earlier, later = (
        look("http://one:1", lambda address, path, n=n: members() if path == STATUS else answer("a", n))  # type: ignore[misc]
        for n in (2, 5)
    )
    since = later.since(earlier)
    assert (since.sampled, since.histograms[of.FAST, of.TO_SENT].count) == (3, 3)
    assert later.since(later).histograms == {}


def test_without_samples_one_line_says_why() -> None:
    assert lines(Seen(stamps_per_s=0.0), "")[-1] == "Nothing is sampled: the setting stamps_per_s is 0."
    assert lines(Seen(stamps_per_s=20.0), "")[-1].startswith("No sampled update has reached an online client yet")


def test_for_programs_with_shares_that_add_up() -> None:
    seen = look("http://one:1", lambda address, path: members() if path == STATUS else answer("a", 2))
    found = json.loads(json.dumps(document(seen)))
    assert found["ways"]["fast"]["received to sent"]["mean_ms"] == 2.5
    assert sum(found["shares"]["fast"].values()) == pytest.approx(1.0)
    assert "pipeline" not in found["shares"]


def test_a_gateway_of_another_version_is_named_as_such() -> None:
    with pytest.raises(Unavailable, match="another version"):
        look("http://one:1", lambda address, path: {"members": []} if path == STATUS else {"text": "?"})


def test_from_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://127.0.0.1:9"
    answers = {url + STATUS: members(), url + LATENCY: answer("a", 1)}
    monkeypatch.setattr("roskva.cli.latency.get_json", lambda asked, shown: answers[asked])
    assert main(["latency", "--url", url]) == 0
    assert "1 updates sampled" in capsys.readouterr().out
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("roskva.cli.latency.time.sleep", pause)
    assert main(["latency", "--watch", "--json", "--url", url]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["sampled"] for one in printed] == [1, 0, 0], "then what came since it began"
    assert pauses == [2.0] * 3
