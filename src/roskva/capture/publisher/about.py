"""What a publisher says of itself beside its counter, for its peers: what of the log it can read, which applications it has settings of,
which processes have its flows, and which of these stay there by somebody's wish. Pure.

    {"oldest": "1/4711", "history": 1, "applications": ["search"], "placed": {"search": {"worker-1:99": [0, 2], "worker-2:98": [1]}},
     "wished": {"search": {"worker-1:99": [2]}}}

Without `oldest` it can read nothing. What nobody understands says nothing: peers may be of another version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from roskva.capture.ownership import Reach
from roskva.capture.positions import position_from_text
from roskva.errors import BadRequest

PLACED: Final = "placed"
WISHED: Final = "wished"
PLACED_MAX: Final = 4096  # flows whose processes are told; with more, each publisher spreads its own evenly


def about_of(
    reach: Reach | None,
    placed: Mapping[str, Mapping[int, str]],
    applications: Iterable[str],
    wished: Mapping[str, Mapping[int, str]] = MappingProxyType({}),
) -> bytes:
    """`placed`: of each application, which process has which of its flows; `wished`: those of them that stay there."""
    said: dict[str, object] = {} if reach is None else {"oldest": str(reach.oldest), "history": reach.history}
    if sum(map(len, placed.values())) <= PLACED_MAX:
        for name, flows_of in ((PLACED, placed), (WISHED, wished)):
            said[name] = {application: _by_member(flows) for application, flows in flows_of.items()}
    said["applications"] = sorted(applications)
    return json.dumps(said).encode()


def _by_member(flows: Mapping[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for shard, member in flows.items():
        found.setdefault(member, []).append(shard)
    return found


def reach_from(about: bytes) -> Reach | None:
    """None: it can read nothing, or says what nobody understands."""
    try:
        found = json.loads(about)
        return Reach(position_from_text(found["oldest"]), int(found["history"]))
    except (ValueError, TypeError, KeyError, BadRequest):
        return None


def elsewhere_of(abouts: Iterable[bytes], name: str = PLACED) -> dict[str, dict[int, str]]:
    """Of each application: the flows of these publishers, and which process has each. What nobody understands is left out."""
    found: dict[str, dict[int, str]] = {}
    for about in abouts:
        try:
            for application, members in json.loads(about)[name].items():
                for member, shards in members.items():
                    found.setdefault(application, {}).update({int(shard): member for shard in shards})
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def applications_of(about: bytes) -> frozenset[str]:
    """Those among its settings; none, if it says what nobody understands."""
    try:
        return frozenset(map(str, json.loads(about)["applications"]))
    except (ValueError, TypeError, KeyError):
        return frozenset()
