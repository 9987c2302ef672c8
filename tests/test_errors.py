"""Every error says what happened, to what, and what to do; docs/errors.md lists them all."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roskva import errors
from roskva.errors import RoskvaError, Unavailable, reference

ROOT = Path(__file__).resolve().parents[1]

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, RoskvaError)]


def test_the_reference_is_up_to_date() -> None:
    # A process of its own: here other modules may have been imported that derive errors of their own.
    printed = subprocess.run(
        [sys.executable, "-m", "roskva.errors"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert (ROOT / "docs/errors.md").read_text() == printed.stdout, "run: python -m roskva.errors > docs/errors.md"


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_in_the_tree_and_in_the_reference(cls: type[RoskvaError]) -> None:
    assert cls.__name__ in (errors.__doc__ or "")
    assert f"| `{cls.code}` | {cls.status} |" in reference()


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_what_to_do_in_one_line(cls: type[RoskvaError]) -> None:
    assert cls.advice.endswith(".")
    assert "\n" not in cls.advice


@pytest.mark.parametrize("cls", CLASSES)
def test_what_is_transient_is_the_servers_fault(cls: type[RoskvaError]) -> None:
    assert cls.transient == issubclass(cls, Unavailable)
    assert cls.transient == (cls.status in (429, 503))


def test_a_message_does_not_grow_with_its_input() -> None:
    assert len(str(errors.InvalidVersion("9" * 1_000_000))) < 300
    assert len(str(errors.InvalidName("n" * 1_000_000, "it is too long"))) < 300
