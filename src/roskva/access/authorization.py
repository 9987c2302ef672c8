"""Which objects a user may register for, and hear of (docs/settings.md, `registrable` and `authorization_webhook`).

A name must match a pattern; where there is a webhook, that must say yes, too. Its answers count for a while, a no as much as a yes. `known`
answers at once or not at all, for whoever is about to send something; `ask` makes it known.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from roskva.access.identity import Identity
from roskva.access.patterns import compile_patterns
from roskva.access.per_settings import PerSettings
from roskva.access.webhooks import ANSWER_BYTES_MAX, Webhooks
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable

ANSWERS_MAX: Final = 100_000
OBJECTS_PER_CALL: Final = 1_000
# Of their names as JSON writes them at its longest: all may be allowed, and an answer has its limit (webhooks.ANSWER_BYTES_MAX).
NAME_BYTES_PER_CALL: Final = ANSWER_BYTES_MAX // 2
# However short an answer counts: whoever asked must come to look, or nothing would ever be told and the webhook never rest.
ANSWER_S_MIN: Final = 1.0

log = logging.getLogger(__name__)


class WebhookAnswer(msgspec.Struct, frozen=True):
    """What the application's own service says about some objects: which of them are allowed."""

    allowed: list[str]
    expires_s: float | None = None


class _Question(NamedTuple):
    application: str
    user: str
    name: str


class _Answer(NamedTuple):
    allowed: bool
    until_s: float


class Authorization:
    """One for a gateway, with the webhooks of its Credentials, or with its own."""

    def __init__(self, webhooks: Webhooks | None = None, clock: Callable[[], float] = time.time) -> None:
        self._own_webhooks = webhooks is None
        self._webhooks = webhooks if webhooks is not None else Webhooks()
        self._clock = clock
        self._patterns = PerSettings(lambda settings: compile_patterns(settings.registrable))
        self._answers: OrderedDict[_Question, _Answer] = OrderedDict()  # those used longest ago first
        self._names: dict[str, dict[str, set[str]]] = {}  # of the answers, by application and user: to forget them
        self._asking: dict[_Question, asyncio.Task[dict[str, bool]]] = {}

    async def close(self) -> None:
        tasks = set(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._own_webhooks:
            await self._webhooks.close()

    def known(self, application: str, settings: ApplicationSettings, identity: Identity, name: str) -> bool | None:
        """Whether this user may register for it. None: nobody knows now, ask."""
        if not self._patterns.of(settings).allow(identity.claims, name):
            return False
        if not settings.authorization_webhook:
            return True
        question = _Question(application, identity.user, name)
        answer = self._answers.get(question)
        if answer is None:
            return None
        if self._clock() >= answer.until_s:
            self._drop(question)
            return None
        self._answers.move_to_end(question)
        return answer.allowed

    async def ask(
        self, application: str, settings: ApplicationSettings, identity: Identity, device: str, names: Sequence[str]
    ) -> dict[str, bool]:
        """The answers for all names. Raises AuthorizationUnavailable if nobody can say for one of them; what was said then is known."""
        answers: dict[str, bool] = {}
        shared: dict[str, asyncio.Task[dict[str, bool]]] = {}
        unknown: list[str] = []
        for name in dict.fromkeys(names):
            known = self.known(application, settings, identity, name)
            if known is not None:
                answers[name] = known
            elif (task := self._asking.get(_Question(application, identity.user, name))) is not None:
                shared[name] = task
            else:
                unknown.append(name)
        for batch in _batches(unknown):
            # A task of its own: whoever asked first may go away, and others wait for the same answer.
            task = asyncio.get_running_loop().create_task(self._call(application, settings, identity.user, device, batch))
            task.add_done_callback(_retrieve)
            for name in batch:
                shared[name] = self._asking[_Question(application, identity.user, name)] = task
        if shared:
            await asyncio.wait(set(shared.values()))
        failure: BaseException | None = None
        for name, task in shared.items():
            if task.cancelled():
                failure = AuthorizationUnavailable("This gateway stops, and asks nobody any more.")
            elif task.exception() is not None:
                failure = task.exception()
            else:
                answers[name] = task.result()[name]
        if failure is not None:
            raise failure
        return answers

    def forget(self, application: str, user: str | None = None) -> None:
        """Drop what is known of an application, or of one of its users. Answers that are on their way are not kept either."""
        users = self._names.get(application, {})
        for one in [user] if user is not None else list(users):
            for name in list(users.get(one, ())):
                self._drop(_Question(application, one, name))
        for question in [asked for asked in self._asking if asked.application == application and user in (None, asked.user)]:
            del self._asking[question]

    async def _call(self, application: str, settings: ApplicationSettings, user: str, device: str, names: Sequence[str]) -> dict[str, bool]:
        this = asyncio.current_task()
        questions = [_Question(application, user, name) for name in names]
        try:
            body = {"application": application, "user": user, "device": device, "objects": names}
            answer = _checked(application, await self._webhooks.post(settings.authorization_webhook, body, settings, application))
            counts_s = settings.authorization_s
            if answer.expires_s is not None:
                counts_s = min(counts_s, max(answer.expires_s, ANSWER_S_MIN))
            allowed = set(answer.allowed)
            answers = {name: name in allowed for name in names}
            self._keep([one for one in questions if self._asking.get(one) is this], answers, self._clock() + counts_s)
            return answers
        finally:
            for question in questions:
                if self._asking.get(question) is this:  # unless it was forgotten, and asked again
                    del self._asking[question]

    def _keep(self, questions: Iterable[_Question], answers: dict[str, bool], until_s: float) -> None:
        for question in questions:
            self._answers[question] = _Answer(answers[question.name], until_s)
            self._answers.move_to_end(question)
            self._names.setdefault(question.application, {}).setdefault(question.user, set()).add(question.name)
        while len(self._answers) > ANSWERS_MAX:
            self._drop(next(iter(self._answers)))

    def _drop(self, question: _Question) -> None:
        del self._answers[question]
        users = self._names[question.application]
        names = users[question.user]
        names.discard(question.name)
        if not names:
            del users[question.user]
        if not users:
            del self._names[question.application]


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        bytes_more = len(json.dumps(name)) + 2
        if batch and (len(batch) == OBJECTS_PER_CALL or size + bytes_more > NAME_BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += bytes_more
    if batch:
        yield batch


def _retrieve(task: asyncio.Task[dict[str, bool]]) -> None:
    """A failure for which nobody waits any more is no news."""
    if not task.cancelled():
        task.exception()


def _checked(application: str, found: object) -> WebhookAnswer:
    try:
        answer = msgspec.convert(found, WebhookAnswer)
    except msgspec.ValidationError as error:
        log.error("the authorization webhook of application %s answered in another form: %s", application, error)
        answer = None
    if answer is None or (answer.expires_s is not None and not math.isfinite(answer.expires_s)):
        raise AuthorizationUnavailable("The application's own service answered in a form that is not documented.")
    return answer
