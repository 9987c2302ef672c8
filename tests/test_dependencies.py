"""docs/dependencies.md names what is installed: no more, and no less."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs/dependencies.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
DIRECT = {
    "Of clients and publishers": PROJECT["dependencies"],
    "Of the service": OPTIONAL["server"],
    "Of capture": OPTIONAL["capture"],
    "Of those who change it": OPTIONAL["dev"],
}


def named(requirements: list[str]) -> list[str]:
    return sorted(re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in requirements)


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def in_tables(text: str) -> list[str]:
    return sorted(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def test_every_direct_dependency_is_in_its_table() -> None:
    for title, requirements in DIRECT.items():
        assert in_tables(section(title).split("TypeScript")[0]) == named(requirements), title


def test_every_tool_of_the_typescript_client_is_in_its_table() -> None:
    package = json.loads((ROOT / "clients/typescript/package.json").read_text())
    assert in_tables(section("Of those who change it").split("TypeScript")[1]) == sorted(package["devDependencies"])
    assert "dependencies" not in package, "the client depends on nothing"


def test_everything_else_in_the_lock_is_listed() -> None:
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    direct = {name for requirements in DIRECT.values() for name in named(requirements)}
    listed = re.findall(r"`([^`]+)`", section("What comes with them").split("By their own metadata")[0])
    assert sorted(listed) == sorted(locked - direct)
