"""Bugs of the Registrar: its judgements, its writes and caches, its marks, delivery, sessions; and of the ways between gateways."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Edit, Mutant, mutant

OF_THE_REGISTRAR: Final[tuple[Mutant, ...]] = (
    mutant(
        "a tuple of the present registration is void",
        "registrar.core",
        "if told.seqno < cell.timestamp:",
        "if told.seqno <= cell.timestamp:",
    ),
    mutant(
        "acknowledgements are not written",
        "registrar.delivery",
        "        self._ack_cells.setdefault(client, []).append(cell)\n",
        "",
    ),
    mutant(
        "pending is cleared and the notification is forgotten",
        "registrar.core",
        "    if unacknowledged:\n",
        "    if unacknowledged and not cells:\n",
        15,
    ),
    mutant(
        "registrations are written without a pending marker",
        "registrar.cells",
        "        Cell(PENDING + key, seqno, _PENDING + msgspec.msgpack.encode(pending)),\n",
        "",
    ),
    mutant(
        "what a row shows as pending is not repeated",
        "registrar.telling",
        "        events = self._recovery.due(row.client, events)\n",
        "        events = []\n",
    ),
    mutant(
        "an acknowledgement by the fast path covers later versions",
        "registrar.fast",
        "if covered is None or covered[0] != seqno or covered[1] < version:",
        "if covered is None or covered[0] != seqno:",
    ),
    mutant(
        "the fast path tells whoever made the change",
        "registrar.fast",
        "        if update.source and session.is_of(update.source):\n            return False\n",
        "",
        breaks="SourceLeftOut",
    ),
    mutant(
        "nothing is sent twice",
        "registrar.unacknowledged",
        "if entry.due_s <= now_s and self",
        "if entry.due_s < 0.0 and self",
    ),
    mutant(
        "what waited while the client was away is not sent when it comes",
        "registrar.service",
        "        self.unacknowledged.resume(session, row)  # what a registration yielded goes before its confirmation\n",
        "",
    ),
    mutant(
        "every version of an object waits for itself",
        "registrar.unacknowledged",
        "        entry = session.busy.outstanding.get(name := (key, version is None))\n        if entry is not None:\n",
        '        entry = session.busy.outstanding.get(name := (key + b"%d" % (version or 0), version is None))\n'
        "        if entry is not None:\n",
        breaks="QueuesBounded",
    ),
    mutant(
        "keepalives without a pause",
        "registrar.rounds",
        "    return session.sent_s + session.settings.keepalive_s\n",
        "    return session.sent_s\n",
    ),
    mutant(
        "a lost partition of the Registrar is not noticed",
        "registrar.rounds",
        "            if self.incarnations.setdefault(partition, incarnation) == incarnation:\n",
        "            if incarnation:\n",
        9,
        needs=("lose registrar partition",),
    ),
    mutant(
        "an id is kept although its row is gone",
        "registrar.core",
        "        row.created == created\n        and prior.application == created.application\n"
        "        and prior.data_center == data_center\n        and prior.incarnation == incarnation\n"
        "        and prior.session <= session_of(row.seqno)\n",
        "        prior.application == created.application\n        and prior.data_center == data_center\n",
        38,
        needs=("lose registrar partition",),
    ),
    Mutant(
        "what waits is named by the object alone, and an unregistration clears it",
        (
            Edit("registrar.cells", 'return LOG + key + b":" + seqno.to_bytes(8, "big")', 'return LOG + key + b":" + bytes(8)'),
            Edit(
                "registrar.row",
                "            if self.standing(key) == (seqno, True):\n",
                "            standing = self.standing(key)\n"
                "            seqno = seqno if unknown or standing is None else standing.seqno\n"
                "            if standing == (seqno, True):\n",
            ),
            Edit(
                "registrar.core",
                "        plan.add(key, registered=False, pending=Pending())\n    elif",
                "        plan.add(key, registered=False, pending=Pending())\n"
                "        waiting = [one.version for one in plan.row.waiting() if one.object == key and one.version is not None]\n"
                "        plan.cells[-1] += [log_cell(key, 0, version, ACKNOWLEDGED) for version in waiting]\n    elif",
            ),
        ),
        (2,),
    ),
    mutant(
        "what was sent counts as acknowledged",
        "registrar.delivery",
        "            if not acknowledged or one.told.outcome != OUTCOME_UPDATE:",
        "            if one.told.outcome != OUTCOME_UPDATE:",
    ),
    mutant(
        "whoever marks does not look where the marks are now",
        "propagation.blind",
        "    return {row.partition: head_in(found[row]) for row in rows}\n",
        "    return {row.partition: head_in(found[row]) // 8 for row in rows}\n",
        28,
    ),
    mutant(
        "what somebody else finished is looked at for ever",
        "registrar.rounds",
        "                    self.registrar.recovery.finished(row)\n",
        "",
        breaks="NothingUnfinished",
    ),
    mutant(
        "what is pending in a row that is gone is repeated",
        "registrar.telling",
        "        if row.created is None:  # collected or lost: whatever came of it would be void\n",
        "        if False:\n",
    ),
    mutant(
        "what says since when it waits counts as acknowledged",
        "registrar.cells",
        "    return cell.value is not None and cell.value[:1] == WAITING\n",
        "    return cell.value == WAITING\n",
    ),
    Mutant(
        "a client that signs out is told that it is forgotten, and is not",
        (
            Edit("registrar.collection", "if await self.write({asking.client: [[COLLECTED]]}):", "if not asking.client:"),
            Edit(
                "registrar.collection",
                "                row = await self.rows.get(asking.client)\n            self.take_in",
                "                row = ClientRow(asking.client)\n            self.take_in",
            ),
        ),
        breaks="Departed",
    ),
)
