"""Placeholders: filled in once, quoted in messages, variables in commands, and never a secret for a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.errors import InvalidFile, Refused
from guildhall.room.model import TextPart
from guildhall.workflow.placeholders import Values, check_secrets, fill, shell_command

VALUES = Values(
    workflow="review",
    tag="pr-1",
    params={"pr-no": "12; rm -rf ~", "topic": "${{ diff }}"},
    env={"TEAM": "us", "API_KEY": "12345678"},
    outputs={"diff": "@coder $(reboot) ${{ env.TEAM }}"},
)


@pytest.mark.req("AW-4")
def test_all_placeholders_are_filled_in_and_quoted():
    text = "@reviewer ${{ diff }} in ${{workflow.name}}:${{ workflow.tag }} by ${{ env.TEAM }}: ${{ params.topic }}"
    assert fill(text, VALUES).parts == (
        TextPart("@reviewer "),
        TextPart("@coder $(reboot) ${{ env.TEAM }}", is_quoted=True),
        TextPart(" in "),
        TextPart("review", is_quoted=True),
        TextPart(":"),
        TextPart("pr-1", is_quoted=True),
        TextPart(" by "),
        TextPart("us", is_quoted=True),
        TextPart(": "),
        TextPart("${{ diff }}", is_quoted=True),
    )


def test_a_placeholder_can_be_escaped():
    assert (
        fill("$${{ diff }} and ${{ workflow.tag }} and $$ and ${x}", VALUES).text
        == "${{ diff }} and pr-1 and $$ and ${x}"
    )


@pytest.mark.req("AW-4")
def test_a_value_in_a_command_is_a_variable():
    text = 'gh pr view "${{ params.pr-no }}" ${{ diff }} ${{ env.TEAM }} ${{ workflow.tag }} $HOME'
    assert shell_command(text) == 'gh pr view "${GUILD_params_pr_no}" ${GUILD_diff} ${TEAM} ${GUILD_workflow_tag} $HOME'


def test_a_placeholder_without_a_value_is_refused_with_a_hint():
    with pytest.raises(InvalidFile, match=r"env\.X \}\}: X is not set"):
        fill("${{ env.X }}", VALUES)
    with pytest.raises(InvalidFile, match="--param x=VALUE"):
        fill("${{ params.x }}", VALUES)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("${{ env.API_KEY }}", VALUES),
        ("${{ env.PLAIN }}", Values(workflow="w", tag="t", env={"PLAIN": "ghp_abcdefgh"})),
        ("${{ diff }}", Values(workflow="w", tag="t", outputs={"diff": "sk-abc"})),
        (
            "${{ diff }}",
            Values(workflow="w", tag="t", env={"TOKEN": "quite-secret"}, outputs={"diff": "a quite-secret b"}),
        ),
        ("${{ params.x }}", Values(workflow="w", tag="t", params={"x": "AKIA123"})),
    ],
)
def test_a_secret_in_a_text_for_a_model_is_refused(text: str, values: Values):
    with pytest.raises(Refused, match="secret") as caught:
        check_secrets(f"hello {text}", values)
    assert caught.value.hint


def test_a_text_without_secrets_is_accepted():
    check_secrets("${{ diff }} ${{ params.topic }} ${{ env.TEAM }} ${{ author }}", VALUES)


@given(st.text(), st.text(), st.text())
def test_placeholders_are_filled_in_once_and_no_text_is_lost(before: str, value: str, after: str):
    before, after = before.replace("$", "S"), after.replace("$", "S")
    pieces = fill(f"{before}${{{{ diff }}}}{after}", Values(workflow="w", tag="t", outputs={"diff": value})).parts
    assert "".join(piece.text for piece in pieces) == before + value + after
    assert [piece.text for piece in pieces if piece.is_quoted] == ([value] if value else [])
