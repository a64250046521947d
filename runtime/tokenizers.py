"""Tokenizers of the models in use, loaded once each, off the event loop."""

import asyncio

from runtime.chat_template import ModelTokenizer
from storage.records import Model


class Tokenizers:
    """Loaded tokenizers by model folder."""

    def __init__(self) -> None:
        self._loaded: dict[str, ModelTokenizer] = {}
        self._lock = asyncio.Lock()

    async def get(self, model: Model) -> ModelTokenizer:
        """Return the tokenizer in a model's folder. Raises: OSError, ValueError for a bad folder."""
        if model.path not in self._loaded:
            async with self._lock:
                if model.path not in self._loaded:
                    self._loaded[model.path] = await asyncio.to_thread(ModelTokenizer, model.path)
        return self._loaded[model.path]
