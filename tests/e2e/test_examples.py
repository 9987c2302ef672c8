"""The examples and the quickstart, as they stand, against a real service: every command and every file of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.gateway.test_demo_page import ARGUMENTS, CHROMIUM

from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def until(true: Callable[[], bool], what: Callable[[], str], limit_s: float = 40.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.02)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


class Program:
    """A running program; what it says is kept in a file, since others may go on to write to it."""

    def __init__(self, output: Path, command: list[str], folder: Path = ROOT) -> None:
        self._output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def says(self, text: str) -> None:
        until(lambda: text in self.said(), lambda: f"{text!r} was not said, but:\n{self.said()}")

    def end(self) -> None:
        """With whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


@contextmanager
def programs(folder: Path) -> Iterator[Callable[..., Program]]:
    running: list[Program] = []

    def start(*command: str, folder: Path = folder) -> Program:
        running.append(Program(folder / f"output-{len(running)}", list(command), folder))
        return running[-1]

    try:
        yield start
    finally:
        for program in reversed(running):
            program.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_example_service_ends_when_asked_even_if_a_script_has_put_it_in_the_background(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/documents/service.py"), "--database", str(tmp_path / "documents.db")]
    command += ["--url", f"http://127.0.0.1:{free_port()}"]  # nobody is there, which keeps it from nothing that is asked of it here
    port = str(free_port())
    with programs(tmp_path) as start:
        example = start("sh", "-c", 'trap "" INT; exec "$@"', "sh", *command, "--port", port)
        example.says(f"http://127.0.0.1:{port}")  # not what its client says of Roskva's address, before it serves
        example.process.send_signal(number)
        assert example.process.wait(10) == 0, example.said()


class Played:
    """A page of the documentation: its files, its commands in one shell, and what they print, in order."""

    def __init__(self, text: str, folder: Path, start: Callable[..., Program]) -> None:
        self._blocks = re.findall(r"^```(sh|text|\w+ (?=\S))(\S*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        self._folder = folder
        for name in (".venv", "examples"):
            (folder / name).symlink_to(ROOT / name)
        self._shell = start("bash", "-e")
        self._read_chars = 0

    def play(self, until_block: str | None = None) -> None:
        """Up to and including the first block that holds this text; without one, to the end."""
        while self._blocks:
            kind, path, text = self._blocks.pop(0)
            if kind == "text":
                self._prints(text)
            elif kind != "sh":
                (self._folder / path).write_text(text)
            elif text != "make up\n":  # the service runs already, by that command: see conftest.py
                self._run(text)
            if until_block is not None and until_block in text:
                return
        assert until_block is None, f"there is no block with {until_block!r}"

    def said(self) -> str:
        return self._shell.said()

    def _run(self, text: str) -> None:
        ended = f"ended {len(self._blocks)} blocks before the last"
        self._shell.tell(f"{text}echo\necho '{ended}'\n")
        until(lambda: ended in self.said() or self._shell.process.poll() is not None, self.said)
        assert ended in self.said(), f"{text} failed:\n{self.said()}"

    def _prints(self, text: str) -> None:
        """At the beginning of a line, after what was printed before."""
        wanted = re.compile(f"^{re.escape(text.strip())}$", re.MULTILINE)
        until(lambda: wanted.search(self.said(), self._read_chars) is not None, lambda: f"{text!r} was not printed, but:\n{self.said()}")
        found = wanted.search(self.said(), self._read_chars)
        assert found is not None
        self._read_chars = found.end()


@pytest.mark.parametrize("kind", ["polling", "live"])
def test_both_kinds_of_contacts_show_what_was_changed(kind: str, service: Service, tmp_path: Path) -> None:
    port = str(free_port())
    asks, pause = (f" --service {service.url}", "") if kind == "live" else ("", " --every 0.2")
    text = (ROOT / "examples" / "contacts" / "README.md").read_text().partition("## What was changed")[0]
    text = text.replace("contacts/live/", f"contacts/{kind}/").replace("friends", f"friends-{uuid.uuid4().hex[:8]}")
    text = text.replace("backend.py", f"backend.py --port {port}{asks}").replace("8001", port)
    text = text.replace("client.py", f"client.py --backend http://127.0.0.1:{port}{asks}{pause}")
    with programs(tmp_path) as start:
        readme = Played(text, tmp_path, start)
        readme.play("backend.py")
        until(lambda: answers(f"http://127.0.0.1:{port}/requests"), readme.said)
        readme.play()


@pytest.mark.skipif(MOSQUITTO is None, reason="there is no mosquitto: `make test` installs one where it may")
def test_a_client_over_mqtt_learns_and_goes_on_when_the_broker_was_restarted(service: Service, tmp_path: Path) -> None:
    port, name = free_port(), f"lamp-{uuid.uuid4().hex[:8]}"
    example, broker_at = ROOT / "examples" / "mqtt", f"127.0.0.1:{port}"
    assert MOSQUITTO is not None
    with programs(tmp_path) as start:
        broker = start(MOSQUITTO, "-p", str(port))
        until(lambda: _listens(port), broker.said)
        gateway = start(sys.executable, str(example / "gateway.py"), "--data", str(service.data), "--broker", broker_at)
        gateway.says("carrying Roskva over MQTT")
        client = start(sys.executable, str(example / "client.py"), "--broker", broker_at, "--device", name, name)
        client.says(f"{name} unknown\n")
        assert service.run("publish", f"demo/{name}", "7").returncode == 0
        client.says(f"{name} 7\n")
        broker.end()
        broker = start(MOSQUITTO, "-p", str(port))
        assert service.run("publish", f"demo/{name}", "8").returncode == 0
        client.says(f"{name} 8\n")
        gone = gateway.said().count(f"{name} is gone")
        client.process.kill()  # its last will tells the gateway
        until(lambda: gateway.said().count(f"{name} is gone") > gone, gateway.said)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Chrome: `make test` installs one where it may")
async def test_the_quickstart_goes_from_nothing_to_a_live_page(service: Service, tmp_path: Path) -> None:
    from playwright.async_api import async_playwright

    port = str(free_port())
    page = f"http://127.0.0.1:{port}/"
    text = (ROOT / "docs" / "quickstart.md").read_text().replace("http://127.0.0.1:8470", service.url).replace("8001", port)
    text = text.replace("hello", f"hello-{uuid.uuid4().hex[:8]}")  # others use this service, too
    with programs(tmp_path) as start:
        quickstart = Played(text, tmp_path, start)
        quickstart.play("try/backend.py &")
        assert len(re.findall(r"^hello-\w+ is at 10$", quickstart.said(), re.MULTILINE)) == 1
        until(lambda: answers(f"{page}note"), quickstart.said)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            context = await browser.new_context()  # windows of one browser: they share a connection
            windows = [await context.new_page() for _ in range(2)]
            for window in windows:
                await window.goto(page)
                await window.get_by_text("Nothing yet.").wait_for()
            quickstart.play("version 2")
            for window in windows:
                await window.get_by_text("Hello, live page.").wait_for()
            await windows[0].close()
            quickstart.play()
            windows[0] = await context.new_page()
            await windows[0].goto(page)
            for window in windows:
                await window.get_by_text("Still live.").wait_for()
            await browser.close()


def test_the_first_command_of_the_quickstart_is_how_the_service_of_these_tests_is_started(service: Service) -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text()
    assert re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0] == "make up\n"
    assert service.command[:3] == ["make", "--no-print-directory", "up"]
