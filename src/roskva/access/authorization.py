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
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from roskva.access.answers import Answers, Question
from roskva.access.identity import Identity
from roskva.access.patterns import compile_patterns
from roskva.access.per_settings import PerSettings
from roskva.access.webhooks import ANSWER_BYTES_MAX, Webhooks
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable

OBJECTS_PER_CALL: Final = 1_000
# Of their names as JSON writes them at its longest: all may be allowed, and an answer has its limit (webhooks.ANSWER_BYTES_MAX).
NAME_BYTES_PER_CALL: Final = ANSWER_BYTES_MAX // 2
# However short an answer counts, by itself or by the settings: whoever asked must come to look, or nothing would ever be told, and the
# webhook never rest.
ANSWER_S_MIN: Final = 1.0

log = logging.getLogger(__name__)


class WebhookAnswer(msgspec.Struct, frozen=True):
    """What the application's own service says about some objects: which of them are allowed."""

    allowed: list[str]
    expires_s: float | None = None


class Authorization:
    """One for a gateway, with the webhooks of its Credentials, or with its own."""

    def __init__(self, webhooks: Webhooks | None = None, clock: Callable[[], float] = time.time) -> None:
        self._own_webhooks = webhooks is None
        self._webhooks = webhooks if webhooks is not None else Webhooks()
        self._clock = clock
        self._patterns = PerSettings(lambda settings: compile_patterns(settings.registrable))
        self._answers = Answers()
        self._asking: dict[Question, asyncio.Task[dict[str, bool]]] = {}

    async def close(self) -> None:
        tasks = set(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._own_webhooks:
            await self._webhooks.close()

    def known(self, application: str, settings: ApplicationSettings, identity: Identity, device: str, name: str) -> bool | None:
        """Whether this user may register for it with this device. None: nobody knows now, ask."""
        if not self._patterns.of(settings).allow(identity.claims, name):
            return False
        if not settings.authorization_webhook:
            return True
        return self._answers.known(Question(application, identity.user, device, name), self._clock())

    async def ask(
        self, application: str, settings: ApplicationSettings, identity: Identity, device: str, names: Sequence[str]
    ) -> dict[str, bool]:
        """The answers for all names. Raises AuthorizationUnavailable if nobody can say for one of them; what was said then is known."""
        answers: dict[str, bool] = {}
        shared: dict[str, asyncio.Task[dict[str, bool]]] = {}
        unknown: list[str] = []
        for name in dict.fromkeys(names):
            known = self.known(application, settings, identity, device, name)
            if known is not None:
                answers[name] = known
            elif (task := self._asking.get(Question(application, identity.user, device, name))) is not None:
                shared[name] = task
            else:
                unknown.append(name)
        for batch in _batches(unknown):
            # A task of its own: whoever asked first may go away, and others wait for the same answer.
            task = asyncio.get_running_loop().create_task(self._call(application, settings, identity.user, device, batch))
            task.add_done_callback(_retrieve)
            for name in batch:
                shared[name] = self._asking[Question(application, identity.user, device, name)] = task
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
        self._answers.forget(application, user)
        for question in [asked for asked in self._asking if asked.application == application and user in (None, asked.user)]:
            del self._asking[question]

    async def _call(self, application: str, settings: ApplicationSettings, user: str, device: str, names: Sequence[str]) -> dict[str, bool]:
        this = asyncio.current_task()
        questions = [Question(application, user, device, name) for name in names]
        try:
            body = {"application": application, "user": user, "device": device, "objects": names}
            found = await self._webhooks.post(settings.authorization_webhook, body, settings, f"authorization of {application}")
            answer = _checked(application, found)
            counts_s = min(settings.authorization_s, math.inf if answer.expires_s is None else answer.expires_s)
            allowed = set(answer.allowed)
            answers = {name: name in allowed for name in names}
            still_asked = [(one, answers[one.name]) for one in questions if self._asking.get(one) is this]
            self._answers.keep(application, still_asked, self._clock() + max(counts_s, ANSWER_S_MIN))
            return answers
        finally:
            for question in questions:
                if self._asking.get(question) is this:  # unless it was forgotten, and asked again
                    del self._asking[question]


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
