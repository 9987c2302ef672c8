"""How many gateways `roskva up` runs, how it calls them, and what each of several is told that one alone is not.

Partitions of clients belong to members by rendezvous hashing of ids that are drawn at each start. With few partitions that may leave a
gateway without any (of two and four partitions, in one of eight draws): so `up` draws the ids of its gateways until they share evenly.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Final

from roskva.address import PORT_MAX, address_of, host_and_port
from roskva.config import Settings
from roskva.errors import InvalidSetting
from roskva.model import rendezvous

MEMBER: Final = "ROSKVA_MEMBER"  # the variable that tells a gateway its id of this start

# Of the machine's memory, what all gateways together may use, where nobody said how much one may: Spark needs some, and so do others.
_MEMORY_SHARE: Final = 0.5
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")
_DRAWS_MAX: Final = 1_000
_WORK_MAX: Final = 100_000  # hashes of one draw after the other: a tenth of a second


def gateway_count(settings: Settings) -> int:
    """One for every two cores that this process may use, unless the settings say it: the pipeline needs as much as they do.

    More than partitions are not run unasked: some would own none.
    """
    return settings.gateways or max(1, min(usable_cores() // 2, settings.partitions))


def usable_cores() -> int:
    """Those that this process may run on, or what the limit of its container or unit comes to, if that is less."""
    quotas = [int(quota) // int(period) for quota, period in _limits("cpu.max", 2)]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def gateways_of(settings: Settings) -> dict[str, list[str]]:
    """By name, the options of `roskva gateway` that differ from one to the other, or from what one alone would have."""
    count = gateway_count(settings)
    if count == 1:
        return {"gateway": []}
    memory = memory_bytes_max(settings, count)
    limits = [] if memory == settings.gateway_memory_bytes_max else ["--set", f"gateway_memory_bytes_max={memory}"]
    return {f"gateway-{number + 1}": [*_internal(settings.internal_listen, number), *limits] for number in range(count)}


def evenly_drawn(others: Collection[str], partitions: int, draw: Callable[[], str] = lambda: secrets.token_hex(8)) -> str:
    """An id for a gateway beside these others, with which each owns as many partitions as any other, or as nearly so as some draws give."""
    best, best_spread = "", partitions + 1
    for _ in range(max(1, min(_DRAWS_MAX, _WORK_MAX // (partitions * (len(others) + 1))))):
        drawn = draw()
        members = [*others, drawn]
        owned = Counter(rendezvous(partition, members) for partition in range(partitions))
        counts = [owned[member] for member in members]
        spread = max(counts) - min(counts)
        if spread < best_spread:
            best, best_spread = drawn, spread
        if spread <= 1:
            break
    return best


def memory_bytes_max(settings: Settings, count: int) -> int:
    """Of each of so many. The default is for one alone; what somebody set stays, also if the machine has less."""
    default = next(item.default for item in fields(Settings) if item.name == "gateway_memory_bytes_max")
    if settings.gateway_memory_bytes_max != default:
        return settings.gateway_memory_bytes_max
    return min(settings.gateway_memory_bytes_max, int(machine_memory_bytes() * _MEMORY_SHARE) // count)


def machine_memory_bytes() -> int:
    """Of the machine, or of the container or unit, if that may use less."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *(int(limit) for (limit,) in _limits("memory.max", 1))])


def _limits(name: str, words: int) -> list[list[str]]:
    """What this file says in the control group (v2) of this process and in all above it. "max", or no file, limits nothing."""
    try:
        own = next((line[3:] for line in _OWN_CGROUP.read_text().splitlines() if line.startswith("0::")), "/")
    except OSError:
        own = "/"
    group = _CGROUPS / own.lstrip("/")
    found = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(_CGROUPS):
            break
        with suppress(OSError):  # also: seen from inside a container the path may not be there, only its root
            said = (folder / name).read_text().split()
            if len(said) == words and all(word.isdigit() and int(word) for word in said):
                found.append(said)
    return found


def _internal(listen: str, number: int) -> list[str]:
    """Each needs a port of its own for internal calls: the one that is set, and those after it."""
    host, port = host_and_port(listen)
    if port == 0:
        return []
    if port + number > PORT_MAX:
        raise InvalidSetting(f"internal_listen is {listen}, and every gateway takes the next port: there are not enough after it.")
    return ["--set", f"internal_listen={address_of(host, port + number)}"]
