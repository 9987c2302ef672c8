"""Builds the Spark session of the pipeline: every setting here was measured, and each says what it buys.

The figures are of a prototype of this query: 360 ms from append to receipt with stock settings, 79 with these (p50, 200 records a
second, two cores). Nothing here knows what the query does; only `query.py` and a sweep by hand call it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roskva.config import Settings
from roskva.errors import JavaMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSIONS: Final = (17, 21)
_HERE: Final = Path(__file__).resolve().parent
_SOCKET_FOLDER_MAX: Final = 60  # Spark takes no longer one: a socket's path has at most 107 bytes, with the name that Spark gives it
_CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def find_java_home(environment: Mapping[str, str] | None = None, installed: Path = Path("/usr/lib/jvm")) -> Path:
    """The first Java of a fitting version: JAVA_HOME's, the one in PATH, those that the system's packages installed."""
    found: list[str] = []
    for home in _java_homes(os.environ if environment is None else environment, installed):
        version = java_version(home)
        if version in JAVA_VERSIONS:
            return home
        found.append(f"{home} is version {version or 'unknown'}")
    raise JavaMissing(f"Spark needs Java 17 or 21, and there is none ({'; '.join(found) or 'no Java was found at all'}).")


def _java_homes(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    in_path = shutil.which("java", path=environment.get("PATH", ""))
    if in_path is not None:
        yield Path(in_path).resolve().parent.parent
    if installed.is_dir():
        yield from sorted({home.resolve() for home in installed.iterdir() if (home / "bin" / "java").exists()})


def java_version(home: Path) -> int | None:
    """The major version of the Java at `home`: from its `release` file, which costs no process, else by asking it."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        try:
            text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
    matched = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(matched[1]) if matched else None


def spark_settings(settings: Settings, scratch: Path) -> dict[str, str]:
    """What is set, and what each buys. Figures: append to receipt, p50, two cores."""
    java_options = [
        "-XX:TieredStopAtLevel=1",  # C1 only: the optimizing compiler's threads took half a core; 52 -> 45 ms
        "-Xss16m",  # stopping a query in mid-batch unwinds deeply; the default stack overflows
        "-Djava.net.preferIPv4Stack=true",  # the driver is bound to 127.0.0.1
        f"-Djava.io.tmpdir={scratch}",  # what Spark unpacks dies with the scratch folder
        f"-Dlog4j2.configurationFile=file:{_HERE / 'log4j2.properties'}",  # warnings to stderr, one line each
    ]
    return {
        # The fan-out takes one of them, so that two are the least; a third on two cores cost 20 ms of p50.
        # A task whose Python worker was killed is tried four times before the query ends.
        "spark.master": f"local[{max(2, settings.pipeline_cores)},4]",
        "spark.app.name": "roskva",
        "spark.driver.memory": settings.pipeline_memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.driver.host": "127.0.0.1",  # nothing of Spark is reachable from other machines
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),  # shuffle files and blocks stay under the data directory
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),  # else Spark makes a folder in the working directory
        "spark.python.unix.domain.socket.enabled": "true",  # 140 -> 62 ms: two 40 ms gaps a task on TCP are gone
        "spark.python.unix.domain.socket.dir": str(scratch if len(os.fsencode(scratch)) <= _SOCKET_FOLDER_MAX else tempfile.gettempdir()),
        "spark.python.worker.reuse": "true",  # workers, and the connections in them, live on from batch to batch
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",  # the default forks a chmod per file
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,  # halves the cost of the checkpoint
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",  # no second file beside each: log + commit 70 -> 31 ms
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # there is no state that an empty batch could move on
        "spark.sql.streaming.pollingDelay": "1ms",  # the source waits for data itself
        "spark.sql.streaming.minBatchesToRetain": "20",  # a successor copies the checkpoint: keep it small
        "spark.sql.codegen.wholeStage": "false",  # a batch is a few rows: generating code for it costs more than it saves
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # nor for single expressions
        "spark.sql.adaptive.enabled": "false",  # plans once, not in every batch
        "spark.sql.shuffle.partitions": "1",  # the query has no shuffle; jobs beside it are small
        "spark.sql.variant.allowDuplicateKeys": "true",  # of two equal keys in an update the last counts, as in `forms.extract`
        "spark.ui.enabled": "false",  # no port, no bookkeeping; `roskva status` shows the query's health
        "spark.ui.showConsoleProgress": "false",
    }


def build(settings: Settings) -> SparkSession:
    """Start the JVM and the session. Takes 6 to 8 s; the process then has one session until `stop`."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java_home())
    # Workers run what this process runs, not the first python3 in the path, and find this package where it was found.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = [str(_HERE.parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.environ.pop("SPARK_HOME", None)  # another Spark on this machine is not ours
    builder = SparkSession.builder
    for name, value in spark_settings(settings, scratch_folder(settings)).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def scratch_folder(settings: Settings) -> Path:
    """A folder of this process for what Spark leaves behind; those of processes that are gone are removed."""
    base = settings.data.resolve() / "spark"
    mine = base / str(os.getpid())
    if base.is_dir():
        for folder in base.iterdir():
            if folder.name.isdigit() and (folder == mine or not Path("/proc", folder.name).exists()):
                shutil.rmtree(folder, ignore_errors=True)
    mine.mkdir(parents=True, exist_ok=True)
    return mine
