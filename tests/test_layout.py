"""The plan of the house: which room may know which, what the pure modules must not touch, and what is public."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import roskva
from roskva.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}

# model <- protocol <- cores <- shells <- cli. A room may import its own modules, and those named here with all below them.
BASE = {"errors", "model", "probes"}
CONTRACTS = {"table.interface", "feed.interface"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "probes": set(),
    "model": {"errors"},
    "address": {"errors"},
    "durable": set(),
    "parent": set(),
    "tls": {"errors"},
    "config": BASE | {"address"},
    "protocol": BASE,
    "matcher": BASE | CONTRACTS | {"protocol"},
    "client": BASE | {"durable", "protocol"},
    "publisher": BASE | {"protocol"},
    "telemetry": BASE | {"config"},
    "table": BASE | {"config", "durable"},
    "feed": BASE | {"config", "table"},
    "access": BASE | {"config"},
    "registrar": BASE | {"access", "config", "protocol", "table", "feed", "telemetry"},
    "keys": BASE | {"durable", "protocol"},
    "propagation": BASE | {"address", "config", "keys", "protocol", "registrar", "table"},
    "pipeline": BASE
    | {"address", "config", "keys", "protocol", "matcher", "registrar", "propagation", "table", "feed", "telemetry", "parent"},
    "gateway": BASE
    | {"access", "address", "config", "durable", "keys", "protocol", "matcher", "registrar", "propagation", "table", "feed", "telemetry"}
    | {"tls", "pipeline.health", "pipeline.offsets", "pipeline.scratch", "pipeline.sweeps.record"},
    "cli": BASE
    | {
        "access",
        "address",
        "parent",
        "config",
        "durable",
        "keys",
        "client",
        "publisher",
        "gateway",
        "pipeline",
        "table",
        "feed",
        "simulation",
        "conformance",
        "telemetry",
        "load",
        "capture",
        "Client",
        "Publisher",
    },
    "simulation": BASE
    | {
        "access",
        "config",
        "protocol",
        "client",
        "matcher",
        "registrar",
        "table",
        "feed",
        "telemetry",
        "gateway",
        "propagation",
        "pipeline",
        "capture",
    },
    "capture": BASE | {"address", "durable", "publisher", "tls"},
    "outbox": BASE | {"publisher"},
    "testing": BASE | {"protocol", "client", "publisher", "registrar", "matcher", "table.interface"},
    "conformance": BASE | {"protocol", "client", "testing"},
    "load": BASE | {"durable", "protocol"},
    "__main__": {"cli"},
    "__init__": BASE | {"client", "publisher"},
}

# Pure functions over data: they run in the service, in Spark tasks and in the tests' models alike.
PURE = re.compile(
    r"roskva\.(model|errors|probes|protocol\..*|matcher\..*|client\.(?!shell|channel|livecache|mailbox|statefile|callbacks|__init__).*"
    r"|registrar\.(core.*|cells|members|row|events|wheel)|table\.interface|feed\.interface|access\.(identity|limits|patterns)"
    r"|pipeline\.(offsets|pace)|telemetry\.(histogram|latency)"
    r"|capture\.(positions|updates|interface|core|flows|policies|actions|caravans|convoy|limits|filters|filtering|expressions|sharding"
    r"|mapping|balance|ownership|wire|watching)|load\.(clients|measuring|plan|wheel))"
)
IMPURE = {
    "asyncio", "datetime", "logging", "multiprocessing", "os", "pyspark", "random", "secrets", "signal", "socket", "sqlite3",
    "subprocess", "threading", "time", "aiohttp", "picows", "uvloop",
}  # fmt: skip


def imports(path: Path, annotations: bool = True) -> Iterator[str]:
    """Every module that a file names in an import, wherever it stands; `from a import b` is also a.b."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not annotations and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(name: str, allowed: set[str]) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    room = module.split(".")[1]
    assert room in ALLOWED, f"a new room: say in {Path(__file__).name} what it may import"
    for name in imports(MODULES[module]):
        target = name.removeprefix("roskva.")
        if name.startswith("roskva.") and any(candidate.startswith(name) for candidate in MODULES):
            rooms = {entry.split(".")[0] for entry in ALLOWED[room] if "." in entry}
            # `from roskva.table import interface` names the room and then the module: judge the longer name.
            assert inside(target, ALLOWED[room] | {room}) or target in rooms, f"{module} must not import {name}"


@pytest.mark.parametrize("module", [module for module in MODULES if PURE.fullmatch(module)])
def test_pure_modules_touch_nothing_outside(module: str) -> None:
    for name in imports(MODULES[module], annotations=False):
        assert name.split(".")[0] not in IMPURE, f"{module} is pure and must not import {name}"
        if name in MODULES:
            assert PURE.fullmatch(name), f"{module} is pure and must not import {name}, which is not"


def test_importing_the_pure_modules_brings_in_nothing_impure() -> None:
    """Whatever they import, directly or not, at run time: the cores run in the service, in Spark's tasks and in tests alike."""
    pure = [module for module in MODULES if PURE.fullmatch(module) and not module.endswith("__init__")]
    forbidden = {"asyncio", "pyspark", "random", "socket", "sqlite3", "threading", "logging"}
    check = f"import sys, {', '.join(pure)}; print(sorted({forbidden!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    )
    assert done.stdout.strip() == "[]"


def test_the_pure_modules_are_there() -> None:
    for module in ("model", "protocol.messages", "client.core", "registrar.core", "matcher.core", "pipeline.pace"):
        assert PURE.fullmatch(f"roskva.{module}")
        assert f"roskva.{module}" in MODULES


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[module].read_text())), f"{module} has no docstring"
    assert not re.search(r"\.(utils?|helpers?|managers?|common|misc)$", module)


@pytest.mark.parametrize("module", MODULES)
def test_long_modules_say_why(module: str) -> None:
    text = MODULES[module].read_text()
    if text.count("\n") > 500:
        assert "long" in (ast.get_docstring(ast.parse(text)) or ""), f"{module} has more than 500 lines and does not say why"


def test_nothing_imports_the_command_line() -> None:
    for module, path in MODULES.items():
        if not module.startswith(("roskva.cli", "roskva.__main__")):
            assert not any(inside(name, {"roskva.cli"}) for name in imports(path)), module


def test_public_names() -> None:
    assert sorted(roskva.__all__) == [
        "BlockingLiveCache",
        "BlockingPublisher",
        "Channel",
        "Client",
        "LiveCache",
        "Notification",
        "Publisher",
        "SqliteStore",
        "errors",
    ]
    for name in roskva.__all__:
        assert getattr(roskva, name) is not None


def test_the_package_alone_imports_nothing_heavy() -> None:
    check = "import sys, roskva; print(sorted({'aiohttp', 'pyspark', 'uvloop', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    )
    assert done.stdout.strip() == "[]"


def commands() -> set[str]:
    actions = [action for action in build_parser()._actions if action.choices]
    return set(actions[0].choices or ())


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_and_files_that_documents_name_exist(document: Path) -> None:
    text = document.read_text()
    blocks = "\n".join(re.findall(r"^```(?:sh|console|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    spoken = "\n".join([blocks, *re.findall(r"`([^`\n]+)`", text)])
    for name in re.findall(r"^\$? ?(?:\S*/)?roskva ([a-z][a-z-]+)", spoken, re.MULTILINE):
        assert name in commands(), f"there is no command roskva {name}"
    for name in re.findall(r"^\$? ?make ([a-z]+)", spoken, re.MULTILINE):
        assert name in targets(), f"there is no target make {name}"
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / link).exists(), f"{link} is not there"


@pytest.mark.parametrize("target", ["install", "up", "test", "lint", "bench", "clean", "lock", "format"])
def test_make_alone_prints_the_targets(target: str) -> None:
    printed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^  make {target} +\S", printed, re.MULTILINE)


def test_the_lock_names_every_dependency_with_hashes_and_no_addresses() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert " @ " not in lock
    entries = [entry for entry in re.split(r"^(?=[a-z])", lock, flags=re.MULTILINE) if entry.strip()]
    assert len(entries) > 30
    for entry in entries:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]
    for name in ("pyspark==4.2.0", "picows==2.3.1", "msgspec==", "aiohttp=="):
        assert any(entry.startswith(name) for entry in entries), name
