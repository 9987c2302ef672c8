"""Real faults for a real service: kill -9, SIGSTOP, a full disk, a closed port, slow clients, clocks that jump, files that are gone."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.load import Follower
from tests.chaos.proxy import Proxy
from tests.e2e.service import Service, descendants_of

DISK_BYTES = 1 << 30


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A small file system for the data directory, where this process may make one; answers whether it did."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = False
    if os.geteuid() == 0:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


class Monkey:
    def __init__(self, service: Service, proxy: Proxy, followers: list[Follower], full_disk: bool) -> None:
        self.done: Counter[str] = Counter()
        self._service = service
        self._proxy = proxy
        self._followers = followers
        self._acts: dict[str, Callable[[], Awaitable[None]]] = {
            "kill gateway": self._kill_gateway,
            "kill pipeline": self._kill_pipeline,
            "kill both": self._kill_both,
            "stop gateway": self._stop_gateway,
            "stop pipeline": self._stop_pipeline,
            "close the port": self._close_port,
            "slow client": self._slow_client,
            "client's clock jumps": self._clock_jumps,
            "client restarts": self._client_restarts,
            "delete a table partition": self._delete_partition,
            "delete the checkpoints": self._delete_checkpoints,
        }
        if full_disk:
            self._acts["full disk"] = self._full_disk

    @property
    def kinds(self) -> set[str]:
        return set(self._acts)

    async def run(self, seconds: float, each_once: bool) -> None:
        """For so long, in random order; `each_once`: and no longer than all kinds need."""
        end_s = asyncio.get_running_loop().time() + seconds
        order: list[str] = []
        while asyncio.get_running_loop().time() < end_s:
            if not order:
                if each_once and self.done:
                    return
                order = random.sample(sorted(self._acts), len(self._acts))
            act = order.pop()
            await self._serves()
            print(f"chaos: {act}", flush=True)
            self.done[act] += 1
            await self._acts[act]()
            for follower in random.sample(self._followers, 2):
                await follower.change_mind()
            await asyncio.sleep(random.uniform(0.5, 3))

    async def _serves(self) -> None:
        async with asyncio.timeout(90):
            while not await asyncio.to_thread(self._service.serving):
                await asyncio.sleep(0.2)

    async def _kill_gateway(self) -> None:
        await asyncio.to_thread(self._service.kill, "gateway")

    async def _kill_pipeline(self) -> None:
        await asyncio.to_thread(self._service.kill, "pipeline")

    async def _kill_both(self) -> None:
        await self._kill_gateway()
        await self._kill_pipeline()

    async def _stop_gateway(self) -> None:
        await self._stopped("gateway", random.uniform(1, 6))

    async def _stop_pipeline(self) -> None:
        await self._stopped("pipeline", random.uniform(1, 6))

    async def _stopped(self, part: str, seconds: float) -> None:
        pid = self._service.child(part)
        family = [] if pid is None else [pid, *descendants_of(pid)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for one in family:
                with suppress(ProcessLookupError):
                    os.kill(one, number)
            if number == signal.SIGSTOP:
                await asyncio.sleep(seconds)

    async def _close_port(self) -> None:
        await self._proxy.close_for(random.uniform(0.5, 4))

    async def _slow_client(self) -> None:
        await self._proxy.stall_for(random.uniform(2, 8))

    async def _clock_jumps(self) -> None:
        client = random.choice(self._followers).client
        if client is not None:
            client.ahead_s += random.choice((30.0, 3_600.0, 90_000.0))

    async def _client_restarts(self) -> None:
        random.choice(self._followers).restart()

    async def _delete_partition(self) -> None:
        """Of the Registrar's table: its clients start anew. Of the Matcher's, or of the feed: who is registered hears "unknown"."""
        data = self._service.data
        files = sorted(data.glob(random.choice(("table/registrar-*.db", "table/matcher-*.db", "feed/updates-*.db"))))
        if files:
            lost = random.choice(files)
            for path in lost.parent.glob(f"{lost.name}*"):
                path.unlink(missing_ok=True)

    async def _delete_checkpoints(self) -> None:
        await self._kill_pipeline()
        shutil.rmtree(self._service.data / "checkpoints", ignore_errors=True)

    async def _full_disk(self) -> None:
        """Something dies meanwhile: what `up` has to say of it does not fit the disk either."""
        balloon = self._service.data / "balloon"
        try:
            with suppress(OSError), balloon.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * (1 << 20))
            await random.choice((self._kill_gateway, self._kill_pipeline))()
            await asyncio.sleep(random.uniform(1, 4))
        finally:
            balloon.unlink(missing_ok=True)
