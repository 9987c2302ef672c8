"""Which key a command shows, and to whom (cli/settings.py)."""

from __future__ import annotations

import argparse
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.cli import main
from roskva.cli.http import get_json
from roskva.cli.settings import as_operator
from roskva.keys import administration, load_keys


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ROSKVA_ADMIN_KEY", "ROSKVA_DATA", "ROSKVA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    load_keys(tmp_path / "roskva-data")
    return tmp_path / "roskva-data"


NOTHING = argparse.Namespace()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8470", "http://localhost:1", "http://[::1]:8470", "https://127.1.2.3"])
def test_the_key_of_this_machine_is_shown_to_this_machine(data: Path, url: str) -> None:
    assert as_operator(url, NOTHING) == administration(data) != {}


@pytest.mark.parametrize(
    "url", ["http://10.0.0.7:8470", "http://gateway-1:8470", "https://127.0.0.1.example", "http://0.0.0.0:8470", "http://[::2]:1"]
)
def test_and_to_no_other(data: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_operator(url, NOTHING) == {}
    monkeypatch.setenv("ROSKVA_ADMIN_KEY", "theirs")
    assert as_operator(url, NOTHING) == {"Authorization": "Bearer theirs"}


def test_where_the_data_directory_is_found(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = load_keys(tmp_path / "other").admin
    assert as_operator("http://127.0.0.1:1", argparse.Namespace(data=str(tmp_path / "other")))["Authorization"].endswith(other)
    (tmp_path / "roskva.toml").write_text('data = "other"\n')
    assert as_operator("http://127.0.0.1:1", NOTHING)["Authorization"].endswith(other)
    (tmp_path / "roskva.toml").write_text("nonsense")
    assert as_operator("http://127.0.0.1:1", NOTHING) == {}
    monkeypatch.setenv("ROSKVA_ADMIN_KEY", "mine")
    assert as_operator("http://127.0.0.1:1", NOTHING) == {"Authorization": "Bearer mine"}


@pytest.fixture
def redirecting() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A service that points elsewhere; and what was shown there."""
    seen: list[tuple[str, str | None]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            self.send_response(302 if self.path == "/v1/status" else 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


def test_whoever_an_answer_points_to_is_not_shown_the_key(redirecting: tuple[str, list[tuple[str, str | None]]]) -> None:
    url, seen = redirecting
    get_json(f"{url}/v1/status", shown={"Authorization": "Bearer mine"})
    assert seen == [("/v1/status", "Bearer mine"), ("/elsewhere", None)]


def test_commands_show_it(data: Path, redirecting: tuple[str, list[tuple[str, str | None]]], capsys: pytest.CaptureFixture[str]) -> None:
    url, seen = redirecting
    main(["status", "--url", url])
    main(["dead-letters", "--url", url])
    assert [shown for path, shown in seen if path != "/elsewhere"] == [administration(data)["Authorization"]] * 2
