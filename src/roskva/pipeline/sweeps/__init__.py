"""Sweeps: jobs over all rows, on schedule beside the streaming queries or by hand. They propose, and the owners of rows do it."""

from roskva.pipeline.sweeps.frame import KINDS, Kind, Progress, Request, Swept, Task, pages

__all__ = ["KINDS", "Kind", "Progress", "Request", "Swept", "Task", "pages"]
