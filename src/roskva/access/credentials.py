"""Who a client's user is: its credential is verified here, or by the application's own service (docs/settings.md, `authentication`).

A user whose access was revoked is refused, whatever his credential says, until he has one that was issued later: by more than the clocks
may differ.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from roskva.access.identity import Identity, check_user
from roskva.access.jwt import CREDENTIAL_BYTES_MAX, JwtVerifier
from roskva.access.per_settings import PerSettings
from roskva.access.webhooks import REFUSALS, Webhooks
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable, CredentialRefused, CredentialRequired, InvalidSetting

ANSWERS_MAX: Final = 10_000
ANSWER_S_MAX: Final = 60.0

log = logging.getLogger(__name__)


class WebhookAnswer(msgspec.Struct, frozen=True):
    """What the application's own service says about a credential."""

    user: str
    claims: dict[str, Any] | None = None
    expires_s: float | None = None


class Credentials:
    """One for a gateway."""

    def __init__(self, clock: Callable[[], float] = time.time, webhooks: Webhooks | None = None) -> None:
        self._clock = clock
        self.webhooks = webhooks if webhooks is not None else Webhooks()
        self._verifiers: dict[str, JwtVerifier] = {}  # of each application, for its settings of now
        self._unusable: dict[str, ApplicationSettings] = {}  # which were logged
        self._answers: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()  # until when, and who; the oldest first
        self._revoked = PerSettings(_revoked_users)

    async def close(self) -> None:
        for verifier in self._verifiers.values():
            await verifier.close()
        await self.webhooks.close()

    async def identify(self, application: str, settings: ApplicationSettings, device: str, credential: str) -> Identity:
        """Raises CredentialRequired, CredentialRefused, CredentialExpired, or AuthorizationUnavailable if nobody can say now."""
        assert settings.authentication != "none", "nobody is asked for a credential here"
        if not credential:
            raise CredentialRequired(application)
        if len(credential) > CREDENTIAL_BYTES_MAX or _is_over(credential):
            raise CredentialRefused(f"The credential has more than {CREDENTIAL_BYTES_MAX:,} bytes, or is not text.")
        if settings.authentication == "jwt":
            verifier = await self._verifier(application, settings)
            identity = await verifier.identify(credential)
        else:
            identity = await self._ask(application, settings, device, credential)
        if self.is_revoked(settings, identity):
            raise CredentialRefused("The user's access was revoked.")
        return identity

    def is_revoked(self, settings: ApplicationSettings, identity: Identity) -> bool:
        """Whether the user's access was revoked after this credential was issued."""
        if not settings.revoked_users:
            return False
        issued_s = identity.issued_s
        if settings.authentication == "jwt":
            issued_s -= settings.jwt_leeway_s  # so far may the clock of whoever signs be ahead: it may have been issued before
        return issued_s < self._revoked.of(settings).get(identity.user, -math.inf)

    async def _verifier(self, application: str, settings: ApplicationSettings) -> JwtVerifier:
        before = self._verifiers.get(application)
        if before is not None and before.settings is settings:
            return before
        try:
            verifier = JwtVerifier(settings, self._clock, before)
        except InvalidSetting as error:
            if self._unusable.get(application) is not settings:
                self._unusable[application] = settings
                log.error("credentials of application %s cannot be verified: %s", application, error)
            raise AuthorizationUnavailable("Credentials cannot be verified at the moment.") from None
        self._verifiers[application] = verifier
        if before is not None and before.keys is not verifier.keys:
            await before.close()
        return verifier

    async def _ask(self, application: str, settings: ApplicationSettings, device: str, credential: str) -> Identity:
        # The device is part of the question, and the answer may depend on it. No credential is kept.
        question = [settings.authentication_webhook, application, device, credential]
        digest = hashlib.sha256(msgspec.json.encode(question)).digest()
        now_s = self._clock()
        until_s, known = self._answers.get(digest, (-math.inf, None))
        # Of a user who was revoked since then, the service may say something else now.
        if known is not None and now_s < until_s and not self.is_revoked(settings, known):
            return known
        self._answers.pop(digest, None)
        answer = await self._answer(application, settings, device, credential)
        good_s = min(settings.credential_s_max, math.inf if answer.expires_s is None else answer.expires_s)
        identity = Identity(
            user=check_user(answer.user),
            claims={**(answer.claims or {}), "sub": answer.user},  # so that patterns can name the user in one way
            issued_s=now_s,
            until_s=now_s + good_s,
        )
        self._answers[digest] = (now_s + min(good_s, ANSWER_S_MAX), identity)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return identity

    async def _answer(self, application: str, settings: ApplicationSettings, device: str, credential: str) -> WebhookAnswer:
        if not settings.authentication_webhook:
            raise AuthorizationUnavailable("authentication is webhook, and authentication_webhook does not say which.")
        body = {"application": application, "device": device, "credential": credential}
        try:
            found = await self.webhooks.post(settings.authentication_webhook, body, settings, f"authentication of {application}")
        except AuthorizationUnavailable as error:
            if error.answered in REFUSALS:
                raise CredentialRefused("The application's own service refused the credential.") from None
            raise
        try:
            answer = msgspec.convert(found, WebhookAnswer)
        except msgspec.ValidationError as error:
            log.error("the authentication webhook of application %s answered in another form: %s", application, error)
            answer = None
        if answer is None or (answer.expires_s is not None and not 0 < answer.expires_s < math.inf):
            raise AuthorizationUnavailable("The application's own service answered in a form that is not documented.")
        return answer


def _is_over(credential: str) -> bool:
    try:
        return len(credential.encode()) > CREDENTIAL_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        return True


def _revoked_users(settings: ApplicationSettings) -> dict[str, float]:
    """By user, the time before which its credentials do not count."""
    revoked: dict[str, float] = {}
    for entry in settings.revoked_users:
        user, _, seconds = entry.rpartition("@")
        revoked[user] = max(float(seconds), revoked.get(user, -math.inf))
    return revoked
