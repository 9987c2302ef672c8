"""Every parser for a few seconds (fuzzing/): one minute in all. `make fuzz` goes on for as long as one likes."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from fuzzing.mutations import BYTES_MAX, mutate, of_json
from fuzzing.running import Run, Target, TooSlow, failed_once, measured, shrunk
from fuzzing.targets import targets

TARGETS = {target.name: target for target in targets()}
FIXED_SEED = 2011
FRESH_SEED = secrets.randbelow(2**32)
EACH_S = 50.0 / len(TARGETS) / 2
NESTED = b"[[["


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seed", ["fixed", "fresh"])
def test_only_documented_errors_come_out_and_in_time(name: str, seed: str) -> None:
    run = Run(TARGETS[name], FIXED_SEED if seed == "fixed" else FRESH_SEED)
    finding = run.go(EACH_S)
    print(f"seed {run.seed}: {run.inputs:,} inputs, {len(run.answers)} kinds of answers")
    assert finding is None, f"{finding}\nThe seed was {run.seed}. Add the line with the literal to fuzzing/inputs_that_failed.txt."
    assert run.inputs > 100


@pytest.mark.parametrize("name", TARGETS)
def test_what_failed_once_does_not_fail_any_more(name: str) -> None:
    target = TARGETS[name]
    for data in failed_once(name):
        measured(target, data)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_broken_begins_as_something_good(name: str) -> None:
    answers = {measured(TARGETS[name], seed) for seed in TARGETS[name].seeds}
    assert any(answer.startswith(("read", "good", "a name", "True", "200", "[")) for answer in answers), answers


def planted(data: bytes) -> str:
    """A parser with a defect."""
    if NESTED in data and b"nonce" in data:
        raise RecursionError
    return str(len(data) // 100)


def test_a_defect_is_found_and_made_small() -> None:
    target = replace(TARGETS["client-messages"], name="planted", check=planted)
    finding = Run(target, FIXED_SEED).go(20.0)
    assert finding is not None
    assert len(finding.data) == len(NESTED + b"nonce")
    assert finding.target == "planted"
    assert "RecursionError" in finding.error


def test_the_same_seed_makes_the_same_inputs() -> None:
    made: list[list[bytes]] = []
    for _ in range(2):
        inputs: list[bytes] = []
        target = replace(TARGETS["client-messages"], check=lambda data, inputs=inputs: inputs.append(data) or str(len(data)))  # type: ignore[misc]
        Run(target, FIXED_SEED).go(0.2)
        made.append(inputs[:200])
    assert len(made[0]) > 100
    assert all(one == another for one, another in zip(*made, strict=False))
    assert all(len(data) <= BYTES_MAX for data in made[0])


def test_what_takes_too_long_is_a_finding() -> None:
    def slow(data: bytes) -> str:
        sum(range(10_000_000))
        return ""

    target = Target("slow", "", [b"x"], slow, of_json)
    with pytest.raises(TooSlow, match="1 bytes took"):
        measured(target, b"x")


def test_structures_are_changed_and_not_only_bytes() -> None:
    """Most broken JSON is still JSON: it gets past the first character of a parser."""
    import json
    from random import Random

    chance, good = Random(1), 0
    seeds = TARGETS["client-messages"].seeds
    for _ in range(500):
        try:
            json.loads(mutate(chance, chance.choice(seeds), seeds, of_json))
            good += 1
        except (ValueError, RecursionError):
            pass
    assert good > 150


def test_shrinking_keeps_what_fails() -> None:
    target = Target("planted", "", [], planted, of_json)
    data, error = shrunk(target, b"x" * 1_000 + NESTED + b"y" * 1_000 + b"nonce", RecursionError())
    assert data == NESTED + b"nonce"
    assert "RecursionError" in error
