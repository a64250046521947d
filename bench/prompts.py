"""Prompts of an exact length, from a seed."""

import random
from typing import Any

from runtime.chat_template import ModelTokenizer

_WORDS = [
    "river",
    "stone",
    "light",
    "market",
    "early",
    "window",
    "paper",
    "engine",
    "garden",
    "winter",
    "letter",
    "simple",
    "north",
    "yellow",
    "travel",
    "bread",
    "music",
    "seven",
    "ocean",
    "silver",
    "morning",
    "answer",
    "bridge",
    "cloud",
    "double",
    "evening",
    "forest",
    "glass",
    "house",
    "island",
    "journey",
    "kitchen",
    "ladder",
    "mountain",
    "number",
    "orange",
    "people",
    "question",
    "road",
    "summer",
    "table",
    "under",
    "village",
    "water",
]


def chat_messages(tokenizer: ModelTokenizer, tokens: int, seed: object) -> list[dict[str, str]]:
    """Return one user message which the model's template renders to that many tokens.

    The first word differs from prompt to prompt, so that no two share more than the template's own prefix.
    """
    chance = random.Random(repr(seed))
    empty = tokenizer.count_chat({"messages": _messages("")})
    if tokens < empty + 1:
        raise ValueError(f"the template alone takes {empty} tokens")
    words = [chance.choice(_WORDS) for _ in range(tokens)]  # at least a token each
    low, high = 1, len(words)
    while low < high:  # the longest beginning that still fits
        middle = (low + high + 1) // 2
        fits = tokenizer.count_chat({"messages": _messages(" ".join(words[:middle]))}) <= tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    text = " ".join(words[:low])
    while (count := tokenizer.count_chat({"messages": _messages(text)})) < tokens:
        text += " a" if count + 1 == tokens else " " + chance.choice(("a", "b", "c"))
    return _messages(text)


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def body(model: str, messages: list[dict[str, str]], output_tokens: int) -> dict[str, Any]:
    """Build a request that makes exactly that many tokens, greedily."""
    return {
        "model": model,
        "messages": messages,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
