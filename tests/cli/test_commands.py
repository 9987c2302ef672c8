"""The commands as a person types them: parsing, help, messages, exit status. Against a stand-in for the service."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roskva.cli import main
from roskva.cli.main import build_parser
from roskva.cli.talk import Change, read_change, split_object, wishes
from roskva.errors import RoskvaError

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens
COMMANDS = [
    "up",
    "gateway",
    "pipeline",
    "doctor",
    "publish",
    "watch",
    "status",
    "latency",
    "dead-letters",
    "drop",
    "invalidate",
    "reset",
    "conformance",
    "load",
    "app",
    "user",
]

STATUS = {
    "version": "0.1.0",
    "members": [{"id": "a1", "address": "127.0.0.1:8470"}],
    "sessions": 1234,
    "pipeline": {"alive": True, "batch": 5, "last_batch_age_s": 0.25, "lag": {"updates": {"0": 7, "1": 0}}},
    "feed": {"updates": {"records": 12}},
}
LETTER = {
    "topic": "updates", "partition": 1, "offset": 9, "time_ms": 0, "application": "demo", "reason": "no version", "value": "{}",
}  # fmt: skip


@pytest.fixture
def service() -> Iterator[Callable[[dict[str, object]], str]]:
    """Serves the given answers by path; anything else is a 404 in the service's own form."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(answers: dict[str, object]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path in answers
                body = json.dumps(answers.get(self.path, {"error": {"code": "x", "message": "No such path."}})).encode()
                self.send_response(200 if known else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def failure(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed on stderr: one line, no traceback."""
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1, text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"  roskva {command}" in text


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"    {command}" in text for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["status", "--nonsense"], ["watch"], ["watch", "demo/a", "--count", "0"], ["publish"]]
)
def test_misuse_is_status_2_and_says_where_to_read(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "--help" in failure(capsys)


@pytest.mark.parametrize("command", ["up", "gateway"])
def test_other_machines_are_served_only_on_purpose(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused at once, before Spark, a process or the data directory."""
    assert main([command, "--listen", "0.0.0.0:8471", "--data", str(tmp_path / "data")]) == 2
    said = failure(capsys)
    assert "listen is 0.0.0.0:8471" in said
    assert "roskva app key add demo" in said
    assert "--insecure" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["up", "gateway", "pipeline", "doctor"])
def test_a_wrong_setting_is_status_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--set", "partition=4"]) == 2
    assert "Did you mean 'partitions'?" in failure(capsys)
    assert main([command, "--set", "partitions"]) == 2
    assert "NAME=VALUE" in failure(capsys)
    assert main([command, "--config", "/nowhere/roskva.toml"]) == 2
    assert "/nowhere/roskva.toml" in failure(capsys)


@pytest.mark.parametrize("arguments", [["status"], ["dead-letters"], ["status", "--json"]], ids=lambda arguments: " ".join(arguments))
def test_a_service_that_does_not_answer_is_one_clear_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--url", NOBODY]) == 1
    assert "roskva up" in failure(capsys)


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == 1
    assert "http://127.0.0.1:8470" in failure(capsys)


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSKVA_URL", "http://elsewhere:1")
    assert build_parser().parse_args(["status"]).url == "http://elsewhere:1"
    assert build_parser().parse_args(["status", "--url", "http://here:2"]).url == "http://here:2"


def test_status_is_a_small_table(service: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", service({"/v1/status": STATUS})]) == 0
    text = capsys.readouterr().out
    for part in ("0.1.0", "a1 at 127.0.0.1:8470", "1,234", "finished batch 5 0.2 s ago", "updates: 7 records behind", "records 12"):
        assert part in text, text


def test_status_as_json_is_what_the_service_said(service: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--url", service({"/v1/status": STATUS})]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_status_of_a_dead_pipeline_is_1(service: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    dead = STATUS | {"pipeline": {"alive": False}}
    assert main(["status", "--url", service({"/v1/status": dead})]) == 1
    assert "not running" in capsys.readouterr().out


def test_what_the_service_refuses_is_told_in_its_own_words(service: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", service({})]) == 1
    assert failure(capsys) == "roskva: No such path.\n"


def test_dead_letters_are_read_page_by_page(service: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    pages: dict[str, object] = {
        "/v1/dead-letters?limit=500": {"letters": [LETTER], "next": "c1"},
        "/v1/dead-letters?after=c1&limit=500": {"letters": [LETTER | {"offset": 10}], "next": "c2"},
        "/v1/dead-letters?after=c2&limit=500": {"letters": [], "next": "c2"},
    }
    url = service(pages)
    assert main(["dead-letters", "--json", "--url", url]) == 0
    assert [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()] == [9, 10]
    assert main(["dead-letters", "--limit", "1", "--url", url]) == 0
    text = capsys.readouterr().out
    assert "updates/1@9" in text
    assert "no version" in text
    assert "@10" not in text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["publish", "hello", "7"], "APPLICATION/NAME"),
        (["publish", "demo/", "7"], "1 to 128"),
        (["publish", "Demo!/x", "7"], "application"),
        (["publish", "demo/" + "x" * 129, "7"], "129 bytes"),
        (["publish", "demo/x", "-0"], "version"),
        (["publish", "demo/x", "1.5"], "version"),
        (["publish", "demo/x", str(2**63)], "version"),
        (["publish", "demo/x"], "VERSION"),
        (["publish", "-", "7"], "- alone"),
        (["publish", "demo/x", "7", "--source", "s" * 129], "device"),
        (["watch", "hello"], "APPLICATION/NAME"),
        (["watch", "a/x", "b/x", "--state", "f"], "one application"),
    ],
)  # fmt: skip
def test_bad_input_never_leaves_the_machine(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    if arguments[2:3] == ["-0"]:
        arguments = [*arguments[:2], "--", arguments[2]]
    assert main([*arguments[:1], "--url", NOBODY, *arguments[1:]]) == 1
    assert part in failure(capsys)


def test_names_may_hold_slashes_and_bytes() -> None:
    assert split_object("demo/a/b") == ("demo", "a/b")
    assert split_object("demo/base64:AP8") == ("demo", "base64:AP8")
    assert split_object("demo/base64:aGVsbG8") == ("demo", "hello")
    assert wishes(["demo/a", "shop/b", "demo/c", "demo/a"]) == {"demo": ["a", "c"], "shop": ["b"]}


def test_lines_are_read_as_a_whole_or_refused() -> None:
    line = '{"object": "demo/a", "version": "9223372036854775807", "source": "phone"}'
    assert read_change(line, 3, "") == Change("demo", "a", 2**63 - 1, "phone", 3)
    assert read_change('{"object": "demo/a", "version": 1}', 1, "desk").source == "desk"


@pytest.mark.parametrize(
    "line",
    [
        "no", "[]", "7", "{}", '{"object": "demo/a"}', '{"object": 7, "version": 1}', '{"object": "a", "version": 1}',
        '{"object": "demo/a", "version": true}', '{"object": "demo/a", "version": 1.5}', '{"object": "demo/a", "version": 1, "x": 2}',
        '{"object": "demo/a", "version": 1, "source": 5}',
    ],
)  # fmt: skip
def test_lines_that_do_not_fit_are_refused(line: str) -> None:
    with pytest.raises(RoskvaError):
        read_change(line, 1, "")


def test_python_m_roskva_is_the_command_line_and_loads_no_spark() -> None:
    code = "import sys; from roskva.cli.main import build_parser; build_parser(); print('pyspark' in sys.modules, 'aiohttp' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["False", "False"]
    done = subprocess.run([sys.executable, "-m", "roskva", "--version"], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("roskva ")
