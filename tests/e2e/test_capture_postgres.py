"""examples/postgres as its README tells it: an UPDATE in psql, and the open page changes. Real Postgres, real service, real browser."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.capture.stores.servers_postgres import PostgresServer, binaries, running_postgres
from tests.gateway.test_demo_page import ARGUMENTS, CHROMIUM

from .service import Service, children_of, command_of
from .test_examples import Program, answers, free_port, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/postgres"
WAIT_MS = 40_000


class Shop:
    """The example's database, its settings file and `roskva capture`, on free ports."""

    def __init__(self, server: PostgresServer, service: Service, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.config = folder / "capture.toml"
        text = (EXAMPLE / "capture.toml").read_text()
        for before, after in (
            ("port=5433", f"port={server.port}"),
            ("try/capture", str(folder / "data")),
            ("http://127.0.0.1:8470", service.url),
            ("[publisher]", f'[publisher]\nlisten = "127.0.0.1:{free_port()}"\ndatamarker_period_s = 1'),
        ):
            assert before in text
            text = text.replace(before, after)
        self.config.write_text(text)
        self.command = [sys.executable, "-m", "roskva", "capture"]
        self.program: Program | None = None

    def psql(self, *arguments: str) -> None:
        reach = ["-h", "127.0.0.1", "-p", str(self.server.port), "-U", "postgres", "-v", "ON_ERROR_STOP=1"]
        command = [str(binaries() / "psql"), *reach, "shop", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments, "--config", str(config or self.config)], capture_output=True, text=True, timeout=60, check=False
        )

    def start(self) -> None:
        self.program = Program(self.folder / "capture.out", [*self.command, "--config", str(self.config)])
        self.program.says("Ctrl-C stops it.")

    def kill(self, part: str) -> None:
        assert self.program is not None
        (pid,) = [pid for pid in children_of(self.program.process.pid) if part in command_of(pid)]
        os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.rglob("*.log")))


@pytest.fixture(scope="module")
def shop(service: Service) -> Iterator[Shop]:
    folder = Path(tempfile.mkdtemp(prefix="roskva-shop-"))
    try:
        with running_postgres(max_slot_wal_keep_size="512MB") as server:
            server.create_database("shop")
            shop = Shop(server, service, folder)
            shop.psql("-f", str(EXAMPLE / "schema.sql"))
            yield shop
            if shop.program is not None:
                shop.program.end()
                assert shop.program.process.wait(15) == 0, shop.log()
    finally:
        shutil.rmtree(folder)


def test_check_says_what_is_there_and_what_capture_will_make(shop: Shop) -> None:
    done = shop.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok    wal_level is logical" in done.stdout
    assert "ok    rows of documents become objects" in done.stdout
    assert "soon  There is no slot 'roskva'" in done.stdout
    assert "takes versions of demo" in done.stdout
    wrong = shop.config.with_name("wrong.toml")
    text = shop.config.read_text().replace("document:{id}", "document:{ident}")
    wrong.write_text(text.replace('table = "documents"', 'table = ["documents", "orders"]'))
    done = shop.run("check", config=wrong)
    assert done.returncode == 1
    assert "FAIL  the columns of the mapping of documents: ident" in done.stdout
    assert "FAIL  the table orders of the mapping is there" in done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Chrome: `make test` installs one where it may")
def test_an_update_in_psql_changes_the_open_page(shop: Shop, service: Service) -> None:
    playwright_api = pytest.importorskip("playwright.sync_api")
    shop.start()
    url = f"http://127.0.0.1:{free_port()}"
    served = Program(
        shop.folder / "page.out",
        [
            sys.executable,
            str(EXAMPLE / "page.py"),
            "--dsn",
            shop.server.dsn("shop"),
            "--service",
            service.url,
            "--port",
            url.rpartition(":")[2],
        ],
    )
    try:
        until(lambda: answers(url), served.said)
        with playwright_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            page = browser.new_page()
            page.goto(url)
            shows(page, "1: A plan", "2: Another plan")

            shop.psql("-c", "UPDATE documents SET title = 'A better plan' WHERE id = 1")
            shows(page, "1: A better plan", "2: Another plan")
            shop.psql("-c", "INSERT INTO documents VALUES (3, 'A third')", "-c", "DELETE FROM documents WHERE id = 2")
            shows(page, "1: A better plan", "3: A third")

            # While parts of capture die, the database goes on, and the page learns of it.
            for part in ("publisher", "notifier"):
                shop.kill(part)
                shop.psql("-c", f"UPDATE documents SET title = 'while the {part} was down' WHERE id = 3")
                shows(page, "1: A better plan", f"3: while the {part} was down")
            browser.close()
    finally:
        served.end()

    done = shop.run("status", "--json")
    assert done.returncode == 0, done.stdout + shop.log()
    status = json.loads(done.stdout)
    assert [flow["application"] for flow in status["flows"]] == ["roskva"]
    assert status["roskva"]["problems"] == []
    assert shop.run("check").returncode == 0


def shows(page: Page, *rows: str) -> None:
    page.wait_for_function(
        "rows => [...document.querySelectorAll('li')].map((row) => row.textContent).join() === rows", arg=",".join(rows), timeout=WAIT_MS
    )
