"""Thialfi 4.2.4, client garbage collection: the real sweeps over real tables, and the real Registrar with real clients' cores."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

from __future__ import annotations

from roskva.config import Settings
from roskva.model import OUTCOME_COLLECT, OUTCOME_ZOMBIE, ClientId, ObjectKey, Propagation
from roskva.protocol.messages import Register
from roskva.registrar import core
from roskva.registrar.cells import CREATED, WAITING, Created, client_row, log_cell
from roskva.registrar.core_collection import COLLECTED, answer
from roskva.registrar.row import ClientRow
from roskva.table import open_table
from roskva.table.interface import Mutation, RowKey
from tests.pipeline.test_collection import KEYS, SEQNO, TODAY, a_client, copies, of_client, settings, sweep  # noqa: F401
from tests.registrar.crowd import Crowd
from tests.registrar.test_shedding import settings as crowd_settings


def test_4_2_4_the_row_and_the_registration_cells_of_a_client_long_offline_are_deleted(settings: Settings) -> None:
    """A client that stays offline for long loses its row at the Registrar and its registration cells at the Matcher. Here two sweeps do
    it, and `client_retention_days` says how long."""
    gone, stays = a_client(settings, "gone", *KEYS), a_client(settings, "stays", *KEYS, seen=TODAY)
    sweep(settings, "collect")
    sweep(settings, "zombies")
    assert of_client(settings, gone) == []
    assert of_client(settings, stays)
    assert [copies(settings, key) for key in KEYS] == [{stays}] * len(KEYS)


def test_4_2_4_a_row_that_a_blind_write_recreates_is_found_and_deleted(settings: Settings) -> None:
    """Blind writes may recreate the row of a collected client: an asynchronous process finds rows without `created` and deletes them."""
    client = a_client(settings, "gone", *KEYS)
    sweep(settings, "collect")
    sweep(settings, "zombies")
    late = log_cell(KEYS[0], SEQNO, 9, WAITING)  # of somebody who had read the row before
    open_table(settings).write([Mutation(client_row(client, settings.partitions), [late])])
    assert sweep(settings, "zombies").done == 1
    assert of_client(settings, client) == []


def test_4_2_4_created_is_written_with_the_id_and_only_collection_deletes_it() -> None:
    """`created` is written when the id is assigned, and the garbage collector deletes it; no other operation touches it."""
    client, created = ClientId("c1"), Created("demo", "d1")
    granted = core.grant(ClientRow(client), created, TODAY)
    assert CREATED in {cell.name for cell in granted.cells}
    row = ClientRow(client, granted.cells)
    others = list(core.grant(row, created, TODAY + 1).cells)
    decided = core.operate(row, 1, core.Operations(), [Register(object="x", op=1)], [], 10)
    others += [cell for write in decided.writes for cell in write]
    row.apply(others)
    others += [cell for write in core.reissue(row, [(decided.events[0].object, 0)]).writes for cell in write]
    assert CREATED not in {cell.name for cell in others}
    collected = answer(row, Propagation(client, ObjectKey(b""), 0, OUTCOME_COLLECT, TODAY + 1), online=False)
    assert collected.cells == [COLLECTED]


def collect_under_its_session(crowd: Crowd) -> ClientId:
    """As another owner would have: nobody here knows."""
    (row,) = (key for key in crowd.stores.rows if key.table == "registrar")
    crowd.stores.land([Mutation(row, [COLLECTED])], True)
    return ClientId(row.key.decode())


def living(crowd: Crowd) -> list[RowKey]:
    return [key for key, cells in crowd.stores.rows.items() if key.table == "registrar" and cells.get(CREATED, COLLECTED).value is not None]


def test_4_2_4_a_zombie_that_is_online_is_told_and_comes_back_as_a_new_client() -> None:
    """If the zombie is online it is informed that its id is invalid; it discards it and reconnects as a new client."""
    crowd = Crowd(crowd_settings())

    async def work() -> None:
        (caller,) = crowd.gather(1, lambda number: [b"x"])
        await crowd.until(crowd.all_told)
        client = collect_under_its_session(crowd)
        await crowd.registrar.propagate([Propagation(client, ObjectKey(b""), 0, OUTCOME_ZOMBIE, 0)])
        await crowd.until(lambda: living(crowd))
        assert [key.key.decode() for key in living(crowd)] != [client]
        crowd.matching.publish(b"x", 7)
        await crowd.until(lambda: caller.known[b"x"] == 7 and caller.in_sync())

    crowd.run(work())


def test_4_2_4_the_word_to_start_anew_may_be_lost() -> None:
    """That message may be lost: it is sent again when the client attempts something."""
    crowd = Crowd(crowd_settings())

    async def work() -> None:
        (caller,) = crowd.gather(1, lambda number: [b"x"])
        await crowd.until(crowd.all_told)
        collect_under_its_session(crowd)  # and the word is lost, or nobody said it
        crowd.registrar.rows.drop_all()
        caller.register([b"y"])
        await crowd.until(lambda: living(crowd) and crowd.all_told())
        assert caller.known.keys() == {b"x", b"y"}

    crowd.run(work())
