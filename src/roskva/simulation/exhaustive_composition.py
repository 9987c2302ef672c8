"""Several clients, seen from one of them: whatever happens to it beside the others happens to it alone, too.

The claim. Take a run of any number of clients, and one of them. Leave out of each state the other parts, and of the batch in progress the
task of registrations if none of them is this client's; a batch of nothing else is none at all. Then every step either changes nothing,
or is a step of the world with this client alone:

- a move of this part is the same move: it looks at nothing but the part and the latest version (`exhaustive_part`);
- a move of another part changes nothing here; if the Registrar dies of it, it just dies;
- a batch begins, writes, reads, is committed and dies as it would alone, only at times that the others have a say in; alone, any time
  will do. What it writes and reads for this client depends on this client's records and copies, and on the version;
- when everything is at rest, so is this client; its clock then moves as it would alone.

What must hold is asked of each client by itself: what it was shown, in every state; and its promise, at rest. So if one client alone, with
so many versions and all the faults, never breaks it, no client among several does, with the same versions and faults in total. A run
in which some of the faults hit others is, for this client, a run in which they do not happen, and those are part of its world.

The claim is not only argued: `Views` checks it, step by step, for every step of a search with several clients. What would refute it: a
part that looks at another, a task that mixes clients up, a rest that is not one.
"""

from __future__ import annotations

from dataclasses import replace

from roskva.simulation.exhaustive_state import Following, Shared
from roskva.simulation.exhaustive_world import Model


class Views:
    """What each client of a world sees of it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._alone = Model(replace(model.size, clients=1, reduced=False), model.parts)
        self._following: dict[int, tuple[frozenset[int], bool]] = {}

    def __len__(self) -> int:
        """How many were met."""
        return len(self._following)

    def refuted(self, state: int, following: Following) -> str:
        """What happens in this state to a client that would not happen to it alone; empty: nothing."""
        shared, parts = self._model.unpack(state)
        for place, part in enumerate(parts):
            after, at_rest = self._steps_alone(self._view(shared, part))
            if following.at_rest and not at_rest:
                return f"the world is at rest, and part {part} is not"
            for step in following.steps:
                if self._view(step.shared, step.parts[place]) not in after:
                    return f"{step.what[0]} makes of part {part} what it would not become alone"
        return ""

    def _view(self, shared: Shared, number: int) -> int:
        part = self._model.parts[number]
        return self._alone.pack(seen(shared, bool(part.taken), bool(part.orphaned)), (number,))

    def _steps_alone(self, view: int) -> tuple[frozenset[int], bool]:
        """The view itself, all that may follow it, and itself with a fault the fewer, which hit only others; and whether it is at rest."""
        found = self._following.get(view)
        if found is None:
            following = self._alone.following(view)
            shared, parts = self._alone.unpack(view)
            after = {view, *(self._alone.pack(step.shared, step.parts) for step in following.steps)}
            for place in range(len(shared.faults)):
                fewer = shared._replace(faults=shared.faults[:place] + shared.faults[place + 1 :])
                after.add(self._alone.pack(fewer, parts))
            found = self._following[view] = frozenset(after), following.at_rest
        return found


def seen(shared: Shared, has_taken: bool, has_orphaned: bool) -> Shared:
    """What is shared, as a client sees it that has records in the batch in progress, or in an orphaned one, or has none."""
    tasks = tuple(task for task in shared.tasks if not task.of_registrations or (has_orphaned if task.orphan else has_taken))
    begun = -1 if shared.begun == shared.committed and not has_taken else shared.begun
    return shared._replace(tasks=tasks, begun=begun)
