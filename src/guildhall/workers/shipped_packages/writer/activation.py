"""Activation of the writer: adds instructions for the purpose of the run to the posture."""

from __future__ import annotations

from typing import Any

_INSTRUCTIONS = {
    "run": "Answer with the finished text only.",
    "job": "Write the text as an artifact. Submit a summary of two sentences as the result.",
    "commission": "Write the text to files of the project. Submit a list of your changes by file as the result.",
    "meeting": "You are talking with the user. Ask for missing information, one question at a time. Show drafts early.",
}


def activate(context: dict[str, Any]) -> dict[str, Any]:
    """Return the system prompt of a run. The hall appends the memory of the writer."""
    prompt = [context["posture"].rstrip(), _INSTRUCTIONS.get(context["context"], _INSTRUCTIONS["run"])]
    if context["project"]:
        prompt.append(f"You work for the project {context['project']}.")
    if context["memory"]:
        prompt.append("Style rules and preferences in your memory override the rules above.")
    return {"system_prompt": "\n\n".join(prompt)}
