"""What applications' own services said about objects, for as long as it counts, and no more of it than fits.

An application has a part of the room: its users may push out each other's answers, which are then asked for again, but not those of other
applications. When all of them together have too many, the one that has most gives way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

ANSWERS_MAX: Final = 100_000
ANSWERS_PER_APPLICATION_MAX: Final = 20_000


class Question(NamedTuple):
    """All that the application's own service is told: its answer may depend on each."""

    application: str
    user: str
    device: str
    name: str


class _Answer(NamedTuple):
    allowed: bool
    until_s: float


class Answers:
    """One for a gateway."""

    def __init__(self) -> None:
        self._kept: dict[str, OrderedDict[Question, _Answer]] = {}  # by application; those used longest ago first
        self._of_users: dict[tuple[str, str], set[Question]] = {}  # by application and user: to forget them
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def known(self, question: Question, now_s: float) -> bool | None:
        """None: nobody said, or it counts no more."""
        kept = self._kept.get(question.application)
        answer = kept.get(question) if kept is not None else None
        if kept is None or answer is None:
            return None
        if now_s >= answer.until_s:
            self._drop(question)
            return None
        kept.move_to_end(question)
        return answer.allowed

    def keep(self, application: str, answers: Iterable[tuple[Question, bool]], until_s: float) -> None:
        kept = self._kept.setdefault(application, OrderedDict())
        for question, allowed in answers:
            assert question.application == application, "answers of one application are kept together"
            self._count += question not in kept
            kept[question] = _Answer(allowed, until_s)
            kept.move_to_end(question)
            self._of_users.setdefault((application, question.user), set()).add(question)
        self._drop_oldest(application, len(kept) - ANSWERS_PER_APPLICATION_MAX)
        while self._count > ANSWERS_MAX:
            largest = max(self._kept, key=lambda name: len(self._kept[name]))
            # At most half of them at once: then another may have more.
            self._drop_oldest(largest, min(self._count - ANSWERS_MAX, (len(self._kept[largest]) + 1) // 2))
        if not kept:
            self._kept.pop(application, None)

    def forget(self, application: str, user: str | None = None) -> None:
        """All of an application, or of one of its users."""
        questions = self._kept.get(application, ()) if user is None else self._of_users.get((application, user), ())
        for question in list(questions):
            self._drop(question)

    def _drop_oldest(self, application: str, count: int) -> None:
        for _ in range(count):
            self._drop(next(iter(self._kept[application])))

    def _drop(self, question: Question) -> None:
        kept = self._kept[question.application]
        del kept[question]
        if not kept:
            del self._kept[question.application]
        user = (question.application, question.user)
        self._of_users[user].discard(question)
        if not self._of_users[user]:
            del self._of_users[user]
        self._count -= 1
