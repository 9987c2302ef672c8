"""A Spark driver of its own, for tests that kill it: `python -m tests.capture.spark.driver FOLDER OPTIONS`, with the options as JSON.

The flow goes into Parquet files in FOLDER/sink, with the checkpoint in FOLDER/checkpoint. The session is the pipeline's, since it starts
quickly.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from roskva.capture.spark import NAME, register
from roskva.config import Settings
from roskva.pipeline.session import build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def session(data: Path) -> SparkSession:
    spark = build(Settings(data=data, pipeline_memory="512m"))
    register(spark)
    return spark


def updates(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format(NAME).options(**options).load()


def into_files(rows: DataFrame, folder: Path) -> StreamingQuery:
    return (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "sink"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    into_files(updates(session(folder / "data"), json.loads(sys.argv[2])), folder).awaitTermination()
