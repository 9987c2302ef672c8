"""`roskva capture ...` as a person types it: parsing, help, what is asked of the publisher, messages, exit status. Against a stand-in."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roskva.capture.settings import settings_of
from roskva.cli import main
from roskva.cli.capture_control import CONFIG, flow_in, limits_in, place_in
from roskva.errors import BadRequest, InvalidSetting

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    "check", "status", "flows", "pause", "resume", "rewind", "move", "reassign", "remove", "set", "example", "publisher", "notifier",
]  # fmt: skip


def flow(application: str = "search", shard: int = 0, **other: object) -> dict[str, Any]:
    usual = {
        "application": application, "shard": shard, "state": "riding", "why": "", "member": "w1:9", "epoch": 1, "datamarker": "1/100",
        "stored": "1/100", "sent": "1/100", "caravan": 1, "behind_share": 0.0, "lag_bytes": 0, "lag_s": 0.0, "buffered": 0,
        "buffered_bytes": 0, "credit_bytes": 1, "updates_sent": 5, "bytes_sent": 500, "tokens_sent": 1, "falls": 0, "discarded": 0,
        "too_old": 0, "losses": 0, "refused": 0,
    }  # fmt: skip
    return usual | other


def status(*flows: dict[str, Any], **other: object) -> dict[str, Any]:
    usual = {
        "publisher": "db1", "dataset": "postgres/7/shop", "address": "127.0.0.1:8480",
        "log": {"oldest": "1/50", "end": "1/200", "bytes_behind": 2**20, "bytes_max": 100 * 2**20},
        "problems": [], "flows": list(flows), "elsewhere": [],
        "caravans": [{"caravan": 1, "lead": True, "position": "1/200", "flows": 1, "standing": False, "bytes_per_s_max": 2.0**26,
                      "bytes_read": 2**21, "updates_read": 9}],
        "subscribers": [{"application": "search", "member": "w1:9", "flows": 1, "load": 0.25, "weight": 1.0, "bytes_sent": 9,
                         "waiting_bytes": 0}],
        "updates_sent": 5, "bytes_sent": 500, "bytes_read": 3 * 2**20,
        "rates": {"read_bytes_per_s": 2048.0, "sent_bytes_per_s": 0.0, "sent_updates_per_s": 0.0},
        "fenced": 0, "moves": 0, "schemas": 1, "filter_failures": 0,
    }  # fmt: skip
    return usual | other


class StandIn(threading.Thread):
    """A publisher's socket: keeps what it was asked, and answers what it is told to."""

    def __init__(self, data: Path, name: str = "control.sock") -> None:
        super().__init__(daemon=True)
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.data = data
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(data / name))
        self._listening.listen()

    def run(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            with line, line.makefile("rwb") as file:
                request = json.loads(file.readline() or b'{"command": ""}')
                self.asked.append(request)
                answer = self.answers.get(request["command"])
                refused = {"ok": False, "error": "bad-request", "message": "There is no such thing. Correct it."}
                file.write(json.dumps(refused if answer is None else {"ok": True, "answer": answer}).encode() + b"\n")

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.join(5)


@pytest.fixture
def publisher() -> Iterator[StandIn]:
    folder = Path(tempfile.mkdtemp(prefix="roskva-capture-"))  # a path short enough for a socket
    stand_in = StandIn(folder)
    stand_in.start()
    yield stand_in
    stand_in.close()
    shutil.rmtree(folder)


def failure(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed on stderr: one line, no traceback."""
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1, text
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["capture", command, "--help"])
    assert ended.value.code == 0
    assert f"  roskva capture {command}" in capsys.readouterr().out


def test_help_of_capture_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["capture", "--help"])
    text = capsys.readouterr().out
    assert all(f"    {command}" in text for command in COMMANDS)


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql", "rocksdb", "files"])
def test_the_example_is_a_file_that_can_be_used(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "example", kind]) == 0
    settings = settings_of(tomllib.loads(capsys.readouterr().out))
    assert type(settings.datastore).__name__.lower() == kind
    assert settings.roskva is not None


def test_the_document_has_the_example_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "example"]) == 0
    assert f"```toml\n{capsys.readouterr().out}```\n" in (ROOT / "docs/capture.md").read_text()


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["pause"], ["rewind", "search"], ["set"], ["example", "oracle"], ["check", "--data", "x"], ["status", "--nonsense"]],
)
def test_misuse_is_status_2_and_says_where_to_read(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["capture", *arguments])
    assert ended.value.code == 2
    assert "--help" in failure(capsys)


@pytest.mark.parametrize("arguments", [[], ["check"], ["status"], ["publisher"], ["flows"]])
def test_a_settings_file_that_is_not_there_is_named(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONFIG, str(tmp_path / "from-the-environment.toml"))
    assert main(["capture", *arguments]) == 2
    assert "from-the-environment.toml" in capsys.readouterr().err
    assert main(["capture", "--config", "before.toml", *arguments]) == 2
    assert "before.toml" in capsys.readouterr().err
    assert main(["capture", *arguments, "--config", "after.toml"]) == 2
    assert "after.toml" in capsys.readouterr().err


def test_settings_without_anybody_who_subscribes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "capture.toml"
    file.write_text(f'[dataset]\nname = "x"\n[datastore]\nkind = "files"\npath = "{tmp_path}"\n')
    assert main(["capture", "--config", str(file)]) == 2
    assert "Nobody subscribes" in failure(capsys)


@pytest.mark.parametrize("part", [[], ["publisher"]])
def test_peers_that_do_not_share_their_datamarkers_are_refused(part: list[str], tmp_path: Path) -> None:
    file = tmp_path / "capture.toml"
    file.write_text(
        f'[dataset]\nname = "x"\n[datastore]\nkind = "files"\npath = "{tmp_path}"\n'
        f'[publisher]\nname = "a"\npeers = ["a", "b"]\ndata = "{tmp_path}/data"\n[applications.search]\n'
    )
    assert main(["capture", *part, "--config", str(file)]) == 2
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", [["status"], ["flows"], ["pause", "search"], ["remove", "search", "--yes"], ["set", "caravans_max=2"]])
def test_a_capture_that_does_not_run_is_one_clear_line(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", *command, "--data", str(tmp_path)]) == 1
    said = failure(capsys)
    assert str(tmp_path) in said
    assert "`roskva capture` starts it" in said


@pytest.mark.parametrize(
    ("command", "answer", "asked", "said"),
    [
        (["pause", "search/3", "--why", "rest"], ["search/3"], {"application": "search", "shard": 3, "why": "rest"}, "Paused: search/3."),
        (["pause", "search"], ["search/0"], {"application": "search"}, "Paused: search/0."),
        (["resume", "search"], ["search/0", "search/1"], {"application": "search"}, "Resumed: search/0, search/1."),
        (["reassign", "search/1", "--to", "w2"], ["search/1"], {"application": "search", "shard": 1, "member": "w2"}, "search/1"),
        (["reassign", "search"], [], {"application": "search"}, "To another process: none."),
        (["rewind", "search", "end", "--yes"], {"search/0": "1/200"}, {"application": "search", "to": "end"}, "1/200"),
        (["move", "search", "db2"], {"order": ["db2", "db1"]}, {"application": "search", "to": "db2"}, "db2, db1"),
        (["move", "search", "--back"], {"order": ["db1", "db2"]}, {"application": "search", "to": ""}, "db1, db2"),
        (["remove", "search", "--yes"], ["search/0"], {"application": "search"}, "Forgotten: search/0."),
        (
            ["set", "caravan_rate_max_bytes_per_s=8 MiB", "policy=fewest", "caravans_max=2", "choke_max_s=0.5"],
            {"caravans_max": 2},
            {"caravan_rate_max": 8.0 * 2**20, "policy": "fewest", "caravans_max": 2, "choke_max_s": 0.5},
            "caravans_max = 2",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_asks_the_publisher_and_says_what_it_did(
    publisher: StandIn, command: list[str], answer: Any, asked: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.answers[command[0]] = answer
    assert main(["capture", *command, "--data", str(publisher.data)]) == 0
    assert publisher.asked == [{"command": command[0], **asked}]
    assert said in capsys.readouterr().out


def test_what_the_publisher_refuses_is_told_in_its_own_words(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "pause", "nobody", "--data", str(publisher.data)]) == 1
    assert failure(capsys) == "roskva: There is no such thing. Correct it.\n"


def test_a_removal_asks_first(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "remove", "search", "--data", str(publisher.data)]) == 1
    assert "--yes" in failure(capsys)
    assert publisher.asked == []


@pytest.mark.parametrize("to", ["end", "1/60", "1970-01-01T00:01:00Z"])
def test_a_rewind_that_skips_something_asks_first(publisher: StandIn, to: str, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["ahead"] = {"to": "1/60", "flows": ["search/0", "search/4"]}
    assert main(["capture", "rewind", "search", to, "--data", str(publisher.data)]) == 1
    said = capsys.readouterr()
    assert said.out == "What search/0, search/4 did not get up to 1/60 yet is skipped, for good.\n"
    assert "--yes" in said.err
    assert [asked["command"] for asked in publisher.asked] == ["ahead"]


@pytest.mark.parametrize(("text", "to"), [("oldest", "oldest"), ("1/60", "1/60"), ("1970-01-01T00:01:00Z", 60.0)])
def test_a_rewind_that_skips_nothing_goes_to_what_was_found(
    publisher: StandIn, text: str, to: object, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.answers |= {"ahead": {"to": "1/60", "flows": []}, "rewind": {"search/3": "1/60"}}
    assert main(["capture", "rewind", "search/3", text, "--data", str(publisher.data)]) == 0
    asked = {"application": "search", "shard": 3}
    assert publisher.asked == [{"command": "ahead", **asked, "to": to}, {"command": "rewind", **asked, "to": "1/60"}]
    assert capsys.readouterr().out == "search/3 goes on after 1/60.\n"


def test_move_wants_one_place_to_go(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["move", "search"], ["move", "search", "db2", "--back"]):
        assert main(["capture", *command, "--data", str(publisher.data)]) == 1
        assert "--back" in failure(capsys)
    assert publisher.asked == []


@pytest.mark.parametrize("text", ["", "/3", "search/", "search/x", "search/-1", "search/3/4"])
def test_what_names_no_flow_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="APPLICATION/SHARD"):
        flow_in(text)


@pytest.mark.parametrize("text", ["", "newest", "12", "2026-01-31", "2026-01-31T12:00:00", "1/", "yesterday"])
def test_what_is_no_place_in_the_log_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="no place in the log"):
        place_in(text)


@pytest.mark.parametrize("pair", ["caravans_max", "=3", "caravans_max="])
def test_a_limit_without_name_or_value_is_refused(pair: str) -> None:
    with pytest.raises(InvalidSetting, match="NAME=VALUE"):
        limits_in([pair])


def test_status_shows_the_worst_flow_first(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    behind = flow("mail", 4, state="choked", caravan=None, lag_bytes=60 * 2**20, behind_share=0.6, lag_s=90.0, falls=3)
    lost = flow("old", 1, state="paused", why="rest", caravan=None, lag_bytes=85 * 2**20, behind_share=0.85, lag_s=None, losses=1)
    elsewhere = [{"flow": "far/0", "owner": "db2", "epoch": 3, "released": False, "datamarker": "1/90"}]
    publisher.answers["status"] = status(flow(lag_s=7.0), behind, lost, elsewhere=elsewhere)
    assert main(["capture", "status", "--data", str(publisher.data)]) == 1, "an alarm"
    text = capsys.readouterr().out
    flows = [line for line in text.splitlines() if line.startswith("flow ")]
    assert [line.split()[1] for line in flows] == ["old/1:", "mail/4:", "search/0:"]
    assert "paused (rest); 85.0 MiB behind, 85% of what is kept  <- ALARM" in flows[0]
    assert "waits for its process, w1:9; 60.0 MiB behind, 60% of what is kept, 90.0 s  <- warning" in flows[1]
    assert "at w1:9; 0 B behind, 0% of what is kept, 0.0 s" in flows[2], "it rides at the log's end: nothing newer was for it"
    assert "1 cut off the log unread" in text
    assert "3 buffers discarded and read again" in text
    assert "1.0 MiB held, 1% of at most 100.0 MiB that the datastore keeps" in text
    assert "lead at 1/200: 1 flows, reads at most 64.0 MiB/s" in text
    assert "w1:9 of search: 1 flows, load 0.25" in text
    assert "far/0 at db2, datamarker 1/90" in text


def test_status_shows_why_changes_are_in_shard_0(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["status"] = status(misplaced={"missing": 1_234, "null": 0, "out of range": 2})
    assert main(["capture", "status", "--data", str(publisher.data)]) == 0
    assert "shard 0    has changes whose own shard cannot be told: 1,234 missing, 2 out of range (" in capsys.readouterr().out


def test_status_without_trouble_is_0(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["status"] = status(flow())
    assert main(["capture", "status", "--data", str(publisher.data)]) == 0
    assert "PROBLEM" not in capsys.readouterr().out


def test_a_problem_is_status_1(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["status"] = status(problems=["The database does not answer."])
    assert main(["capture", "status", "--data", str(publisher.data)]) == 1
    assert "PROBLEM    The database does not answer." in capsys.readouterr().out


def test_status_tells_of_roskvas_own_subscriber(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["status"] = status()
    notifier = StandIn(publisher.data, "notifier.sock")
    notifier.start()
    try:
        notifier.answers["status"] = {
            "shards": {}, "published": 1234, "invalidated": 2, "resets": 1, "losses": 0, "refused": 0,
            "rows": {"null": 3, "missing": 0}, "problems": ["The service does not answer."],
        }  # fmt: skip
        assert main(["capture", "status", "--data", str(publisher.data)]) == 1
    finally:
        notifier.close()
    text = capsys.readouterr().out
    assert "roskva     1,234 versions published, 2 invalidations, 1 resets, 3 rows: null" in text
    assert "PROBLEM    The service does not answer." in text


def test_many_flows_are_cut_short(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["status"] = status(*(flow(shard=number) for number in range(64)))
    assert main(["capture", "status", "--data", str(publisher.data)]) == 0
    text = capsys.readouterr().out
    assert text.count("\nflow ") == 20
    assert "and 44 more" in text
    assert main(["capture", "status", "--all", "--data", str(publisher.data)]) == 0
    assert capsys.readouterr().out.count("\nflow ") == 64


def test_status_as_json_has_shares_and_levels(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["status"] = status(flow(lag_bytes=50 * 2**20, behind_share=0.5))
    assert main(["capture", "status", "--json", "--data", str(publisher.data)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["log"]["share"] == 0.01
    assert (said["flows"][0]["lag_share"], said["flows"][0]["level"]) == (0.5, "warning")
    assert said["publisher"] == "db1"


def test_a_disk_that_gets_full_is_an_alarm_also_for_who_names_the_data_directory(
    publisher: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    log = {"oldest": "1/50", "end": "1/200", "bytes_behind": 90 * 2**20, "bytes_max": None, "disk_free_bytes": 10 * 2**20}
    publisher.answers["status"] = status(flow(lag_bytes=90 * 2**20, behind_share=0.9), log=log)
    assert main(["capture", "status", "--data", str(publisher.data)]) == 1
    assert "90% of what its disk has: 10.0 MiB are free  <- ALARM" in capsys.readouterr().out


def test_flows_are_lines_or_json(publisher: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    publisher.answers["flows"] = [flow(), flow(shard=1, state="alone", member=None)]
    assert main(["capture", "flows", "search", "--data", str(publisher.data)]) == 0
    assert "search/1: no process has it" in capsys.readouterr().out
    assert main(["capture", "flows", "--json", "--data", str(publisher.data)]) == 0
    assert [json.loads(line)["shard"] for line in capsys.readouterr().out.splitlines()] == [0, 1]
    assert [request.get("application") for request in publisher.asked] == ["search", None]
    publisher.answers["flows"] = []
    assert main(["capture", "flows", "--data", str(publisher.data)]) == 0
    assert "no such flow" in capsys.readouterr().out
