"""The search in `test_promise.py` can fail: each rule of the design that is broken on purpose is found out by it.

A mutant that is no longer found means that the search has become too weak, or that the rule is no longer needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from roskva.matcher.core import Batch, match
from roskva.matcher.core import collapse as real_collapse
from roskva.model import OUTCOME_UPDATE, ObjectKey, Propagation, Registration, Update
from roskva.registrar import cells, core
from roskva.registrar.row import ClientRow
from roskva.table.interface import Cell
from tests.properties import pipeline
from tests.properties.pipeline import PipelineShell, Stage, Task
from tests.properties.registrar import RegistrarShell
from tests.properties.store import PARTITIONS
from tests.properties.test_promise import Promise

Mutation = Callable[[pytest.MonkeyPatch], None]


def reads_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    """The Matcher reads registrations and versions before its own write has landed."""
    real = PipelineShell._step

    def step(self: PipelineShell, task: Task, registrar: RegistrarShell | None) -> bool:
        if task.stage is Stage.WRITE and not task.rows:
            accepted = self._accepted(task)
            task.rows = self.table.read([*accepted.read_whole, *accepted.read_version])
        elif task.stage is Stage.READ:
            task.untold = match(task.batch, task.rows, PARTITIONS, lambda key: pipeline.FEED_INCARNATION)
            task.stage = Stage.TELL if task.untold else Stage.DONE
        else:
            return real(self, task, registrar)
        return True

    patch.setattr(PipelineShell, "_step", step)


def leaves_out_the_source_of_a_collapsed_update(patch: pytest.MonkeyPatch) -> None:
    """Changes of several sources collapse to the last one, and its source never hears of the others."""

    def collapse(updates: list[Update], registrations: list[Registration]) -> Batch:
        batch = real_collapse(updates, registrations)
        changes = {key: replace(change, sole_source=change.source != "") for key, change in batch.changes.items()}
        return Batch(changes, batch.registrations)

    patch.setattr(pipeline, "collapse", collapse)


def does_not_repeat_what_is_pending(patch: pytest.MonkeyPatch) -> None:
    """A registration whose record never reached the feed stays there for ever."""
    patch.setattr(RegistrarShell, "repeat_pending", lambda self, row: None)


def does_not_send_what_is_stored(patch: pytest.MonkeyPatch) -> None:
    """What was stored for a client that was away is not sent when it is back."""
    patch.setattr(RegistrarShell, "_resume", lambda self, session, row: None)


def tells_a_version_once(patch: pytest.MonkeyPatch) -> None:
    """A version that is in the row already is not told: but the batch that wrote it may have died."""
    real = PipelineShell._step

    def step(self: PipelineShell, task: Task, registrar: RegistrarShell | None) -> bool:
        if task.stage is Stage.WRITE:
            rows = self.table.read(self._accepted(task).read_whole)
            known = {key.key: row[b"version"].timestamp for key, row in rows.items() if b"version" in row}
            changes = {key: one for key, one in task.batch.changes.items() if known.get(key, -1) < one.version}
            task.batch = Batch(changes, task.batch.registrations)
        return real(self, task, registrar)

    patch.setattr(PipelineShell, "_step", step)


def names_notifications_by_object_alone(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement under one registration swallows what the next one yields."""

    def log_name(key: ObjectKey, seqno: int) -> bytes:
        return cells.LOG + key + b":" + bytes(8)

    patch.setattr(cells, "log_name", log_name)


def ends_the_marker_without_the_notification(patch: pytest.MonkeyPatch) -> None:
    """The marker of a registration goes before what it yielded is stored."""
    real = core.settle

    def settle(row: ClientRow, told: Propagation, unacknowledged: bool, version: int | None) -> list[Cell]:
        return real(row, told, unacknowledged and told.outcome == OUTCOME_UPDATE, version)

    patch.setattr(core, "settle", settle)


MUTANTS: tuple[Mutation, ...] = (
    reads_before_it_writes,
    leaves_out_the_source_of_a_collapsed_update,
    does_not_repeat_what_is_pending,
    does_not_send_what_is_stored,
    tells_a_version_once,
    names_notifications_by_object_alone,
    ends_the_marker_without_the_notification,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found_out(mutant: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    search = settings(
        max_examples=1_500,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Promise, settings=search)
