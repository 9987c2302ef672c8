"""Near a full disk what brings new data is refused, by name, until there is room again; what must go on does (gateway/disk.py)."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from roskva.gateway.disk import DiskWatch, free_bytes
from roskva.gateway.service import Gateway
from roskva.telemetry.metrics import Metrics
from tests.gateway.conftest import Start
from tests.gateway.talking import channel_url, handshake, hear_until, say
from tests.gateway.test_http import get

MIB = 1 << 20


def watch(tmp_path: Path, least: int = 80 * MIB) -> tuple[DiskWatch, list[str], Metrics]:
    told: list[str] = []
    metrics = Metrics()
    return DiskWatch(tmp_path, least, metrics, told.append), told, metrics


def test_it_refuses_below_the_limit_and_resumes_above_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk, told, _ = watch(tmp_path)
    with caplog.at_level(logging.WARNING):
        for free_mib in (100, 80, 79, 10, 79, 80, 89, 90, 80, 79):
            disk.judge(free_mib * MIB)
    assert [bool(reason) for reason in told] == [True, False, True]  # each change once
    assert "79 MiB left; 80 MiB must stay free" in told[0]
    assert len([record for record in caplog.records if "are refused until" in record.message]) == 2
    assert len([record for record in caplog.records if "accepted" in record.message and "again" in record.message]) == 1


def test_a_limit_of_nothing_never_refuses(tmp_path: Path) -> None:
    disk, told, _ = watch(tmp_path, least=0)
    disk.judge(0)
    assert told == []
    disk.check()


async def test_a_look_that_fails_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(path: Path) -> int:
        raise OSError("hung")

    told: list[str] = []
    disk = DiskWatch(tmp_path, MIB, Metrics(), told.append, look=broken)
    disk.judge(0)
    await disk.look()
    await disk.look()
    assert disk.full
    assert len([record for record in caplog.records if "cannot be looked at" in record.message]) == 1


def test_a_deleted_directory_is_on_the_disk_of_what_is_above_it(tmp_path: Path) -> None:
    found = free_bytes(tmp_path / "gone" / "deep")
    assert abs(found - free_bytes(tmp_path)) < 1 << 30


async def publish(http: aiohttp.ClientSession, gateway: Gateway, version: int) -> tuple[int, dict[str, Any], str | None]:
    body = {"application": "demo", "object": "a", "version": version}
    async with http.post(gateway.url + "/v1/publish", json=body) as answer:
        return answer.status, await answer.json(), answer.headers.get("Retry-After")


async def test_what_is_refused_and_what_goes_on(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        token = await handshake(socket)
        await say(socket, token=token, register=[{"op": 1, "object": "kept"}])
        await hear_until(socket, "unsettled")
        gateway.disk.stop()
        gateway.disk.judge(1)

        status, answer, retry_after = await publish(http, gateway, 1)
        assert (status, answer["error"]["code"], answer["error"]["transient"], retry_after) == (503, "disk-full", True, "10")
        await say(socket, token=token, register=[{"op": 2, "object": "more"}], unregister=[{"op": 3, "object": "kept"}])
        (refused,) = (await hear_until(socket, "status"))["status"]
        assert (refused["object"], refused["state"], refused["transient"], refused["code"]) == ("more", "failed", True, "disk-full")
        await say(socket, token=token, sync={"op": 4, "objects": [{"object": "more"}]})
        error = (await hear_until(socket, "error"))["error"]
        assert (error["code"], error["transient"], error.get("retry_after_s", 0)) == (
            "disk-full",
            True,
            0,
        )  # no pause: acknowledgements come
        async with asyncio.timeout(10):
            while gateway.registrar.counters.registrations < 2:  # the unregistration
                await asyncio.sleep(0.01)
        async with http.ws_connect(channel_url(gateway)) as another:
            await handshake(another, "another")

        state = (await get(http, gateway.url + "/v1/status"))[1]["disk"]
        assert state == {"free_bytes": 1, "free_bytes_min": gateway.settings.disk_free_bytes_min, "refusing": True}
        async with http.get(gateway.url + "/metrics") as metrics:
            text = await metrics.text()
        assert f'roskva_disk_full{{gateway="{gateway.name}"}} 1.0' in text
        assert f'roskva_publishes_disk_full_total{{gateway="{gateway.name}"}} 1.0' in text
        assert f'roskva_registrar_total{{gateway="{gateway.name}",milestone="disk_full"}} 2.0' in text

        gateway.disk.judge(1 << 40)
        assert (await publish(http, gateway, 1))[0] == 200
        await say(socket, token=token, register=[{"op": 5, "object": "more"}])
        async with asyncio.timeout(10):
            while gateway.registrar.counters.registrations < 3:
                await asyncio.sleep(0.01)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={64 * MIB}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_on_a_real_small_disk_it_is_refused_and_resumes_by_itself(
    small_disk: Path, start: Start, http: aiohttp.ClientSession
) -> None:
    gateway = await start(data=small_disk / "data", disk_free_bytes_min=16 * MIB)
    try:
        assert (await publish(http, gateway, 1))[0] == 200
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(free_bytes(small_disk) - 8 * MIB))
        await _until(http, gateway, 503)
        ballast.unlink()
        await _until(http, gateway, 200)
    finally:
        await gateway.stop()
        for engine in (gateway.registrar._table.table, gateway.routes.inspection.feed, gateway.routes.inspection.manifest):
            engine.close()


async def _until(http: aiohttp.ClientSession, gateway: Gateway, status: int) -> None:
    async with asyncio.timeout(20):
        while (await publish(http, gateway, 2))[0] != status:
            await asyncio.sleep(0.1)
