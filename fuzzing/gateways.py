"""A whole gateway as a target: one message of a client that has a session, given to the real router and Registrar of a simulated world.

There are two of them: one whose application lets anybody in, and one that asks for JSON Web Tokens and says what a user may have.
Each input has a world of its own, on virtual time and without files, so that what one leaves behind is nothing to the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Final

import msgspec

from fuzzing import access
from fuzzing.running import listening
from fuzzing.targets import CLIENT_SEEDS, LIMIT, kind_of
from roskva.access import Access
from roskva.access.jwt import JwtVerifier
from roskva.access.patterns import compile_patterns
from roskva.errors import MalformedMessage
from roskva.model import name_of, name_to_text
from roskva.protocol.messages import ClientMessage, Init, Register, ServerMessage, decode_client, decode_server, encode
from roskva.simulation.gateways import GatewayEnd, SimulatedGateway
from roskva.simulation.knobs import draw
from roskva.simulation.world import World

TOKEN: Final = b"TOKEN-1"  # in an input: the token of the session
GATEWAY_SEEDS: Final = [
    *CLIENT_SEEDS,
    b'{"token":"TOKEN-1","forget":true}',
    b'{"token":"TOKEN-1","register":[{"op":1,"object":"a"},{"op":2,"object":"a"}],"unregister":[{"op":3,"object":"b"}]}',
    b'{"token":"TOKEN-1","sync":{"op":7,"summaries":[{"bucket":3,"count":1,"digest":"0123456789abcdef0123456789abcdef"}]}}',
]
# Good for as long as a world lasts, whenever it is; in an input it stands as it is, so that its parts are broken, too.
CREDENTIAL: Final = access.signed({"sub": "me", "exp": 2**40, "iss": access.SETTINGS.jwt_issuer, "aud": access.SETTINGS.jwt_audience})
USER_SEEDS: Final = [
    *GATEWAY_SEEDS,
    *(seed[:-1] + b',"credential":"' + CREDENTIAL + b'"}' for seed in GATEWAY_SEEDS),
    b'{"init":{"nonce":"m","application":"demo","device":"d","prior":"TOKEN-1"},"credential":"' + CREDENTIAL + b'"}',
    b'{"init":{"nonce":"m","application":"demo","device":"d"},"credential":"' + access.CREDENTIALS[0] + b'"}',
    b'{"token":"TOKEN-1","register":[{"op":1,"object":"inbox:me"},{"op":2,"object":"inbox:you"},{"op":3,"object":"base64:aGVsbG8"}]}',
    b'{"token":"TOKEN-1","sync":{"op":7,"objects":[{"object":"inbox:me"},{"object":"bank/ledger"}]}}',
]
_REGISTRABLE: Final = ("hello", "inbox:{sub}")
_KNOBS: Final = replace(draw(3), gateways=1, partitions=1, jitter_s=0.0, operations_per_message_max=1_000, faults=frozenset())
_WAIT_S: Final = 0.5  # of the world's time: enough for whatever a message starts
_ALWAYS: Final = ("v", "time_ms", "token")
_SECRET_MIN: Final = 8  # characters; less than that may be anywhere by chance


class _Connection(GatewayEnd):
    """A client's connection, as the gateway has it; its other end is the target."""

    def __init__(self, gateway: SimulatedGateway) -> None:
        super().__init__(gateway, None)  # type: ignore[arg-type]  # it has no client
        self.sent: list[bytes] = []
        self.closed_with = ""

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self, code: str) -> None:
        self.closed_with = code

    def heard(self) -> list[ServerMessage]:
        sent, self.sent = self.sent, []
        return [decode_server(data) for data in sent]


class _Stage:
    """A world with one gateway, and a client that has a session and is registered for `hello`. With a credential, users are asked for."""

    def __init__(self, credential: bytes = b"") -> None:
        self.world = World(_KNOBS, trace=False)
        self.credential = credential.decode()
        if credential:
            asking = replace(access.SETTINGS, registrable=_REGISTRABLE, jwt_leeway_s=0.0)
            self.world.settings = replace(self.world.settings, applications={"demo": asking})
        self.world.start_gateway(0)
        self.wait(0.1)
        self.gateway = self.world.gateways[0]
        if credential:
            self._ask_for_users()
        assert self.gateway.serving
        self.connection, self.token = self.start_client("phone")
        self.say(self.connection, encode(ClientMessage(token=self.token, register=[Register(op=1, object="hello")])))
        self.wait(0.1)
        self.connection.heard()

    def _ask_for_users(self) -> None:
        clock, settings = self.gateway.process.wall_clock, self.world.settings.applications["demo"]
        deciding = Access(clock)
        keys = SimpleNamespace(settings=settings, keys=access.Keys())
        deciding._credentials._verifiers["demo"] = JwtVerifier(settings, clock, keys)  # type: ignore[arg-type]
        self.gateway.registrar.users._access = deciding

    def wait(self, seconds: float) -> None:
        self.world.loop.run_until_complete(_asleep(seconds))

    def say(self, connection: _Connection, data: bytes) -> bool:
        """Where the gateway's code runs: inside of the loop, and as its process."""

        async def spoken() -> bool:
            return self.gateway.process.context.run(self.gateway.router.received, connection, data)

        return self.world.loop.run_until_complete(spoken())

    def start_client(self, device: str) -> tuple[_Connection, str]:
        connection = _Connection(self.gateway)
        self.gateway.router.opened(connection)
        self.say(connection, encode(ClientMessage(init=Init(nonce="n", application="demo", device=device), credential=self.credential)))
        self.wait(0.1)
        grants = [message.grant for message in connection.heard() if message.grant]
        assert len(grants) == 1, "a new client was granted no session"
        self.say(connection, encode(ClientMessage(token=grants[0].token)))
        self.wait(0.1)
        return connection, grants[0].token

    def close(self) -> None:
        self.gateway.process.kill()
        self.wait(0.1)
        self.world.loop.close()


async def _asleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def gateway(data: bytes) -> str:
    """It is answered or taken, whoever comes next is served as before, and no secret is where it does not belong."""
    return _given(data, b"")


def gateway_with_users(data: bytes) -> str:
    """The same; and nobody gets a session without a credential, or registers for what its user may not have."""
    return _given(data, CREDENTIAL)


def _given(data: bytes, credential: bytes) -> str:
    with listening() as logged:
        stage = _Stage(credential)
        try:
            data = data.replace(TOKEN, stage.token.encode())
            taken = stage.say(stage.connection, data)
            stage.wait(_WAIT_S)
            answers = stage.connection.heard()
            assert taken or answers, "neither taken nor answered"
            if credential:
                _check_users(data, stage, answers)
            stage.start_client("tablet")
            assert stage.world.outcome.failure is None, stage.world.outcome.failure
        finally:
            stage.close()
    _check_secrets(data, stage.token, answers, logged)
    said = [name for answer in answers for name in answer.__struct_fields__ if getattr(answer, name) and name not in _ALWAYS]
    errors = [kind_of(MalformedMessage(answer.error.message)) for answer in answers if answer.error]
    return f"{taken} {said[:6]} {errors[:2]}"


def _check_users(data: bytes, stage: _Stage, answers: list[ServerMessage]) -> None:
    if any(answer.grant for answer in answers):
        shown = decode_client(data, LIMIT).credential
        assert shown.rpartition(".")[0] == stage.credential.rpartition(".")[0], "a session was granted for another credential"
    patterns, registrar = compile_patterns(_REGISTRABLE), stage.gateway.registrar
    for client in registrar.sessions:
        row = registrar.rows.peek(client)
        for key in row.registered() if row is not None else ():
            assert patterns.allow({"sub": "me"}, name_to_text(name_of(key))), f"registered for {key!r}"


def _check_secrets(data: bytes, token: str, answers: list[ServerMessage], logged: list[str]) -> None:
    """Tokens and credentials go back to whoever sent them in the field for it, if at all, and never into a log."""
    secrets = {token}
    try:
        message = decode_client(data, LIMIT)
        secrets |= {message.token, message.credential, (message.init.prior or "") if message.init else ""}
    except MalformedMessage:
        pass
    shown = [encode(_without_token(answer)).decode() for answer in answers]
    for secret in secrets:
        if len(secret) >= _SECRET_MIN:
            assert not any(secret in text for text in shown), f"{secret!r} is told: {shown}"
            assert not any(secret in text for text in logged), f"{secret!r} is logged: {logged}"


def _without_token(answer: ServerMessage) -> ServerMessage:
    grant = None if answer.grant is None else msgspec.structs.replace(answer.grant, token="")
    return msgspec.structs.replace(answer, token="", grant=grant)
