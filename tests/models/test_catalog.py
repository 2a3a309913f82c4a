"""The model catalog: from names to sources, keys, providers and prices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from anthropic.resources.messages.messages import DEPRECATED_MODELS
from genai_prices.data_snapshot import get_snapshot
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import known_model_names
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import InvalidFile, ModelUnusable, NotFound
from guildhall.models import provider_source
from guildhall.models.catalog import AUTO_MODELS, RecordingSource, auto_model, create_source, detected_keys
from tests.models.scripts import query, write_script

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sk-ant-very-secret-value"


def test_a_script_is_found_relative_to_the_folder_of_the_caller(tmp_path: Path) -> None:
    write_script(tmp_path, "workers: {coder: [[{say: hello}]]}")
    source = create_source("script:answers.yaml", cwd=tmp_path, environ={})
    assert source.name == "script:answers.yaml"
    assert asyncio.run(source.answer(query(), lambda piece: None)).text == "hello"
    assert (
        create_source(f"script:{tmp_path}/answers.yaml", cwd=tmp_path / "elsewhere", environ={}).cost(RequestUsage())
        is None
    )
    with pytest.raises(InvalidFile, match="file not found"):
        create_source("script:missing.yaml", cwd=tmp_path, environ={})


def test_a_recording_is_supplied_by_the_caller(tmp_path: Path) -> None:
    recording_source = RecordingSource("r-2222222222", {("w", 0): [ModelResponse(parts=[TextPart("again")])]})
    source = create_source("replay:r-2222222222", cwd=tmp_path, environ={}, recording=lambda run: recording_source)
    assert source is recording_source
    with pytest.raises(NotFound, match="cannot replay r-2222222222"):
        create_source("replay:r-2222222222", cwd=tmp_path, environ={})


@pytest.mark.parametrize("name", ["script:", "replay: "])
def test_a_prefix_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelUnusable, match="nothing follows the prefix"):
        create_source(name, cwd=tmp_path, environ={})


@pytest.mark.parametrize("name", ["anthropic:claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"])
def test_a_providers_model_is_named_with_a_colon_or_a_slash(tmp_path: Path, name: str) -> None:
    source = create_source(name, cwd=tmp_path, environ={"ANTHROPIC_API_KEY": SECRET})
    assert source.name == "anthropic:claude-sonnet-4-5"
    assert source.cost(RequestUsage(input_tokens=1000, output_tokens=100)) == pytest.approx(0.0045)


@pytest.mark.parametrize(
    ("environ", "model"),
    [
        ({"ANTHROPIC_API_KEY": SECRET, "OPENAI_API_KEY": SECRET}, AUTO_MODELS["anthropic"]),
        ({"OPENAI_API_KEY": SECRET, "ANTHROPIC_API_KEY": " "}, AUTO_MODELS["openai"]),
        ({"GEMINI_API_KEY": SECRET}, AUTO_MODELS["google"]),
    ],
)
def test_auto_selects_a_model_by_the_available_keys(environ: dict[str, str], model: str) -> None:
    assert auto_model(environ) == model


def test_auto_creates_a_source(tmp_path: Path) -> None:
    source = create_source("auto", cwd=tmp_path, environ={"OPENAI_API_KEY": SECRET})
    assert source.name == AUTO_MODELS["openai"]


def test_auto_without_a_key_names_the_variables_to_set(tmp_path: Path) -> None:
    with pytest.raises(
        ModelUnusable, match=r"such as ANTHROPIC_API_KEY or OPENAI_API_KEY(?s:.)*`guild demo` needs no key"
    ):
        create_source("auto", cwd=tmp_path, environ={})


@pytest.mark.parametrize("model", AUTO_MODELS.values())
def test_the_models_of_auto_are_known_current_and_priced(model: str) -> None:
    assert model in known_model_names()
    provider, _, name = model.partition(":")
    _, listed = get_snapshot().find_provider_model(name, provider=None, provider_id=provider, provider_api_url=None)
    assert not listed.deprecated
    assert name not in DEPRECATED_MODELS
    assert provider_source.cost(provider, name, RequestUsage(input_tokens=1_000_000)) is not None


def test_keys_are_detected_by_name_and_never_shown() -> None:
    environ = {"OPENAI_API_KEY": SECRET, "DASHSCOPE_API_KEY": SECRET, "ANTHROPIC_API_KEY": "", "PATH": "/bin"}
    found = detected_keys(environ)
    assert found == [
        "OPENAI_API_KEY",
        "DASHSCOPE_API_KEY",
    ]
    assert SECRET not in repr(found)


# Prices


def test_cached_tokens_have_their_own_price() -> None:
    fresh = provider_source.cost("anthropic", "claude-sonnet-4-5", RequestUsage(input_tokens=1000))
    cached = provider_source.cost(
        "anthropic", "claude-sonnet-4-5", RequestUsage(input_tokens=1000, cache_read_tokens=1000)
    )
    assert fresh == pytest.approx(0.003)
    assert cached == pytest.approx(0.0003)


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "openai-responses", "gateway/openai"])
def test_the_api_of_a_provider_does_not_change_the_price(provider: str) -> None:
    assert provider_source.cost(provider, "gpt-5", RequestUsage(input_tokens=1000, output_tokens=100)) == pytest.approx(
        0.00225
    )


@pytest.mark.parametrize(
    ("provider", "model", "usage"),
    [
        ("ollama", "llama3", RequestUsage(input_tokens=1)),
        ("anthropic", "claude-of-next-year", RequestUsage(input_tokens=1)),
        ("anthropic", "claude-sonnet-4-5", RequestUsage(input_tokens=1, cache_read_tokens=9)),
    ],
)
def test_unpriced_usage_has_no_cost(provider: str, model: str, usage: RequestUsage) -> None:
    assert provider_source.cost(provider, model, usage) is None
