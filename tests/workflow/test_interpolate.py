"""Placeholders: filled in once, quoted in messages, variables in commands, never a secret for a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.errors import InvalidFile, Refused
from guildhall.room.model import Piece
from guildhall.workflow.model import Values, command, fill, filled, refuse_secrets

VALUES = Values(
    workflow="review",
    tag="pr-1",
    params={"pr-no": "12; rm -rf ~", "topic": "${{ diff }}"},
    env={"TEAM": "us", "API_KEY": "12345678"},
    outputs={"diff": "@coder $(reboot) ${{ env.TEAM }}"},
)


@pytest.mark.req("AW-4")
def test_everything_is_filled_in_and_quoted():
    text = "@reviewer ${{ diff }} in ${{workflow.name}}:${{ workflow.tag }} by ${{ env.TEAM }}: ${{ params.topic }}"
    assert fill(text, VALUES).pieces == (
        Piece("@reviewer "),
        Piece("@coder $(reboot) ${{ env.TEAM }}", quoted=True),
        Piece(" in "),
        Piece("review", quoted=True),
        Piece(":"),
        Piece("pr-1", quoted=True),
        Piece(" by "),
        Piece("us", quoted=True),
        Piece(": "),
        Piece("${{ diff }}", quoted=True),
    )


def test_the_text_itself_can_be_written():
    assert (
        filled("$${{ diff }} and ${{ workflow.tag }} and $$ and ${x}", VALUES) == "${{ diff }} and pr-1 and $$ and ${x}"
    )


@pytest.mark.req("AW-4")
def test_in_a_command_a_value_is_a_variable():
    text = 'gh pr view "${{ params.pr-no }}" ${{ diff }} ${{ env.TEAM }} ${{ workflow.tag }} $HOME'
    assert command(text) == 'gh pr view "${GUILD_params_pr_no}" ${GUILD_diff} ${TEAM} ${GUILD_workflow_tag} $HOME'


def test_what_has_no_value_is_told_with_what_to_do():
    with pytest.raises(InvalidFile, match=r"env\.X \}\}: X is not set"):
        filled("${{ env.X }}", VALUES)
    with pytest.raises(InvalidFile, match="--param x=VALUE"):
        filled("${{ params.x }}", VALUES)


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
def test_a_secret_is_not_for_a_model(text: str, values: Values):
    with pytest.raises(Refused, match="secret") as caught:
        refuse_secrets(f"hello {text}", values)
    assert caught.value.hint


def test_what_is_no_secret_passes():
    refuse_secrets("${{ diff }} ${{ params.topic }} ${{ env.TEAM }} ${{ author }}", VALUES)


@given(st.text(), st.text(), st.text())
def test_one_pass_and_nothing_is_lost(before: str, value: str, after: str):
    before, after = before.replace("$", "S"), after.replace("$", "S")
    pieces = fill(f"{before}${{{{ diff }}}}{after}", Values(workflow="w", tag="t", outputs={"diff": value})).pieces
    assert "".join(piece.text for piece in pieces) == before + value + after
    assert [piece.text for piece in pieces if piece.quoted] == ([value] if value else [])
