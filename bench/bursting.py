"""`python -m bench.bursting URL COUNT OBJECTS CONNECTIONS`: publishes a burst in batches of 1,000, as fast as it is answered.

A process of its own: to make a batch takes milliseconds, which the steady load's clients must not wait for. Prints how long it took.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

from bench.load import Publishers
from bench.world import run

BATCH: Final = 1_000
_ANSWERS_S: Final = 60.0


async def publish(url: str, count: int, objects: int, connections: int) -> dict[str, float]:
    began_s = time.monotonic()
    async with Publishers(url, [f"burst{number}" for number in range(objects)], connections) as publishers:
        left = count // BATCH

        def again() -> None:
            nonlocal left
            if left > 0:
                left -= 1
                publishers.publish(BATCH, time.time(), again)

        for _ in range(connections):
            again()
        while left > 0:
            await publishers.drained(_ANSWERS_S)
        await publishers.drained(_ANSWERS_S)
        return {"seconds": time.monotonic() - began_s, "accepted": publishers.accepted, "refused": publishers.refused}


if __name__ == "__main__":
    print(json.dumps(run(publish(sys.argv[1], *map(int, sys.argv[2:5])))))
