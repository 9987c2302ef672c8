"""The Spark source: a dataset's flows as a streaming DataFrame, exactly once into a checkpointed sink. Only this folder knows Spark."""

from roskva.capture.spark.source import NAME, CaptureSource, register

__all__ = ["NAME", "CaptureSource", "register"]
