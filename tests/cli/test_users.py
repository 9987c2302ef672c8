"""`roskva user clients` and `erase`, and the keys and credentials that `publish` and `watch` show. Against a stand-in for the service."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roskva.cli import main
from roskva.cli.talk import credential_of
from roskva.errors import BadRequest

CLIENT = {"client": "c1", "device": "phone", "registrations": 2, "seen_day": "2026-11-16", "online": True}


class Service:
    """Answers in the order of `answers`; notes what was asked, and which key was shown."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.asked: list[tuple[str, Any, str | None]] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service.asked.append((self.path, json.loads(body) if body else None, self.headers.get("Authorization")))
                answer = json.dumps(service.answers.pop(0)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROSKVA_ADMIN_KEY", "admin")
    monkeypatch.delenv("ROSKVA_PUBLISH_KEY", raising=False)
    standing_in = Service()
    yield standing_in
    standing_in.server.shutdown()
    standing_in.server.server_close()


def test_clients_are_read_to_the_last_page(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers = [
        {"clients": [CLIENT], "next": "a"},
        {"clients": [], "next": "b"},
        {"clients": [CLIENT | {"online": None}], "next": ""},
    ]
    assert main(["user", "clients", "shop", "ann/1", "--url", service.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [("online" in line, "only its owner" in line) for line in lines] == [(True, False), (True, True)]
    assert [path for path, _, _ in service.asked] == [
        f"/v1/inspect/users/shop/ann%2F1?limit=1000&after={after}" for after in ("", "a", "b")
    ]
    assert {shown for _, _, shown in service.asked} == {"Bearer admin"}
    service.answers = [{"clients": [CLIENT], "next": ""}]
    assert main(["user", "clients", "shop", "ann", "--url", service.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == CLIENT
    service.answers = [{"clients": [], "next": ""}]
    assert main(["user", "clients", "shop", "ann", "--url", service.url]) == 0
    assert "no clients" in capsys.readouterr().err


def test_erase_goes_on_to_the_end_and_says_what_failed(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers = [{"erased": 2, "failed": 0, "next": "x"}, {"erased": 1, "failed": 0, "next": ""}]
    assert main(["user", "erase", "shop", "ann", "--yes", "--url", service.url]) == 0
    assert "3 clients" in capsys.readouterr().out
    assert [body["after"] for _, body, _ in service.asked] == ["", "x"]
    service.answers = [{"erased": 2, "failed": 4, "next": ""}]
    assert main(["user", "erase", "shop", "ann", "--yes", "--url", service.url, "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == {"application": "shop", "user": "ann", "erased": 2, "failed": 4}
    assert "Say it again" in said.err


def test_erase_asks_first(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "erase", "shop", "ann", "--url", service.url]) == 1
    assert "--yes" in capsys.readouterr().err
    assert service.asked == []


@pytest.mark.parametrize(("given", "shown"), [(["--key", "rk_1"], "Bearer rk_1"), ([], "Bearer admin")])
def test_publish_shows_a_key(service: Service, given: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers = [{"results": [{"ok": True}]}]
    assert main(["publish", "shop/a", "1", "--url", service.url, *given]) == 0
    assert service.asked[0][2] == shown


def test_a_key_may_stand_in_a_file_where_nobody_reads_it_from_the_command_line(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key"
    file.write_text("rk_2\n")
    service.answers = [{"results": [{"ok": True}]}, {"time_ms": 1}, {"results": [{"ok": True}]}]
    assert main(["publish", "shop/a", "1", "--url", service.url, "--key", f"@{file}"]) == 0
    assert main(["invalidate", "shop/a", "--no-wait", "--url", service.url, "--key", f"@{file}"]) == 0
    monkeypatch.setenv("ROSKVA_PUBLISH_KEY", f"@{file}")
    assert main(["publish", "shop/a", "1", "--url", service.url]) == 0
    assert [shown for _, _, shown in service.asked] == ["Bearer rk_2"] * 3
    at = ["--url", service.url]
    for command in (["publish", "shop/a", "1", *at], ["invalidate", "shop/a", "--no-wait", *at], ["conformance", service.url]):
        capsys.readouterr()
        assert main([*command, "--key", "@/nowhere/key"]) == 1
        assert "/nowhere/key cannot be read" in capsys.readouterr().err
    assert len(service.asked) == 3


@pytest.mark.parametrize("command", ["publish", "invalidate", "watch", "conformance"])
def test_help_says_that_others_read_command_lines(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "what stands on a command line other users of this machine can read: use the variable or a file" in said
    assert "@FILE" in said


def test_a_credential_is_a_text_or_a_file_that_is_read_again(tmp_path: Path) -> None:
    assert credential_of("") is None
    assert credential_of("ey.jwt") == "ey.jwt"
    file = tmp_path / "credential"
    file.write_text("one\n")
    read = credential_of(f"@{file}")
    assert callable(read)
    file.write_text("two\n")
    assert read() == "two"
    with pytest.raises(BadRequest, match="nowhere"):
        credential_of("@/nowhere")
