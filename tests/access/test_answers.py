"""What is kept of answers: each application has a part of the room, and all of them together a limit."""

from __future__ import annotations

import pytest

from roskva.access import answers as module
from roskva.access.answers import Answers, Question


def questions(application: str, count: int, first: int = 0, user: str = "alice") -> list[Question]:
    return [Question(application, user, "phone", f"doc:{number}") for number in range(first, first + count)]


def keep(answers: Answers, asked: list[Question], until_s: float = 100.0) -> None:
    answers.keep(asked[0].application, [(one, True) for one in asked], until_s)


def known(answers: Answers, asked: list[Question]) -> list[int]:
    return [number for number, one in enumerate(asked) if answers.known(one, 0.0)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr(module, "ANSWERS_MAX", 30)
    monkeypatch.setattr(module, "ANSWERS_PER_APPLICATION_MAX", 10)
    return Answers()


def test_one_application_pushes_out_its_own(small: Answers) -> None:
    keep(small, questions("news", 5))
    keep(small, questions("shop", 10))
    assert known(small, questions("shop", 1)) == [0]  # used, so that it stays
    keep(small, questions("shop", 8, first=10))
    assert known(small, questions("shop", 18)) == [0, 9, *range(10, 18)]
    assert known(small, questions("news", 5)) == [0, 1, 2, 3, 4]
    assert len(small) == 15


def test_the_one_that_has_most_gives_way_when_there_is_no_room(small: Answers) -> None:
    for application in ("a", "b", "c"):
        keep(small, questions(application, 10))
    keep(small, questions("small", 4))
    assert len(small) == 30
    assert known(small, questions("small", 4)) == [0, 1, 2, 3]
    assert all(len(known(small, questions(application, 10))) >= 5 for application in ("a", "b", "c"))


def test_many_applications_with_few_answers_each_are_bounded_too(small: Answers) -> None:
    for number in range(100):
        keep(small, questions(f"app{number}", 1))
        assert known(small, questions(f"app{number}", 1)) == [0], "whoever asked must be able to look"
    assert len(small) == 30
    assert len(small._kept) == len(small._of_users) == 30


def test_what_is_kept_again_counts_once_and_for_its_new_time(small: Answers) -> None:
    asked = questions("shop", 3)
    keep(small, asked, 10.0)
    small.keep("shop", [(asked[0], False)], 20.0)
    assert len(small) == 3
    assert [small.known(one, 15.0) for one in asked] == [False, None, None]
    assert len(small) == 1


def test_forgetting_leaves_nothing_behind(small: Answers) -> None:
    keep(small, questions("shop", 3))
    keep(small, questions("shop", 3, user="bob"))
    keep(small, questions("news", 3))
    small.keep("empty", [], 100.0)
    small.forget("shop", "alice")
    assert known(small, questions("shop", 3)) == []
    assert known(small, questions("shop", 3, user="bob")) == known(small, questions("news", 3)) == [0, 1, 2]
    for application in ("shop", "news", "never heard of"):
        small.forget(application)
    assert len(small) == 0
    assert not small._kept
    assert not small._of_users
