"""The service as a new user meets it: `roskva up`, `watch` in one terminal, `publish` in another."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import roskva
from tests.clients.stdio import FROM_SOURCE

from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


@contextmanager
def watching(service: Service, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "roskva", "watch", "--json", *arguments],
        env={**os.environ, "ROSKVA_URL": service.url},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=10)


def test_watch_shows_what_publish_publishes(service: Service) -> None:
    name = f"hello-{uuid.uuid4().hex[:8]}"
    with watching(service, f"demo/{name}") as watch:
        assert watch.stdout is not None
        first = json.loads(watch.stdout.readline())
        assert first["object"] == f"demo/{name}"
        assert first["version"] is None  # nothing was published yet: unknown
        published = service.run("publish", f"demo/{name}", "7")
        assert published.returncode == 0, published.stderr
        assert json.loads(watch.stdout.readline())["version"] == 7


def test_the_python_of_the_readme_works(service: Service, tmp_path: Path) -> None:
    program = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    program = program.replace("http://127.0.0.1:8470", service.url)
    running = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"hello 7\n"
    finally:
        running.kill()
        running.communicate()


async def test_the_latest_version_reaches_every_registered_client_and_they_are_in_sync(service: Service) -> None:
    name = f"shared-{uuid.uuid4().hex[:8]}"
    heard: list[list[int | None]] = [[] for _ in range(3)]

    async def follow(index: int) -> None:
        async with roskva.Client(service.url, application="demo") as client:
            await client.register(name)
            async for notification in client:
                heard[index].append(notification.version)
                if notification.version == 20:
                    break
            client.acknowledge(notification)
            await _until(lambda: client.in_sync)

    async with roskva.Publisher(service.url, application="demo") as publisher:
        followers = [asyncio.create_task(follow(index)) for index in range(3)]
        for version in range(1, 21):
            await publisher.publish(name, version)
        await asyncio.wait_for(asyncio.gather(*followers), 60)
    for versions in heard:
        known = [version for version in versions if version is not None]
        assert known == sorted(set(known)), "no version twice, none after a later one"


async def test_fetch_then_register_has_no_gap_and_no_extra_fetch(service: Service) -> None:
    name = f"held-{uuid.uuid4().hex[:8]}"
    async with roskva.Publisher(service.url, application="demo") as publisher:
        await publisher.publish(name, 5)
        await _until_known(service, name, 5)
        async with roskva.Client(service.url, application="demo") as client:
            await client.register(name, version=5)
            await client.synced(timeout=30)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(aiter(client)), 1.0)
            await publisher.publish(name, 6)
            notification = await asyncio.wait_for(anext(aiter(client)), 20)
            assert notification.version == 6


async def test_a_client_with_state_goes_on_under_its_id_and_hears_only_what_it_missed(service: Service, tmp_path: Path) -> None:
    name = f"state-{uuid.uuid4().hex[:8]}"
    state = tmp_path / "me.state"
    async with roskva.Publisher(service.url, application="demo") as publisher:
        async with roskva.Client(service.url, application="demo", state=state) as client:
            await client.register(name)
            notification = await asyncio.wait_for(anext(aiter(client)), 20)
            assert notification.unknown
            client.acknowledge(notification)
            await _until(lambda: client.in_sync)
        for version in range(1, 51):
            await publisher.publish(name, version)
        await _until_known(service, name, 50)
        async with roskva.Client(service.url, application="demo", state=state) as client:
            await client.register(name)
            notification = await asyncio.wait_for(anext(aiter(client)), 20)
            assert notification.version == 50
            client.acknowledge(notification)
            await _until(lambda: client.in_sync)


async def test_a_live_cache_is_fresh_after_a_restart_without_a_fetch_and_follows_changes(service: Service, tmp_path: Path) -> None:
    name = f"cached-{uuid.uuid4().hex[:8]}"
    versions = {name: 5}
    fetches: list[str] = []

    async def fetch(asked: str) -> tuple[str, int]:
        fetches.append(asked)
        return f"{asked}@{versions[asked]}", versions[asked]

    async with roskva.Publisher(service.url, application="demo") as publisher:
        await publisher.publish(name, 5)
        await _until_known(service, name, 5)
        for _ in range(2):
            async with (
                roskva.Client(service.url, application="demo", state=tmp_path / "me.state") as client,
                roskva.LiveCache(
                    client, fetch, versioned=True, store=roskva.SqliteStore(tmp_path / "cache.db"), start_wait_s=20.0
                ) as cache,
            ):
                assert await asyncio.gather(*(cache.get(name) for _ in range(10))) == [f"{name}@5"] * 10
                await _until(lambda cache=cache: cache.state(name).state == "fresh")  # type: ignore[misc]
        assert fetches == [name], "one fetch in two runs"
        async with (
            roskva.Client(service.url, application="demo", state=tmp_path / "me.state") as client,
            roskva.LiveCache(client, fetch, versioned=True, store=roskva.SqliteStore(tmp_path / "cache.db"), start_wait_s=20.0) as cache,
        ):
            versions[name] = 6
            await publisher.publish(name, 6)
            await _until(lambda: cache.peek(name) == f"{name}@6")
            await _until(lambda: client.in_sync)
            assert await cache.get(name) == f"{name}@6"
        assert fetches == [name, name]


async def test_a_client_that_signs_out_is_gone_at_the_service_and_here(service: Service, tmp_path: Path) -> None:
    name, state = f"gone-{uuid.uuid4().hex[:8]}", tmp_path / "me.state"
    async with roskva.Client(service.url, application="demo", state=state) as client:
        await client.register(name)
        notification = await asyncio.wait_for(anext(aiter(client)), 20)
        client.acknowledge(notification)
        await _until(lambda: client.in_sync)
        kept = state.read_bytes()
        await client.forget(timeout=20)
    assert not state.exists()
    state.write_bytes(kept)  # a thief's copy: its id is nobody's any more, so the registration is a new one, and is answered
    async with roskva.Client(service.url, application="demo", state=state) as client:
        await client.register(name)
        assert (await asyncio.wait_for(anext(aiter(client)), 20)).unknown


EXAMPLES = {
    "python": [sys.executable, str(ROOT / "examples/documents/service.py")],
    "typescript": [*FROM_SOURCE, str(ROOT / "examples/documents-node/service.ts")],
}


@pytest.mark.parametrize("languages", [("python", "python"), ("typescript", "typescript")], ids="-".join)
def test_instances_of_the_example_service_follow_each_other(languages: tuple[str, str], service: Service, tmp_path: Path) -> None:
    commands = [[*EXAMPLES[language], "--database", str(tmp_path / "documents.db")] for language in languages]
    environment = {**os.environ, "ROSKVA_URL": service.url}
    instances = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        urls = [instance.stdout.readline().strip() for instance in instances if instance.stdout is not None]
        name = f"plan-{uuid.uuid4().hex[:8]}"
        writer, reader = [f"{url}/documents/{name}" for url in urls]
        for draft in ("first", "second"):
            with urlopen(Request(writer, data=draft.encode(), method="PUT"), timeout=10) as answer:
                assert answer.status == 200
            for url in (writer, reader):
                _shown(url, draft)
        fetches = {_get(reader)[2] for _ in range(20)}
        assert len(fetches) == 1, "twenty answers from memory"
    finally:
        for instance in instances:
            instance.send_signal(signal.SIGINT)
        for instance in instances:
            instance.communicate(timeout=15)


def _get(url: str) -> tuple[str, str, str]:
    with urlopen(url, timeout=10) as answer:
        return answer.read().decode(), answer.headers["X-Cache"], answer.headers["X-Fetches"]


def _shown(url: str, text: str) -> None:
    deadline_s = time.monotonic() + 20
    while _get(url)[:2] != (text, "fresh"):
        assert time.monotonic() < deadline_s, f"{text} was not shown at {url}"
        time.sleep(0.05)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.05)


async def _until_known(service: Service, name: str, version: int) -> None:
    """Until the Matcher has the version: what a later registration then reads."""
    async with asyncio.timeout(30):
        while True:
            try:
                known = await asyncio.to_thread(service.get, f"/v1/objects/demo/{name}")
            except OSError:
                known = {}
            if str(known.get("version")) == str(version):
                return
            await asyncio.sleep(0.1)


def test_what_is_malformed_becomes_a_dead_letter_that_the_cli_shows(service: Service) -> None:
    marker = uuid.uuid4().hex
    body = json.dumps({"application": "demo", "raw": [{"object": marker, "version": "seven"}]}).encode()
    request = Request(service.url + "/v1/publish", data=body, headers={"Content-Type": "application/json"})
    with urlopen(request, timeout=10) as answer:
        assert json.loads(answer.read())["results"] == [{"ok": True}]
    deadline_s = time.monotonic() + 30
    while True:
        shown = service.run("dead-letters", "--json")
        assert shown.returncode == 0, shown.stderr
        if marker in shown.stdout:
            break
        assert time.monotonic() < deadline_s, "the malformed update did not reach the dead letters"
        time.sleep(0.3)
    assert "invalid-version" in shown.stdout


def test_what_the_service_refuses_is_one_clear_line(service: Service) -> None:
    refused = service.run("publish", "nobody/x", "1")
    assert refused.returncode == 1
    assert "There is no application 'nobody' here." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_doctor_knows_who_holds_the_port(service: Service) -> None:
    looked = service.run("doctor", "--json", "--data", str(service.data), "--listen", service.url.removeprefix("http://"))
    states = {check["name"]: check for check in json.loads(looked.stdout)}
    assert states["port"]["state"] == "ok"
    assert "Roskva" in states["port"]["what"]
    assert states["manifest"]["state"] == "ok"


def test_status_shows_the_pipeline_at_work(service: Service) -> None:
    shown = service.run("status", "--json")
    assert shown.returncode == 0, shown.stderr
    status = json.loads(shown.stdout)
    assert status["pipeline"]["alive"] is True
    assert set(status["pipeline"]["lag"]) == {"updates", "registrations", "fan-outs"}
