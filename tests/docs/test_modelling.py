"""The programs of docs/modelling.md run, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.client.gateway import GatewayThread

DOCUMENT = Path(__file__).parents[2] / "docs" / "modelling.md"


def test_the_programs_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    with GatewayThread() as gateway:
        for program in programs:
            namespace: dict[str, object] = {"__name__": "program"}
            exec(compile(program.replace("http://127.0.0.1:8470", gateway.url), str(DOCUMENT), "exec"), namespace)
    assert capsys.readouterr().out.splitlines() == ["1 2 3", "1 True", "unknown first draft", "2 second draft"]
