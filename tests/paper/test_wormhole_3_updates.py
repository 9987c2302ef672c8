"""Wormhole, sections 3, 3.2 and 3.3.2: what an update is, which of them an application gets, who gets it, and where it stands in a log."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from roskva.capture.balance import STRATEGIES, Subscriber, strategy
from roskva.capture.filtering import compile_filter, for_updates
from roskva.capture.filters import parse_filter
from roskva.capture.positions import WHOLE, Position, position_from_text
from roskva.capture.publisher.reading import Router, Routing
from roskva.capture.rows import Decoding, Schemas
from roskva.capture.sharding import Sharding, parse_rule
from roskva.capture.stores.postgres.timelines import Timelines
from roskva.capture.updates import Change, Columns, Operation
from roskva.capture.wire import array_of


def change(columns: Columns, **fields: Any) -> Change:
    given = {"position": Position(1, 5, 1), "operation": Operation.UPDATE, "database": "shop", "table": "orders", "key": {"id": 7}}
    return Change(committed_us=0, columns=columns, **(given | fields))


def passes(text: str, columns: Columns) -> bool:
    return compile_filter(parse_filter(text))(3, change(columns))


def test_3_each_update_is_assigned_one_shard_and_a_producer_may_say_which() -> None:
    """Here the shard comes from a rule over columns; a key that the producer attaches is such a column (the paper's #.S)."""
    sharding = Sharding(64, parse_rule("shard % 64", 64))
    assert sharding.shards_of(change({"id": 7}, attached={"shard": 41})) == (41,)
    assert sharding.shards_of(change({"id": 7, "shard": 65})) == (1,)


def test_3_all_updates_of_one_entity_are_in_one_shard() -> None:
    """ "Updates corresponding to one entity (e.g., a Facebook page, or a Facebook user) reside on the same shard." """
    sharding = Sharding(64, parse_rule("hash(user) % 64", 64))
    of_users = {user: {sharding.shards_of(change({"user": user, "n": n})) for n in range(20)} for user in range(200)}
    assert all(len(shards) == 1 for shards in of_users.values())
    assert len({shards for found in of_users.values() for shards in found}) > 50, "and users are spread over all of them"


def test_3_an_update_has_the_same_form_whatever_the_log_and_reaches_the_subscriber_as_it_was() -> None:
    """ "Translating the underlying log entries into objects with a standard key-value format": nothing of it is changed on its way."""
    schemas, decoding = Schemas(), Decoding()
    sent = change({"id": 7, "title": "a", "raw": b"\xff", "none": None, "sum": 1.5, "yes": True}, attached={"topic": "aq"})
    row = schemas.encoded(sent)
    decoding.learn(schemas.numbered(row.schema))
    (came,) = decoding.updates(0, sent.position.history, array_of([row.data]))
    assert came.change._replace(size=sent.size) == sent


def test_3_all_updates_of_a_shard_go_to_one_subscriber_whichever_mode_balances() -> None:
    """ "All updates of a single shard are always sent to one subscriber, i.e., they are not split among multiple subscribers." """
    for place in STRATEGIES.values():
        placed = place(range(100), {}, [Subscriber(name) for name in "abc"], random.Random(1).random)
        assert sorted(placed) == list(range(100))
        assert set(placed.values()) == set("abc")


def test_3_in_the_first_mode_lightly_loaded_subscribers_are_more_likely_to_get_flows() -> None:
    """ "The publishers use a weighted random selection [...] so that lightly loaded subscribers are more likely to get more flows." """
    dice = random.Random(2)
    subscribers = [Subscriber("light", load=0.1), Subscriber("heavy", load=0.8)]
    counts = Counter(strategy("weighted")([0], {}, subscribers, dice.random)[0] for _ in range(2_000))
    assert counts["light"] > 2 * counts["heavy"] > 0


def test_3_subscribers_can_have_a_strategy_of_their_own() -> None:
    """ "Subscribers can also implement a custom load-balancing strategy": here a function of the application."""

    def mine(shards: object, placed: object, subscribers: object, dice: object) -> dict[int, str]:
        return {0: "b"}

    assert strategy(mine) is mine


@pytest.mark.parametrize(
    ("text", "let_through", "held_back"),
    [
        ("[a exists]", {"a": 0}, {"b": 0}),
        ("[a = 1]", {"a": 1}, {"a": 2}),
        ('[a in ("x", "y")]', {"a": "y"}, {"a": "z"}),
        ("[a in 1..5000]", {"a": 5000}, {"a": 5001}),
        ('[a matches "x+y"]', {"a": "xxy"}, {"a": "xx"}),
        ("[not a exists]", {"b": 0}, {"a": 0}),
        ("[not a = 1]", {"a": 2}, {"a": 1}),
        ("[not a in 1..5000]", {"a": 0}, {"a": 1}),
        ("[a = 1 AND b = 2]", {"a": 1, "b": 2}, {"a": 1, "b": 3}),
        ("[a = 1] OR [b = 2]", {"a": 0, "b": 2}, {"a": 0, "b": 0}),
    ],
)
def test_3_2_a_filter_is_an_or_of_ands_of_basic_ones_and_their_negations(text: str, let_through: Columns, held_back: Columns) -> None:
    """ "An OR which is a disjunction of finitely many mid-level AND, each of which in turn is a conjunction of [...] basic filters." """
    assert passes(text, let_through)
    assert not passes(text, held_back)


def test_3_2_the_filters_that_the_paper_shows_can_be_written_here() -> None:
    """ "[topic = aq] OR [mcd key exists]" of cache invalidation, and "[tableName in (t1, t2)] OR [(associationType = a1) AND (shard in
    1-5000)]" of index updates."""
    cache = '[topic = "aq"] OR [mcd exists]'
    assert [passes(cache, columns) for columns in ({"topic": "aq"}, {"mcd": "k"}, {"topic": "b"})] == [True, True, False]
    index = compile_filter(parse_filter('[table in ("t1", "t2")] OR [association_type = "a1" AND shard in 1..5000]'))
    for shard, table, kind, expected in (
        (9_000, "t2", "b", True),
        (5_000, "t3", "a1", True),
        (5_001, "t3", "a1", False),
        (1, "t3", "b", False),
    ):
        assert index(shard, change({"association_type": kind}, table=table)) is expected


def test_3_2_the_publisher_delivers_only_what_passes_and_encodes_nothing_else() -> None:
    """ "It helps conserve both memory and network bandwidth": what nobody wants is dropped before it is encoded."""
    schemas = Schemas()
    wanted = for_updates(parse_filter('[topic = "aq"]'))
    router = Router(Routing(Sharding(1), {"cache": wanted}), schemas)
    changes = [change({"topic": topic}, position=Position(1, number)) for number, topic in enumerate(["aq", "other", "aq"], 1)]
    routed = router.route(changes, router.routing)
    assert [one.position.sequence for one in routed if "cache" in one.applications] == [one.position.sequence for one in routed] == [1, 3]


def test_3_3_2_a_logical_position_names_one_update_and_later_ones_are_larger() -> None:
    """A sequence number that does not fall, and an index from 1 where it stays; here the history of the replicas comes before both."""
    log = [Position(1, 10, 1), Position(1, 10, 2), Position(1, 11, 1), Position(2, 5, 1)]
    assert log == sorted(set(log))
    assert all(position_from_text(str(position)) == position for position in log)
    assert Position(1, 10, 2) < Position(1, 10) < Position(1, 11, 1), "the whole commit, which a datamarker may name"
    assert Position(1, 10).index == WHOLE


def test_3_3_2_the_mapper_finds_the_same_update_in_the_log_of_another_replica() -> None:
    """A replica that was promoted has the past of the primary up to the switch, and a history of its own from there on."""
    primary, promoted = Timelines(1), Timelines(2, ((1, 1_000),))
    datamarker = Position(1, 900)
    primary.check(datamarker, end=2_000)
    promoted.check(datamarker, end=2_000)
    assert primary.needed(datamarker) == promoted.needed(datamarker) == 901
    assert promoted.before(1_500) > primary.before(1_500), "the same place in its log is a later position in the new history"
