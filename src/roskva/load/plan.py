"""What a run simulates: how many clients, who registers for what, and what happens how often.

Who registers for what is arithmetic, so that nobody needs to remember it: the clients' registrations are numbered through, and
the objects take turns at them, far apart. A client's objects follow from its number, and a registration from client and object. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from roskva.errors import BadRequest
from roskva.model import check_application, check_device, name_from_text

CLIENTS_MAX: Final = 10_000_000
REGISTRATIONS_MAX: Final = 256  # up to so many a sync states all of them in one message
_SPREAD: Final = 7919  # a prime: the objects of one client lie far apart, so that publishes in turn reach different clients


@dataclass(frozen=True, slots=True)
class Plan:
    clients: int
    registrations: int = 5
    objects: int = 0  # 0: as many as there are registrations, so that every object has one client
    application: str = "demo"
    object_prefix: str = "load/"
    device_prefix: str = "load-"
    arrivals_per_s: float = 1_000.0
    heartbeat_s: float = 0.0  # 0: as the service wishes
    update_every_s: float = 0.0  # of each client; 0: none
    rate_per_s: float = 0.0  # of publishes, whatever the number of clients; 0: none
    batch: int = 1  # updates in one publish request, at most
    drop: float = 0.0  # part of the channel's messages that is dropped, in either direction
    lines: int = 4
    publishers: int = 16  # connections
    resume: bool = False  # clients with a kept token go on with their session, instead of a restart
    together: bool = False  # the clients of one object arrive one after the other: an update is for nobody who is not there yet

    def __post_init__(self) -> None:
        if not 1 <= self.clients <= CLIENTS_MAX:
            raise BadRequest(f"There can be 1 to {CLIENTS_MAX:,} clients, not {self.clients:,}.")
        if not 1 <= self.registrations <= REGISTRATIONS_MAX:
            raise BadRequest(f"A simulated client has 1 to {REGISTRATIONS_MAX} registrations, not {self.registrations}.")
        if not 0.0 <= self.drop < 1.0:
            raise BadRequest(f"The part of messages that is dropped is 0 or more and below 1, not {self.drop:g}.")
        objects = self.objects or self.clients * self.registrations
        if objects < self.registrations:
            raise BadRequest(f"{objects} objects are too few: each client registers for {self.registrations} different ones.")
        while math.gcd(objects, _SPREAD) > 1:  # else some objects would have no client
            objects -= 1
        object.__setattr__(self, "objects", objects)
        check_application(self.application)
        check_device(self.device(self.clients))
        name_from_text(self.name(objects))

    @property
    def fan_out(self) -> float:
        """Clients for each object; if the numbers do not divide, the mean."""
        return self.clients * self.registrations / self.objects

    def arriving(self, rank: int) -> int:
        """Which client arrives as the one of this rank, from 0: a place among all clients, each once."""
        others, left = divmod(self.clients * self.registrations, self.objects)
        if not self.together or left or self.clients % others or self.objects % self.registrations:
            return rank
        group, place = divmod(rank, others)
        return place * (self.clients // others) + group

    def device(self, client: int) -> str:
        return f"{self.device_prefix}{client}"

    def name(self, number: int) -> str:
        return f"{self.object_prefix}{number}"

    def objects_of(self, client: int) -> list[int]:
        first = client * self.registrations
        return [slot * _SPREAD % self.objects for slot in range(first, first + self.registrations)]

    def object_of(self, client: int, place: int) -> int:
        return (client * self.registrations + place) * _SPREAD % self.objects

    def names_of(self, client: int) -> list[str]:
        return [self.name(number) for number in self.objects_of(client)]


class Places:
    """The way back: which of a client's registrations an object's name belongs to."""

    def __init__(self, plan: Plan) -> None:
        self._prefix = len(plan.object_prefix)
        self._objects = plan.objects
        self._registrations = plan.registrations
        self._back = pow(_SPREAD, -1, plan.objects) if plan.objects > 1 else 0

    def of(self, client: int, name: str) -> int:
        """Its place among the client's registrations; -1 if it is none of them."""
        digits = name[self._prefix :]
        if not digits.isdigit():
            return -1
        place = (int(digits) * self._back - client * self._registrations) % self._objects
        return place if place < self._registrations else -1
