"""Bugs of the client: its handshake, its operations and syncs, what it shows to the application and what it acknowledges."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Edit, Mutant, mutant

OF_THE_CLIENT: Final[tuple[Mutant, ...]] = (
    mutant(
        "summaries are not compared",
        "client.core",
        "return self._server_summary is not None and not self.desired.matches(self._server_summary)",
        "return False",
    ),
    mutant(
        "operations are not retried",
        "client.operations",
        "        heapq.heappush(self._repeats, (operation.due, self._ticket, operation))\n",
        "",
    ),
    mutant(
        "a client that connects again says nothing",
        "client.core",
        "        self.spread_s = 0.0\n        self._handshake.due = _NEVER\n        self._outbox.must_speak = True\n",
        "        self.spread_s = 0.0\n        self._handshake.due = _NEVER\n",
    ),
    mutant(
        "every answer is answered",
        "client.core",
        "            self._unsettled = message.unsettled\n",
        "            self._unsettled = message.unsettled\n            self._outbox.must_speak = True\n",
    ),
    mutant(
        "acknowledged before the application has it",
        "client.core",
        "            return [Notify(notification)]\n",
        "            self._outbox.acks.append(ack_of(notification))\n            return [Notify(notification)]\n",
    ),
    Mutant(
        "an older version is shown after a later one",
        (
            Edit("client.handover", "if key <= marks.acknowledged:", "if key == marks.acknowledged:"),
            Edit("client.handover", "if key <= marks.handed or key < marks.highest:", "if key == marks.handed:"),
        ),
        needs=("late messages",),
    ),
    mutant(
        "what was shown is forgotten with the registration",
        "client.handover",
        "            self._retired[name] = marks\n",
        "            self._retired[name] = Marks()\n",
    ),
    mutant(
        "what was acknowledged is not acknowledged again",
        "client.handover",
        "            return Verdict.ACKNOWLEDGE\n        marks.deliveries",
        "            return Verdict.NOTHING\n        marks.deliveries",
    ),
    mutant(
        "what the application failed on is not shown again",
        "client.handover",
        "            marks.handed = marks.acknowledged\n\n",
        "            pass\n\n",
    ),
    mutant(
        "an acknowledged unknown hides that of a new client id",
        "client.handover",
        "            marks.unknown_handed = marks.unknown_acknowledged = -1\n",
        "",
        7,
        needs=("lose registrar partition",),
    ),
    mutant(
        "an unregistered object is shown",
        "client.core",
        "        if name not in self.desired:\n            return []  # neither shown",
        "        if not name:\n            return []  # neither shown",
    ),
    mutant(
        "a client that is superseded again and again goes on",
        "client.handshake",
        "SUPERSEDED_AGAIN_S: Final = 60.0\n",
        "SUPERSEDED_AGAIN_S: Final = 0.0\n",
        24,
        needs=("clone client",),
        breaks="TwinsTold",
    ),
)
