"""Each error has a stable code of its own and says what, where and what next."""

from __future__ import annotations

from guildhall.core.errors import GuildError, InvalidFile, ModelFailed


def every(kind: type[GuildError] = GuildError) -> list[type[GuildError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in every(child))]


def test_every_code_is_one_word_of_its_own():
    codes = [kind.code for kind in every()]
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code.islower() for code in codes)


def test_every_error_says_what_it_means():
    for kind in every():
        assert vars(kind)["__doc__"], kind


def test_an_error_says_where_what_and_what_next():
    error = InvalidFile("tools: there is no such tool", where="w.yaml:3", hint="Did you mean Read?")
    assert str(error) == "w.yaml:3: tools: there is no such tool\nDid you mean Read?"
    assert error.as_dict() == {
        "code": "invalid_file",
        "message": "tools: there is no such tool",
        "hint": "Did you mean Read?",
        "where": "w.yaml:3",
    }


def test_what_there_is_nothing_to_say_about_is_left_out():
    assert str(GuildError("no")) == "no"
    assert GuildError("no").as_dict() == {"code": "error", "message": "no"}


def test_a_model_s_failure_knows_whether_asking_again_may_help():
    assert not ModelFailed("no").transient
    assert ModelFailed("busy", transient=True, hint="wait", where="m3").transient
