"""Bugs of what is forgotten and made void: sweeps, scratch, recovery, resets, invalidations, load shedding."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import SWEEPS, Edit, Mutant, mutant

OF_THE_SWEEPS: Final[tuple[Mutant, ...]] = (
    mutant(
        "clients are collected whenever they were seen",
        "pipeline.sweeps.collection",
        "            if day < self._before_day:\n",
        "            if day >= 0:\n",
        10,
        needs=(SWEEPS,),
    ),
    Mutant(
        "rows of clients that live are taken for zombies",
        (
            Edit("pipeline.sweeps.zombies", "if is_zombie(row) and (client", "if (client"),
            Edit(
                "registrar.core_collection",
                "        return Answer(SETTLED)\n    if told.outcome == OUTCOME_ERASE",
                "        return Answer(DROP_COPY)\n    if told.outcome == OUTCOME_ERASE",
            ),
        ),
    ),
    mutant(
        "purge forgets registrations that stand",
        "pipeline.sweeps.purge",
        "        return epoch_of(key) < epoch or (is_closed(cell) and not _is_pending(row, key))\n",
        "        return True\n",
        needs=(SWEEPS,),
    ),
    Mutant(
        "purge forgets what records of the feed can bring back",
        (
            Edit("pipeline.sweeps.ages", "self.oldest_record_day is not None and day >= self.oldest_record_day:", "False:"),
            Edit("pipeline.sweeps.ages", "        return self.today - day > max(days, self.replay_days)\n", "        return True\n"),
        ),
        (30,),
        needs=(SWEEPS, "lose checkpoint"),
        breaks="SweptRightly",
    ),
    mutant(
        "versions of objects that somebody registered are forgotten",
        "pipeline.sweeps.objects",
        "    in_use = any(is_registered(cell) for name, cell in row.items() if name.startswith(REG))\n",
        "    in_use = False\n",
        needs=(SWEEPS,),
    ),
    mutant(
        "compare registers nothing anew",
        "pipeline.sweeps.comparison",
        "        if not found or self._request.dry_run:\n            return\n        asked",
        "        if found or self._request.dry_run:\n            return\n        asked",
        needs=(SWEEPS, "row forgets"),
        breaks="ViewsAgree",
    ),
    mutant(
        "compare leaves the copies of clients that are gone",
        "pipeline.sweeps.comparison",
        "    if created is None or registration is None:\n        return True\n",
        "    if created is None or registration is None:\n        return False\n",
        26,
        needs=(SWEEPS, "lose registrar partition"),
        breaks="ViewsAgree",
    ),
    mutant(
        "a reset is not noticed",
        "registrar.rounds",
        "                    await self._notice_resets()\n",
        "",
        34,
        needs=("restore backend",),
    ),
    mutant(
        "a publish does not look at the epoch again",
        "gateway.publish",
        "            if not items or not risen:\n",
        "            if items or not risen:\n",
        34,
        needs=("reset application",),
    ),
    mutant(
        "versions of two epochs compare by their numbers",
        "client.handover",
        "        key = (notification.epoch, notification.version)\n        if key <= marks.acknowledged:",
        "        key = (marks.acknowledged[0], notification.version)\n        if key <= marks.acknowledged:",
        34,
        needs=("restore backend",),
    ),
    mutant(
        "an invalidation is answered before it is durable",
        "gateway.commands",
        """\
            appended = [await self._feed.append_to(FAN_OUTS, partition, [record]) for partition in partitions]
            now = max(one.looked.get(request.application, 0) for one in appended)
""",
        """\
            for partition in partitions:
                self._feed.append_to(FAN_OUTS, partition, [record]).add_done_callback(lambda done: done.cancelled() or done.exception())
            now = epoch
""",
        needs=("invalidate",),
    ),
    mutant(
        "an invalidation of all that begin alike reaches one partition",
        "gateway.commands",
        "[partition_of(key, self._settings.partitions)] if whole else range(self._settings.partitions)\n",
        "[partition_of(key, self._settings.partitions)]\n",
        needs=("invalidate",),
    ),
    mutant(
        "what was shed is never scanned for",
        "registrar.recovery",
        "        if not self._scan or self.on_their_way > self._settings.unfinished_max // 2:\n",
        "        if self._scan:\n",
    ),
)
