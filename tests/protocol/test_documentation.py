"""docs/protocol.md names every field, default and limit of the messages: a stranger writes a client from it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from roskva.errors import RoskvaError
from roskva.gateway.websocket import CLOSE_CODES
from roskva.protocol import messages

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
WIRE = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, messages.Wire)]
FIELDS = sorted({name for kind in WIRE for name in kind.__struct_fields__})


def codes() -> set[str]:
    found, kinds = set(), [RoskvaError]
    while kinds:
        kind = kinds.pop()
        found.add(kind.code)
        kinds += kind.__subclasses__()
    return found


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_named(name: str) -> None:
    assert re.search(rf"`(\w+\.)*{name}`|`{name}[:`]", DOCUMENT)


@pytest.mark.parametrize("name", messages.ClientMessage.__struct_fields__)
def test_every_field_of_a_client_message_has_its_row(name: str) -> None:
    assert f"| `{name}` |" in DOCUMENT.split("## Messages of the server")[0]


@pytest.mark.parametrize("name", messages.ServerMessage.__struct_fields__)
def test_every_field_of_a_server_message_has_its_row(name: str) -> None:
    assert f"| `{name}` |" in DOCUMENT.split("## Messages of the server")[1]


@pytest.mark.parametrize(("name", "default"), msgspec.structs.asdict(messages.Config()).items())
def test_the_defaults_of_the_configuration_are_the_documented_ones(name: str, default: float) -> None:
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]]
    names = re.findall(r"`(\w+)`", row.split("|")[1])
    values = [float(value) for value in row.split("|")[2].split(",")]
    assert values[names.index(name)] == default


def test_every_close_code_of_the_gateway_is_documented() -> None:
    for code in {*CLOSE_CODES.values(), 1008}:
        assert f"\n| {code} |" in DOCUMENT


def test_every_error_that_is_named_exists() -> None:
    section = DOCUMENT.split("## Errors")[1].split("## What a client keeps")[0]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+|unavailable|overloaded)`", section))
    assert named
    assert named <= codes()


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^##+ (.*)", DOCUMENT, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([\w-]+)\)", DOCUMENT)) <= anchors
