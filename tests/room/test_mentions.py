"""Mentions: only the own words of the sender mention agents. Code, quotes, addresses and quoted text do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.room.mentions import find
from guildhall.room.model import MessageText, TextPart

TEAM = ("coordinator", "reviewer", "coder", "a.b", "qa-2")


def reached_agents(text: str) -> tuple[str, ...]:
    return find(MessageText.own(text), TEAM).reached


@pytest.mark.req("AW-24")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("@coder fix it", ("coder",)),
        ("please, @coder.", ("coder",)),
        ("(@coder)", ("coder",)),
        ("**@coder**: fix", ("coder",)),
        ("@Coder, @REVIEWER", ("coder", "reviewer")),
        ("@coder's fix is right", ("coder",)),
        ("@coder/@reviewer both", ("coder", "reviewer")),
        ("@coder @coder", ("coder",)),
        ("hey\n@coder\nfix it", ("coder",)),
        ("@a.b and @qa-2.", ("a.b", "qa-2")),
        ("- @coder\n- @reviewer", ("coder", "reviewer")),
        ("@coder\n@reviewer: both of you", ("coder", "reviewer")),
        ("@coder-", ("coder",)),
        ("ping @person", ("person",)),
        ("@all sync", TEAM),
        ("“@coder”", ("coder",)),
        ("@coder… please", ("coder",)),
        ("an unpaired ` and @coder", ("coder",)),
        ("``` and ` @coder ` here", ()),
        ("```one line``` @coder", ("coder",)),
        ("@coder\nlet us see\n@reviewer\nclass names are wrong", ("coder", "reviewer")),
        ("@coder\nfinal review (soon)\n@reviewer\npublic things first", ("coder", "reviewer")),
        ("@coder", ("coder",)),
    ],
)
def test_an_agent_is_mentioned_by_its_name(text: str, names: tuple[str, ...]) -> None:
    found = find(MessageText.own(text), TEAM)
    assert found.reached == names
    assert found.missed == ()


@pytest.mark.req("AW-24")
@pytest.mark.parametrize(
    "text",
    [
        "write to coder@example.org or a@coder",
        "mail me: first.last+coder@reviewer.dev",
        "```\n@coder\n```",
        "~~~python\n@coder\n```\n@coder\n~~~",
        "````\n```\n@coder\n```\n@coder\n````",
        "```\n@coder and never closed",
        "see `@coder` and ``x ` @coder``",
        "`one\n@coder two`",
        "> @coder said so\n>@coder",
        "   > @coder",
        "npm i @coder/tools @scope/name",
        "@property\ndef f(self): ...",
        "  @coder\n  async def f(): ...",
        "@coder\n@reviewer\nclass X: ...",
        "@coder(frozen=True)\nclass X: ...",
        '@app.route("/x")\ndef f(): ...',
        "@Override\npublic void f() {}",
        "+@coder\n-@coder",
        "+    @property\n+    def f(self): ...",
        "https://host.example/@coder",
        "a@@coder",
        "price@coder",
        "\\@coder",
        "@",
        "@@",
        "@ coder",
        "no one",
        "",
        "$@coder",
    ],
)
def test_a_name_in_code_quotes_or_addresses_is_not_a_mention(text: str) -> None:
    found = find(MessageText.own(text), TEAM)
    assert (found.reached, found.missed) == ((), ())


def test_an_unknown_name_is_missed_and_a_name_in_code_is_overlooked() -> None:
    found = find(MessageText.own("@cdoer. and @nobody and @coder, not `@reviewer`"), TEAM)
    assert found.missed == ("cdoer", "nobody")
    assert found.reached == ("coder",)
    assert found.overlooked == ("reviewer",)


DIFF = """\
diff --git a/app.py b/app.py
+@dataclass(frozen=True)
 @property
+@coder
+# mail a@b.example, see `x
 import "@reviewer/core";
```
@all look
"""


@pytest.mark.req("AW-24")
def test_quoted_text_mentions_no_agent_and_closes_no_fence() -> None:
    message = MessageText(
        (TextPart("Changes:\n"), TextPart(DIFF, is_quoted=True), TextPart("\n@reviewer please review."))
    )
    found = find(message, TEAM)
    assert (found.reached, found.missed) == (("reviewer",), ())
    fenced = MessageText((TextPart("```diff\n"), TextPart(DIFF, is_quoted=True), TextPart("\n@coder\n```\n@reviewer")))
    assert find(fenced, TEAM).reached == ("reviewer",)


@pytest.mark.parametrize(
    "pieces",
    [
        (TextPart("@"), TextPart("coder", is_quoted=True)),
        (TextPart("@co"), TextPart("der", is_quoted=True)),
        (TextPart("@coder"), TextPart("x", is_quoted=True)),
        (TextPart("x", is_quoted=True), TextPart("@coder")),
        (TextPart("@coder", is_quoted=True),),
        (TextPart("a\ufffc", is_quoted=True), TextPart(" or ")),
    ],
)
def test_own_and_quoted_text_do_not_form_a_name_together(pieces: tuple[TextPart, ...]) -> None:
    found = find(MessageText(pieces), TEAM)
    assert (found.reached, found.missed) == ((), ())


@given(st.lists(st.tuples(st.text(alphabet="@coder `~>\n/.(x", max_size=30), st.booleans()), max_size=6))
def test_quoted_text_does_not_change_the_reached_agents(parts: list[tuple[str, bool]]) -> None:
    message = MessageText(tuple(TextPart(text, quoted) for text, quoted in parts))
    other = MessageText(tuple(TextPart("@all `" if quoted and text else text, quoted) for text, quoted in parts))
    assert find(message, TEAM) == find(other, TEAM)


@given(st.text())
def test_any_text_is_accepted(text: str) -> None:
    assert set(find(MessageText.own(text), TEAM).reached) <= {*TEAM, "person"}


@pytest.mark.parametrize(
    "text", ["`" * 50_000, "``` `" * 20_000, "@a" * 50_000, "> " * 50_000, "@coder/" * 20_000, "@coder\n" * 20_000]
)
def test_long_repetitive_texts_are_parsed_quickly(text: str) -> None:
    assert find(MessageText.own(f"{text}\n\n@reviewer"), TEAM).reached[-1:] in ((), ("reviewer",))
    assert "coder" in find(MessageText.own(f"@coder\n\n{text}"), TEAM).reached
