"""Errors: each class has a stable code, and an error has a place, a message and a hint."""

from __future__ import annotations

from guildhall.core.errors import GuildError, InvalidFile, ModelFailed


def all_errors(kind: type[GuildError] = GuildError) -> list[type[GuildError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in all_errors(child))]


def test_every_code_is_unique_and_lower_case():
    codes = [kind.code for kind in all_errors()]
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code.islower() for code in codes)


def test_every_error_class_has_a_docstring():
    for kind in all_errors():
        assert vars(kind)["__doc__"], kind


def test_an_error_has_place_message_and_hint():
    error = InvalidFile("tools: there is no such tool", where="w.yaml:3", hint="Did you mean Read?")
    assert str(error) == "w.yaml:3: tools: there is no such tool\nDid you mean Read?"
    assert error.as_dict() == {
        "code": "invalid_file",
        "message": "tools: there is no such tool",
        "hint": "Did you mean Read?",
        "where": "w.yaml:3",
    }


def test_a_missing_place_or_hint_is_left_out():
    assert str(GuildError("no")) == "no"
    assert GuildError("no").as_dict() == {"code": "error", "message": "no"}


def test_a_model_error_can_be_marked_as_transient():
    assert not ModelFailed("no").transient
    assert ModelFailed("busy", transient=True, hint="wait", where="m3").transient
