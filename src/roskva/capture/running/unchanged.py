"""What must stay as it is for as long as there are datamarkers: by which rule rows get their shards, and whose log it is.

A datamarker says how far one shard of one log has come. With another rule, or another number of shards, rows that one flow has not come to
yet would belong to another flow that is past them; and in another log a position means nothing. Both would be skipped without a word, so
what they were is kept beside the datamarkers, and a publisher does not start with anything else. Blocks.
"""

from __future__ import annotations

from typing import Final

from roskva.capture.datamarkers import Datamarkers
from roskva.capture.settings import Dataset
from roskva.capture.sharding import parse_rule
from roskva.errors import InvalidSetting

SHARDS: Final = "kept:shards"  # notes
DATASTORE: Final = "kept:datastore"


def shards_text(dataset: Dataset) -> str:
    """What of the settings says of which shard a row is, always in the same words."""
    if dataset.shards == 1:
        return "1 shard"
    rules = {"": dataset.shard, **dict(sorted(dataset.tables.items()))}
    return f"{dataset.shards} shards, " + ", ".join(
        f"{table and f'{table} '}by {parse_rule(rule, dataset.shards)}" for table, rule in rules.items()
    )


def check_unchanged(datamarkers: Datamarkers, dataset: Dataset, identity: str) -> None:
    """Raises InvalidSetting if the datamarkers were made by another rule or of another log. The first to come says what they are of."""
    notes = datamarkers.notes()
    for name, now, what, remedy in (
        (SHARDS, shards_text(dataset), "The settings divide the dataset into", "dataset.shards, dataset.shard and dataset.tables"),
        (DATASTORE, identity, "The datastore is", "datastore"),
    ):
        known = notes.get(name)
        if known is None:
            datamarkers.note(name, now.encode())
        elif known.decode(errors="replace") != now:
            raise InvalidSetting(
                f"{what} {now}, and the datamarkers that are kept are of {known.decode(errors='replace')}: with them, changes would be"
                f" skipped. Put {remedy} back; or begin anew with another publisher.data (and publisher.datamarkers, if that is set), and"
                " `start` of each application where it shall begin, and restart its subscribers then, which take a flow that begins anew"
                " for one of before."
            )
