"""Bugs on the way of an update: publishing, the Matcher's tasks, the fan-out, and telling Registrars."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Edit, Mutant, mutant

OF_THE_MATCHER: Final[tuple[Mutant, ...]] = (
    mutant(
        "a publish is answered before its append is durable",
        "gateway.publish",
        """\
        try:
            for indexes, future in under_way:
                try:
                    epochs.append((await future).looked)
                except RoskvaError as error:
                    self._refuse(indexes, error, outcomes)
        finally:
            for _, future in under_way:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # seen
""",
        """\
        for _, future in under_way:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
""",
    ),
    mutant(
        "an append that failed is answered as a success",
        "gateway.publish",
        "            outcomes[index] = error\n",
        "            pass\n",
    ),
    Mutant(
        "a version below one that was published is refused",
        (
            Edit(
                "gateway.publish",
                "        self._metrics = metrics\n        self._hint",
                "        self._metrics = metrics\n        self._latest = {}\n        self._hint",
            ),
            Edit(
                "gateway.publish",
                "        await self._append(application, form, valid, outcomes, at if sampled else None)\n",
                """\
        for index, (name, value, _, _) in valid:
            version = msgspec.json.decode(value)["version"]
            if version < self._latest.get(name, 0):
                outcomes[index] = Unavailable("A later version was published.")
            self._latest[name] = max(version, self._latest.get(name, 0))
        valid = [item for item in valid if outcomes[item[0]] is None]
        await self._append(application, form, valid, outcomes, at if sampled else None)
""",
            ),
        ),
        breaks="WorkDone",
    ),
    mutant(
        "the lowest version of a batch wins",
        "matcher.core",
        "known if known.version >= update.version else None",
        "known if known.version <= update.version else None",
    ),
    mutant(
        "a version that the row has already is told to nobody",
        "matcher.core",
        """\
    for copy in read_copies(row):
        if source""",
        """\
    if known is not None and known.version >= change.version and change.source == _NOBODY:
        return
    for copy in read_copies(row):
        if source""",
    ),
    mutant(
        "the source is told of its own change",
        "matcher.core",
        "if source == _NOBODY or copy.device != source:",
        "if copy.device:",
    ),
    mutant(
        "the last source of a collapsed batch is left out",
        "matcher.core",
        "sole = known.sole_source and source == known.source",
        "sole = True",
        11,
    ),
    mutant(
        "the fan-out leaves out the last source of a collapsed batch",
        "matcher.core",
        "Update(key, change.version, change.source if change.sole_source else _NOBODY, again=not change.sole_source)",
        "Update(key, change.version, change.source)",
        11,
    ),
    mutant(
        "versions count as known whatever was lost",
        "matcher.core",
        "known is None or incarnation is None or known.incarnation != incarnation:",
        "known is None:",
        32,
        needs=("lose everything",),
    ),
    mutant(
        "a new registration yields unknown although the version is known",
        "matcher.core",
        "return answer(OUTCOME_VERSION, known.version)",
        "return answer(OUTCOME_UNKNOWN)",
    ),
    mutant(
        "a new registration is told its seqno as the version",
        "matcher.core",
        "return answer(OUTCOME_VERSION, known.version)",
        "return answer(OUTCOME_VERSION, registration.seqno)",
    ),
    mutant(
        "rows are read before they are written",
        "pipeline.matching",
        """\
            self._table.write(accepted.writes)
            rows = self._table.read(accepted.read_whole, limit=cells_to_read(above))
            part, large = hand_over(part, rows, partitions, above)
            self._hand_over(large)
            read_version = accepted.read_version + [object_row(update.object, partitions) for update in large]
            rows |= self._table.read(read_version, prefix=VERSION)
""",
        """\
            rows = self._table.read(accepted.read_whole, limit=cells_to_read(above))
            part, large = hand_over(part, rows, partitions, above)
            self._hand_over(large)
            read_version = accepted.read_version + [object_row(update.object, partitions) for update in large]
            rows |= self._table.read(read_version, prefix=VERSION)
            self._table.write(accepted.writes)
""",
        1,
    ),
    mutant(
        "the hand-over to the fan-out is forgotten",
        "pipeline.matching",
        """\
            part, large = hand_over(part, rows, partitions, above)
            self._hand_over(large)
""",
        """\
            part, large = hand_over(part, rows, partitions, above)
""",
    ),
    mutant(
        "rows that cannot be written are given up",
        "pipeline.matching",
        "            waiting = tried.failed\n",
        "            waiting = []\n",
        needs=("refuse partition",),
    ),
    mutant(
        "what was put aside is brought into its row, and nobody is told",
        "pipeline.sweeps.scratched",
        "        self._connected.feed.append(UPDATES, [as_entry(one) for one in homeless])\n",
        "",
        14,
        needs=("refuse partition",),
    ),
    mutant(
        "no answer counts as done",
        "propagation.links",
        "        return items\n",
        "        return []\n",
    ),
    mutant(
        "blind writes leave no marks",
        "propagation.blind",
        """\
        _mark(table, settings, written, around)
        table.write(mutations)
        _mark(table, settings, written, around)
""",
        """\
        table.write(mutations)
""",
        25,
    ),
    mutant(
        "a held version is covered by the next one",
        "matcher.core",
        "known.version <= registration.held:",
        "known.version <= registration.held + 1:",
    ),
    mutant(
        "unavailable counts as done",
        "propagation.links",
        "if verdict in (NOT_OWNER, UNAVAILABLE):",
        "if verdict == NOT_OWNER:",
        needs=("failing writes", "kill client"),
    ),
    mutant(
        "whom the Registrar does not know is asked about for ever",
        "propagation.links",
        "if verdict in (NOT_OWNER, UNAVAILABLE):",
        "if verdict in (NOT_OWNER, UNAVAILABLE, 1):",
        20,
        26,
        needs=("lose registrar partition",),
    ),
    mutant(
        "a blind write that failed counts as done",
        "propagation.links",
        "                failed.append(item)\n",
        "                continue\n",
        needs=("failing writes",),
    ),
    mutant(
        "a repair leaves out rows that may be of before the loss",
        "pipeline.repair",
        "partition), around) > newest:",
        "partition), around) > 0:",
    ),
    mutant(
        "registrations of a lost Matcher partition are not made anew",
        "pipeline.repair",
        '_HELD: Final = frozenset({("table", "matcher"), ',
        "_HELD: Final = frozenset({",
        7,
        needs=("lose matcher partition",),
    ),
    mutant(
        "registrations of a lost feed are not made anew",
        "pipeline.repair",
        '("feed", UPDATES), ',
        "",
        6,
        needs=("lose feed partition",),
    ),
    mutant(
        "what a sweep found lost is left as it is",
        "registrar.core",
        "        return _REISSUE if registered else _SETTLED\n",
        "        return _SETTLED\n",
        6,
        7,
        needs=("lose matcher partition",),
    ),
)
