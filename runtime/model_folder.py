"""Is a folder a model that can be served?"""

from pathlib import Path

import orjson

from runtime.chat_template import ModelTokenizer


def context_of(path: Path, asked: int | None) -> int:
    """Return the context length to register: the asked-for one, else the model's own. Tokens.

    Raises: OSError, ValueError when the folder has no usable config, tokenizer or template, or a shorter context.
    """
    config = orjson.loads((path / "config.json").read_bytes())
    ModelTokenizer(path)
    own = config.get("max_position_embeddings")
    if asked is None and own is None:
        raise ValueError(f"{path}/config.json names no context length: one has to be given")
    if asked is not None and own is not None and asked > own:
        raise ValueError(f"a context of {asked} tokens is above the model's own {own}")
    return int(asked or own)
