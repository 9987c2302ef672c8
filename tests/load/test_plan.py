"""Who registers for what is arithmetic, and can be turned round."""

from __future__ import annotations

from collections import Counter

import pytest

from roskva.errors import BadRequest, InvalidApplication, InvalidName
from roskva.load.plan import Places, Plan


@pytest.mark.parametrize(("clients", "registrations", "objects"), [(1_000, 5, 1_000), (40, 5, 40), (40, 5, 0), (100, 3, 50), (1, 1, 1)])
def test_every_object_has_its_fan_out_of_different_clients(clients: int, registrations: int, objects: int) -> None:
    plan = Plan(clients, registrations, objects)
    wished = [plan.objects_of(client) for client in range(clients)]
    assert all(len(set(numbers)) == registrations for numbers in wished)
    assert set(Counter(number for numbers in wished for number in numbers).values()) == {plan.fan_out}
    assert {number for numbers in wished for number in numbers} == set(range(plan.objects))


def test_a_number_of_objects_that_would_leave_some_without_clients_is_made_smaller() -> None:
    assert Plan(7919, 1).objects == 7918


def test_a_registration_is_found_by_client_and_name_and_nothing_else_is() -> None:
    plan = Plan(200, 5, 200)
    places = Places(plan)
    for client in range(plan.clients):
        names = plan.names_of(client)
        assert [places.of(client, name) for name in names] == [0, 1, 2, 3, 4]
        assert all(places.of(client, plan.name(number)) == -1 for number in range(200) if plan.name(number) not in names)
    assert places.of(0, "load/x") == -1
    assert plan.object_of(7, 3) == plan.objects_of(7)[3]


@pytest.mark.parametrize(
    "wrong",
    [{"clients": 0}, {"clients": 10**9}, {"registrations": 257}, {"registrations": 0}, {"objects": 4}, {"drop": 1.0}, {"drop": -0.1}],
)
def test_what_cannot_be_simulated_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        Plan(**{"clients": 10, **wrong})  # type: ignore[arg-type]  # each of its own type


def test_names_that_the_service_would_refuse_are_refused_at_once() -> None:
    with pytest.raises(InvalidApplication):
        Plan(10, application="Demo")
    with pytest.raises(InvalidName):
        Plan(10, object_prefix="x" * 128)


@pytest.mark.parametrize("clients", [10, 60, 1_000, 7])
def test_clients_of_one_object_may_arrive_one_after_the_other(clients: int) -> None:
    plan = Plan(clients, registrations=5, objects=clients, together=True)
    order = [plan.arriving(rank) for rank in range(clients)]
    assert sorted(order) == list(range(clients))
    if clients % 5 == 0:
        for first in range(0, clients, 5):
            assert len({tuple(sorted(plan.objects_of(client))) for client in order[first : first + 5]}) == 1
    assert [Plan(clients).arriving(rank) for rank in range(clients)] == list(range(clients))
