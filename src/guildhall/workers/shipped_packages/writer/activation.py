"""How a run of the writer begins: the posture, and a word about what it is in just now."""

from __future__ import annotations

from typing import Any

_WORDS = {
    "run": "Give the finished text as your answer, and nothing around it.",
    "job": "Write the text as an artifact; submit a summary of two sentences as the result.",
    "commission": "The text belongs into the project. Submit what you changed, file by file, as the result.",
    "meeting": "You talk with a person. Ask what you need to know, one question at a time; show drafts early.",
}


def activate(context: dict[str, Any]) -> dict[str, Any]:
    """Called once for each run. The hall adds what the writer remembers after this prompt."""
    prompt = [context["posture"].rstrip(), _WORDS.get(context["context"], _WORDS["run"])]
    if context["project"]:
        prompt.append(f"You work for the project {context['project']}.")
    if context["memory"]:
        prompt.append("House rules and preferences that you remember count for more than the rules above.")
    return {"system_prompt": "\n\n".join(prompt)}
