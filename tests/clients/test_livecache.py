"""LiveCache in TypeScript over real WebSockets, as its users meet it: the programs of docs/livecache.md, and the example service for Node.

Both run from the sources, without a build, against a small service (tests/client/gateway.py). tests/e2e has the example with the whole one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.client.gateway import FakeGateway, GatewayThread
from tests.clients.stdio import FROM_SOURCE, PACKAGE, ROOT

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def service() -> Iterator[FakeGateway]:
    with GatewayThread() as running:
        yield running


def test_the_programs_of_the_documentation_run(service: FakeGateway, tmp_path: Path) -> None:
    programs = re.findall(r"^```ts\n(.*?)^```", (ROOT / "docs" / "livecache.md").read_text(), re.MULTILINE | re.DOTALL)
    said = []
    for number, program in enumerate([*programs, programs[-1]]):
        path = tmp_path / f"program-{number}.mts"
        path.write_text(program.replace("http://127.0.0.1:8470", service.url))
        run = subprocess.run([*FROM_SOURCE, path], cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert run.returncode == 0, run.stderr
        said += run.stdout.splitlines()
    assert said == ["first draft", "first draft", "second draft", "{ name: 'doc:42' }", "{ name: 'doc:42' }"]
    assert {"me.state", "cache.db"} <= {path.name for path in tmp_path.iterdir()}


def test_the_test_of_the_readme_passes(tmp_path: Path) -> None:
    programs = re.findall(r"^```ts\n(.*?)^```", (PACKAGE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (program,) = [program for program in programs if "roskva/testing" in program]
    path = tmp_path / "program.mts"
    path.write_text(program)
    subprocess.run([*FROM_SOURCE, path], check=True, timeout=30)


def ask(url: str, text: str | None = None) -> tuple[int, str, str]:
    request = Request(url) if text is None else Request(url, data=text.encode(), method="PUT")
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers["X-Cache"]
    except HTTPError as error:
        return error.code, error.read().decode(), error.headers["X-Cache"]


def test_two_instances_of_the_example_service_follow_each_other(service: FakeGateway, tmp_path: Path) -> None:
    command = [*FROM_SOURCE, str(ROOT / "examples/documents-node/service.ts"), "--database", str(tmp_path / "documents.db")]
    environment = {**os.environ, "ROSKVA_URL": service.url}
    instances = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        one, other = [instance.stdout.readline().strip() for instance in instances if instance.stdout is not None]
        assert ask(f"{other}/documents/plan")[:2] == (404, "There is no such document.\n")
        for draft in ("first", "second"):
            assert ask(f"{one}/documents/plan", draft)[0] == 200
            deadline_s = time.monotonic() + 20
            while (shown := ask(f"{other}/documents/plan")) != (200, draft, "fresh"):
                assert time.monotonic() < deadline_s, shown
                time.sleep(0.02)
        assert [update for body in service.publishes for update in body["updates"]] == [
            {"object": "document:plan", "version": "1"},
            {"object": "document:plan", "version": "2"},
        ]
        assert ask(f"{one}/nothing")[0] == ask(f"{one}/documents/%ff")[0] == ask(f"{one}/documents/{'x' * 101}")[0] == 404
        assert ask(f"{one}/documents/long", "x" * 1_000_001)[0] == 413
    finally:
        for instance in instances:
            instance.send_signal(signal.SIGINT)
        codes = [instance.wait(timeout=15) for instance in instances]
        for instance in instances:
            instance.communicate()
    assert codes == [0, 0], "closed in order"
