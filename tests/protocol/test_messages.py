"""Messages: one form, round trips, what is ignored, what is refused and by which name."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.errors import MalformedMessage, MessageTooLarge
from roskva.protocol import messages
from roskva.protocol.messages import (
    Ack,
    BucketSummary,
    ClientMessage,
    Config,
    ErrorReport,
    Grant,
    Info,
    Init,
    Notify,
    Register,
    ServerMessage,
    StartAnew,
    Status,
    Summary,
    Sync,
    SyncObject,
    SyncRequest,
    Unregister,
    decode_client,
    decode_server,
    encode,
)

LIMIT = 1 << 20
DIGEST = "0123456789abcdef" * 2

texts = st.text(max_size=20)
decimals = st.integers(0, 2**63 - 1).map(str)
epochs = st.integers(0, 2**32 - 1)
ops = st.integers(1, 2**53)
buckets = st.integers(0, 255)
counts = st.integers(0, 2**32)
digests = st.text("0123456789abcdef", min_size=32, max_size=32)
summaries = st.builds(Summary, count=counts, digest=digests)
held = {"version": st.none() | decimals, "epoch": epochs}
sync_objects = st.lists(st.builds(SyncObject, object=texts, **held), max_size=3)
syncs = (
    st.builds(Sync, op=ops, objects=sync_objects)
    | st.builds(Sync, op=ops, objects=sync_objects, buckets=st.lists(buckets, max_size=3))
    | st.builds(Sync, op=ops, summaries=st.lists(st.builds(BucketSummary, bucket=buckets, count=counts, digest=digests), max_size=3))
)
client_messages = st.builds(
    ClientMessage,
    token=texts,
    summary=st.none() | summaries,
    init=st.none() | st.builds(Init, nonce=texts, application=texts, device=texts, prior=st.none() | texts),
    register=st.lists(st.builds(Register, op=ops, object=texts, **held), max_size=3),
    unregister=st.lists(st.builds(Unregister, op=ops, object=texts), max_size=3),
    acks=st.lists(st.builds(Ack, object=texts, seqno=decimals, **held), max_size=3),
    sync=st.none() | syncs,
    info=st.none() | st.builds(Info, library=texts, channel=texts),
)
server_messages = st.builds(
    ServerMessage,
    token=texts,
    summary=st.none() | summaries,
    unsettled=counts,
    time_ms=st.integers(0, 2**53),
    grant=st.none() | st.builds(Grant, nonce=texts, token=texts),
    start_anew=st.none() | st.builds(StartAnew, code=texts, keep=st.booleans(), message=texts, nonce=texts),
    status=st.lists(st.builds(Status, object=texts, state=texts, transient=st.booleans(), code=texts, message=texts), max_size=3),
    notify=st.lists(st.builds(Notify, object=texts, seqno=decimals, **held), max_size=3),
    sync_request=st.none() | st.builds(SyncRequest, op=st.integers(0, 2**53), buckets=st.none() | st.lists(buckets, max_size=3)),
    config=st.none() | st.builds(Config, quiet_s=st.floats(0, 1e6), registrations_max=st.integers(1, 10**6), epoch=epochs),
    error=st.none() | st.builds(ErrorReport, code=texts, message=texts, transient=st.booleans()),
)


@given(client_messages)
def test_a_client_message_survives_the_wire(message: ClientMessage) -> None:
    assert decode_client(encode(message), LIMIT) == message


@given(server_messages)
def test_a_server_message_survives_the_wire(message: ServerMessage) -> None:
    assert decode_server(encode(message)) == message


@given(client_messages, st.dictionaries(st.text("xyz_", min_size=1), st.none() | st.integers() | texts, max_size=3))
def test_unknown_fields_are_ignored_at_every_depth(message: ClientMessage, unknown: dict[str, object]) -> None:
    def sprinkle(value: object) -> object:
        if isinstance(value, dict):
            return {**{"x-" + name: extra for name, extra in unknown.items()}, **{k: sprinkle(v) for k, v in value.items()}}
        return [sprinkle(one) for one in value] if isinstance(value, list) else value

    assert decode_client(json.dumps(sprinkle(json.loads(encode(message)))).encode(), LIMIT) == message


@pytest.mark.parametrize("opening", [b'{"x":', b"["])
def test_what_is_nested_too_deeply_is_refused(opening: bytes) -> None:
    for decode in (decode_server, lambda data: decode_client(data, LIMIT)):
        with pytest.raises(MalformedMessage):
            decode(b'{"x":' + opening * 5_000)


def test_defaults_are_left_out() -> None:
    assert encode(ClientMessage(token="t")) == b'{"token":"t"}'
    assert encode(ServerMessage(token="t", config=Config())) == b'{"token":"t","config":{}}'


def test_integers_of_64_bits_travel_as_decimal_strings() -> None:
    """Readers that keep numbers as doubles would lose digits of a seqno of the second session already."""
    seqno = str((1 << 53) + 1)
    encoded = encode(ServerMessage(notify=[Notify(object="a", seqno=seqno, version=str(2**63 - 1))]))
    assert json.loads(encoded)["notify"] == [{"object": "a", "seqno": "9007199254740993", "version": "9223372036854775807"}]
    with pytest.raises(MalformedMessage, match=r"notify.*seqno"):
        decode_server(b'{"notify":[{"object":"a","seqno":7}]}')


def test_an_empty_statement_is_written_out() -> None:
    """Nothing is a statement: it must not vanish with the defaults."""
    assert encode(ClientMessage(sync=Sync(op=1, objects=[]))) == b'{"sync":{"op":1,"objects":[]}}'
    assert encode(ClientMessage(sync=Sync(op=1, summaries=[]))) == b'{"sync":{"op":1,"summaries":[]}}'


@pytest.mark.parametrize("sync", ['{"op":1}', '{"op":1,"buckets":[1]}', '{"op":1,"objects":[],"summaries":[]}', '{"op":1,"tree":{}}'])
def test_a_sync_of_no_known_form_is_refused_and_erases_nothing(sync: str) -> None:
    """An older server would otherwise read a form that it does not know as "I wish for nothing"."""
    with pytest.raises(MalformedMessage, match="either `objects`"):
        decode_client(f'{{"sync":{sync}}}'.encode(), LIMIT)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}{}", "not JSON"),
        (b"[]", "documented form.*object"),
        (b"null", "documented form"),
        (b'{"token":7}', "token"),
        (b'{"token":"' + b"t" * 513 + b'"}', "token"),
        (b'{"summary":{"count":-1,"digest":"%s"}}' % DIGEST.encode(), r"summary\.count"),
        (b'{"summary":{"count":1,"digest":"xyz"}}', r"summary\.digest"),
        (b'{"summary":{"count":1}}', "digest"),
        (b'{"init":{"nonce":"n","application":"a"}}', "device"),
        (b'{"register":[{"op":0,"object":"a"}]}', r"register\[.*\]\.op"),
        (b'{"register":[{"op":1.5,"object":"a"}]}', r"register\[.*\]\.op"),
        (b'{"register":[{"op":1,"object":"a","version":"01"}]}', "version"),
        (b'{"register":[{"op":1,"object":"a","version":"-1"}]}', "version"),
        (b'{"register":[{"op":1,"object":"a","version":"12345678901234567890"}]}', "version"),
        (b'{"register":[{"op":1,"object":"a","version":7}]}', "version"),
        (b'{"register":[{"op":1,"object":"a","version":"7\\n"}]}', "version"),
        (b'{"summary":{"count":1,"digest":"%s\\n"}}' % DIGEST.encode(), r"summary\.digest"),
        (b'{"register":[{"op":1,"object":"a","epoch":4294967296}]}', "epoch"),
        (b'{"register":{"op":1,"object":"a"}}', "register"),
        (b'{"unregister":[{"object":"a"}]}', "op"),
        (b'{"acks":[{"object":"a","version":"1"}]}', "seqno"),
        (b'{"sync":{"op":1,"objects":[],"buckets":[256]}}', "buckets"),
    ],
)
def test_a_malformed_message_is_refused_by_the_name_of_what_is_wrong(data: bytes, names: str) -> None:
    with pytest.raises(MalformedMessage, match=names) as refusal:
        decode_client(data, LIMIT)
    assert refusal.value.code == "malformed-message"
    assert len(str(refusal.value)) < 400


def test_a_message_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(MessageTooLarge, match=r"101 bytes; 100 are"):
        decode_client(b"\xff" * 101, 100)
    assert decode_client(b'{"token":"t"}', 13).token == "t"


@given(st.binary(max_size=200))
def test_no_bytes_bring_the_decoders_down(data: bytes) -> None:
    for decode in (lambda: decode_client(data, LIMIT), lambda: decode_server(data)):
        with suppress(MalformedMessage):
            assert isinstance(decode(), ClientMessage | ServerMessage)


def test_messages_are_frozen() -> None:
    message = ClientMessage(token="t")
    with pytest.raises(AttributeError):
        message.token = "u"  # type: ignore[misc]


def test_the_defaults_of_a_config_are_the_documented_policy() -> None:
    """Clients begin with these before they have heard from a server: changing one changes clients in the field."""
    assert msgspec.structs.asdict(Config()) == {
        "heartbeat_s": 1200.0,
        "heartbeat_smear": 0.2,
        "keepalive_s": 50.0,
        "offline_s": 4800.0,
        "resend_min_s": 1.0,
        "resend_max_s": 60.0,
        "retry_min_s": 1.0,
        "retry_max_s": 60.0,
        "connect_min_s": 0.5,
        "connect_max_s": 60.0,
        "quiet_s": 0.0,
        "operations_per_message_max": 1_000,
        "message_bytes_max": 1_048_576,
        "registrations_max": 100_000,
        "epoch": 0,
    }
    assert (messages.PROTOCOL_VERSION, messages.BUCKETS, messages.FULL_SYNC_MAX) == (1, 256, 256)
