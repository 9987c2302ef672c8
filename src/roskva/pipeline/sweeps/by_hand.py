"""A Spark session of its own for sweeps that a person asks for, beside a running service or without one.

It shares nothing with the service but the data directory: rows are read and written as any task does, owners are asked over their
links, and without any the task decides by the row. Spark is imported when the session is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from roskva.config import Settings
from roskva.pipeline import session
from roskva.pipeline.sweeps import jobs
from roskva.pipeline.sweeps.run import Job


class OwnSession(NamedTuple):
    job: Job
    cancel: Callable[[], None]  # from another thread: the job that runs is given up


@contextmanager
def own_session(settings: Settings) -> Iterator[OwnSession]:
    """A session, which ends with the block, however that ends."""
    from roskva.pipeline.query import end_session

    settings = replace(settings, data=settings.data.resolve())  # workers have a working directory of their own
    spark = session.build(settings)
    try:
        yield OwnSession(partial(jobs.sweep, spark, settings), spark.sparkContext.cancelAllJobs)
    finally:
        end_session(spark)
