"""What one language's decoder refuses, the other's refuses too.

JSON's text says more than its values: 1.0 is a whole number to JavaScript, and none to msgspec. Servers send neither 1.0 nor numbers above
2^53; these two are left out.
"""

from __future__ import annotations

import json

import pytest

from roskva.errors import MalformedMessage
from roskva.protocol.messages import decode_server
from tests.clients.stdio import Node, TypescriptCore

REFUSED = r"""
{
{}{}
[]
null
7
{"a":1,}
{"token":7}
{"token":null}
{"token":NaN}
{"v":"1"}
{"v":true}
{"v":1.5}
{"unsettled":-1}
{"unsettled":4294967297}
{"summary":{"count":1,"digest":"xyz"}}
{"summary":{"count":1}}
{"grant":{"nonce":"n"}}
{"start_anew":{"code":"c"}}
{"start_anew":{"code":"c","keep":1}}
{"status":null}
{"status":[{"object":"a"}]}
{"notify":{}}
{"notify":[{"object":"a","seqno":7}]}
{"notify":[{"object":"a","seqno":"01"}]}
{"notify":[{"object":"a","seqno":"1","epoch":-1}]}
{"notify":[{"object":"a","seqno":"1","version":"12345678901234567890"}]}
{"sync_request":{"op":-1}}
{"sync_request":{"buckets":[256]}}
{"config":{"quiet_s":"1"}}
{"config":{"quiet_s":1e999}}
{"config":{"epoch":4294967296}}
{"error":{"code":"c"}}
{"error":{"code":"c","message":null}}
{"credential":[]}
{"credential":{"wanted":1}}
{"credential":{"good_s":"1"}}
{"credential":{"code":7}}
"""

ACCEPTED = r"""
{}
 {"later": [{"token": 7}]}
{"v":2}
{"summary":null,"grant":null,"config":{},"notify":[]}
{"token":"a","token":"b"}
{"time_ms":9007199254740991}
{"credential":null}
{"credential":{"good_s":3600.5,"later":1}}
{"config":{"quiet_s":1,"epoch":4294967295}}
{"notify":[{"object":"a","seqno":"9999999999999999999","version":null}]}
"""


@pytest.fixture
def core(node: Node) -> TypescriptCore:
    return TypescriptCore(node, "demo", "phone", random=lambda: 0.5, nonce=lambda: "n")


@pytest.mark.parametrize("text", ["", *REFUSED.strip().splitlines(), json.dumps({"token": "t" * 513}), json.dumps({"token": "😀" * 513})])
def test_both_refuse(text: str, core: TypescriptCore) -> None:
    with pytest.raises(MalformedMessage):
        decode_server(text.encode())
    with pytest.raises(MalformedMessage):
        core.hear(0.0, text)


@pytest.mark.parametrize("text", [*ACCEPTED.strip().splitlines(), json.dumps({"token": "😀" * 512})])
def test_both_accept(text: str, core: TypescriptCore) -> None:
    assert decode_server(text.encode()) is not None
    assert core.hear(0.0, text) == []
