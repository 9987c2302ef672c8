"""Who gets which change: what the thread of a caravan makes of a batch before the core sees it."""

from __future__ import annotations

from collections.abc import Callable

from roskva.capture.positions import Position
from roskva.capture.publisher.reading import SETS_MAX, Router, Routing
from roskva.capture.rows import Schemas
from roskva.capture.sharding import Sharding
from roskva.capture.updates import Change, Operation, Update


def a_change(number: int) -> Change:
    return Change(Position(1, number, 1), 0, Operation.INSERT, "shop", "t", {"id": number}, {"id": number})


def bit(place: int) -> Callable[[Update], bool]:
    return lambda update: bool(int(str(update.change.columns["id"])) >> place & 1)


def test_combinations_of_applications_are_kept_once_and_not_for_ever() -> None:
    """Twelve filters may let 4,096 combinations through, and forty any number of them."""
    routing = Routing(Sharding(1), {f"a{place}": bit(place) for place in range(12)})
    router = Router(routing, Schemas())
    for number in range(1, 1 << 12):
        one, other = router.route([a_change(number), a_change(number)], routing)
        assert one.applications is other.applications
        assert one.applications == {f"a{place}" for place in range(12) if number >> place & 1}
        assert len(router._sets) <= SETS_MAX
