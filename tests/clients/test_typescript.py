"""The TypeScript client by its own tools: types, unit tests, bundle. scripts/setup.sh has installed them; nothing is fetched here."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

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


def test_types_and_unit_tests() -> None:
    passed = re.search(r"^(?:ℹ|#) pass (\d+)$", npm("test"), re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 0


def test_the_build_prints_the_size_of_the_bundle() -> None:
    sizes = re.findall(r"^(dist/\S+): \d+ bytes, (\d+) gzipped \(limit 12288\)$", npm("run", "build"), re.MULTILINE)
    assert [name for name, _ in sizes] == ["dist/roskva-core.min.js"]
    check = """
        import { ClientCore } from "./dist/roskva-core.min.js";
        import * as modules from "./dist/core/index.js";
        const core = new ClientCore("demo", "phone", { random: () => 0.5, nonce: () => "n" });
        console.log(core.start(0).length, core.connected(0)[0].kind, typeof modules.ClientCore);
    """
    said = subprocess.run(
        [NODE, "--input-type=module", "--eval", check], cwd=PACKAGE, capture_output=True, text=True, check=True, timeout=30
    )
    assert said.stdout.split() == ["1", "send", "function"]


def test_the_lock_names_every_package_with_its_hash_and_no_addresses() -> None:
    lock = (PACKAGE / "package-lock.json").read_text()
    assert "://" not in lock
    packages = json.loads(lock)["packages"]
    assert len(packages) > 3
    assert [name for name, package in packages.items() if name and not package["integrity"].startswith("sha512-")] == []


@pytest.mark.parametrize("kind", ["dependencies", "optionalDependencies", "peerDependencies"])
def test_nothing_is_needed_at_run_time(kind: str) -> None:
    assert kind not in json.loads((PACKAGE / "package.json").read_text())
