"""The feed as Spark's source, under asynchronous progress: what it commits when nothing comes any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.feed import open_feed
from roskva.feed.interface import UPDATES
from roskva.pipeline.offsets import MATCHING, SUBSCRIPTION
from roskva.pipeline.source import FeedReader, FeedSource, options
from tests.pipeline.standin import name_in_partition, publish, settings_for


@pytest.fixture
def reader(tmp_path: Path) -> FeedReader:
    return FeedSource(options(settings_for(tmp_path), MATCHING)).streamReader(None)  # type: ignore[arg-type]


def test_an_idle_source_commits_what_it_was_told_last(reader: FeedReader, tmp_path: Path) -> None:
    """Spark tells of a batch with the next one, and commits are at most one a second: without the look of the idle source the last
    records would count as unread, and would stay, until somebody publishes again."""
    settings = settings_for(tmp_path)
    feed = open_feed(settings)
    name = name_in_partition(1)
    end = reader.initialOffset()
    for version in (1, 2):
        publish(settings, name, version)
        end = reader.latestOffset(end, None)  # type: ignore[arg-type]
        reader.commit(end)
    assert feed.committed(SUBSCRIPTION, UPDATES)[1] != feed.newest(UPDATES)[1], "the second came within the second"
    for _ in range(2):
        assert reader.latestOffset(end, None) == end  # type: ignore[arg-type]
    assert feed.committed(SUBSCRIPTION, UPDATES)[1] == feed.newest(UPDATES)[1]
