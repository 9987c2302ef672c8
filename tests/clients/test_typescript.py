"""The TypeScript client by its own tools: types, unit tests, bundle. scripts/setup.sh has installed them; nothing is fetched here."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from roskva.gateway.http import STATIC
from tests.clients.stdio import NODE, PACKAGE

NPM = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def npm(*arguments: str) -> str:
    assert (PACKAGE / "node_modules").is_dir(), "the tools of clients/typescript are not installed: run scripts/setup.sh test"
    environment = os.environ | {"PATH": f"{NODE.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [NODE, NPM, *arguments], cwd=PACKAGE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def run(program: str) -> list[str]:
    """The words that a module prints, which imports what was built."""
    said = subprocess.run(
        [NODE, "--input-type=module", "--eval", program], cwd=PACKAGE, capture_output=True, text=True, check=True, timeout=30
    )
    return said.stdout.split()


def test_types_and_unit_tests() -> None:
    passed = re.search(r"^(?:ℹ|#) pass (\d+)$", npm("test"), re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 0


@pytest.fixture(scope="module")
def built() -> str:
    """What the build says."""
    return npm("run", "build")


def test_the_build_prints_the_size_of_the_bundles(built: str) -> None:
    sizes = re.findall(r"^dist/(\S+): \d+ bytes gzipped( \(limit 12000\))?, \d+ with what is loaded", built, re.MULTILINE)
    limited = {name: bool(limit) for name, limit in sizes}
    assert limited == {
        "roskva.min.js": False,
        "roskva-core.min.js": True,
        "roskva-livecache.min.js": False,
        "roskva-react.min.js": False,
        "roskva-testing.min.js": False,
    }
    whole = re.findall(r"^all of a Client (with|without) tabs: (\d+) bytes gzipped \(limit (\d+)\)", built, re.MULTILINE)
    (with_, bytes_with, limit_with), (without, bytes_without, limit_without) = whole
    assert (with_, limit_with, without, limit_without) == ("with", "22700", "without", "17900")  # README.md says them, too
    assert re.search(r"^what a Client loads at once: \d+ bytes gzipped \(limit 11999\)$", built, re.MULTILINE) is not None
    assert re.search(r"^what a Client with a LiveCache loads at once: \d+ bytes gzipped \(limit 17400\)$", built, re.MULTILINE) is not None
    one_file = re.search(r"^dist/roskva\.js: (\d+) bytes gzipped", built, re.MULTILINE)
    assert one_file is not None
    assert int(one_file[1]) > int(bytes_with) > int(bytes_without)
    check = """
        import { ClientCore } from "./dist/roskva-core.min.js";
        import * as modules from "./dist/core/index.js";
        const core = new ClientCore("demo", "phone", { random: () => 0.5, nonce: () => "n" });
        console.log(core.start(0).length, core.connected(0)[0].kind, typeof modules.ClientCore);
    """
    assert run(check) == ["1", "send", "function"]


def test_the_gateway_serves_what_the_sources_say(built: str) -> None:
    fresh = (PACKAGE / "dist" / "roskva.js").read_bytes()
    assert fresh == (STATIC / "roskva.js").read_bytes(), "the sources were changed: run `npm run page` in clients/typescript, and commit it"
    check = """
        import { Client, IndexedDbStore, LiveCache, MemoryState, WebStorageState } from "./dist/roskva.js";
        console.log([Client, IndexedDbStore, LiveCache, MemoryState, WebStorageState].every((one) => typeof one === "function"));
    """
    assert run(check) == ["true"]


def test_the_lock_names_every_package_with_its_hash_and_no_addresses() -> None:
    lock = (PACKAGE / "package-lock.json").read_text()
    assert "://" not in lock
    packages = json.loads(lock)["packages"]
    assert len(packages) > 3
    assert [name for name, package in packages.items() if name and not package["integrity"].startswith("sha512-")] == []


@pytest.mark.parametrize("kind", ["dependencies", "optionalDependencies"])
def test_nothing_is_needed_at_run_time(kind: str) -> None:
    assert kind not in json.loads((PACKAGE / "package.json").read_text())


def test_react_is_needed_by_those_who_have_it() -> None:
    package = json.loads((PACKAGE / "package.json").read_text())
    assert list(package["peerDependencies"]) == ["react"]
    assert package["peerDependenciesMeta"] == {"react": {"optional": True}}
    importing = [path.name for path in (PACKAGE / "src").rglob("*.ts") if 'from "react"' in path.read_text()]
    assert importing == ["react.ts"]


def test_every_export_is_built_from_a_source() -> None:
    exports = json.loads((PACKAGE / "package.json").read_text())["exports"]
    assert {".", "./core", "./node", "./livecache", "./livecache/sqlite", "./react", "./testing"} <= exports.keys()
    for entry in exports.values():
        source = entry["default"].replace("./dist/", "src/").replace(".js", ".ts")
        assert (PACKAGE / source).is_file()
        assert entry["types"] == entry["default"].replace(".js", ".d.ts")
