"""The deterministic engine's output as a pure function, and the model folder its words belong to.

Output depends on the prompt's token ids, the seed and the choice's index. Never on time, on other requests,
or on how many attempts it took to get here.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from runtime.chat_template import ModelTokenizer
from workers import body as bodies
from workers.engine import Delta
from workers.stops import StopScanner

VERSION = "1"  # of the output function: another one gives other texts
CONTEXT = 8192
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_POEM = (
    "water flows down the race and turns a wheel before dawn while miners wash gravel for gold "
    "each gate opens when pressure falls then closes again so every channel keeps its level and no "
    "bank breaks under spring rain because upstream ponds hold what storms bring until summer asks "
    "for it back slowly as old pines creak above stone flumes"
)
WORDS = tuple(f" {word}" for word in _POEM.split())


class Words:
    """The words as a model folder's tokenizer spells them."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.spelled = [[(id_, tokenizer.decode([id_])) for id_ in tokenizer.encode(word)] for word in WORDS]
        eos = tokenizer.eos_token_id
        self.eos = 0 if eos is None else eos

    def stream(self, key: bytes) -> Iterator[tuple[int, str, int]]:
        """The endless (token id, text, word's rank) sequence of a key."""
        count, block = len(self.spelled), 0
        while True:
            for pick in hashlib.blake2b(key + block.to_bytes(4, "big")).digest():
                rank = pick % count
                for token, text in self.spelled[rank]:
                    yield token, text, rank
            block += 1


class Choice:
    """One choice of a request: each `step` is one token."""

    __slots__ = (
        "_ended",
        "_ends_at",
        "_limit",
        "_scanner",
        "_tokens",
        "_top",
        "_words",
        "done",
        "emitted",
        "index",
        "made",
    )

    def __init__(
        self,
        words: Words,
        index: int,
        prompt: Sequence[int],
        body: Mapping[str, Any],
        *,
        limit: int,
        emitted: Sequence[int],
        top: int | None,
    ) -> None:
        """`limit`: tokens of the whole task; `emitted`: those of them that earlier attempts sent."""
        identity = repr((VERSION, body.get("seed") or 0, index)).encode()
        key = hashlib.blake2b(array("q", prompt).tobytes() + identity).digest()
        least = body.get("min_tokens") or 0
        self.index, self.emitted, self.made, self.done = index, len(emitted), len(emitted), False
        self._ended = bool(emitted) and emitted[-1] == words.eos and not body.get("ignore_eos")
        self._words, self._top, self._limit = words, top, limit
        self._ends_at = -1 if body.get("ignore_eos") else max(24 + key[0], least + 1)  # 24 to 279 tokens
        self._tokens = words.stream(key)
        for _ in emitted:
            next(self._tokens)
        self._scanner: StopScanner | None = None
        if stops := bodies.stops(body):
            include = bool(body.get("include_stop_str_in_output"))
            self._scanner = StopScanner(stops, include, max(0, least - len(emitted)))

    def step(self) -> Delta | None:
        """The next token; None when its text is held back."""
        if self._ended or self.made >= self._limit:  # resumed with nothing left to do
            return self._end("", [], None, "stop" if self._ended else "length", None)
        self.made += 1
        if self.made == self._ends_at:
            logprobs = None if self._top is None else [_logprob("", 0, self._top)]
            return self._last("", self._words.eos, logprobs, "stop")
        token, text, rank = next(self._tokens)
        logprobs = None if self._top is None else [_logprob(text, rank, self._top)]
        if self._scanner is None:
            if self.made == self._limit:
                return self._end(text, [token], logprobs, "length", None)
            return Delta(self.index, text, (token,), logprobs)
        piece = self._scanner.push(text, [token], logprobs)
        if piece.stop is not None:
            return self._end(piece.text, piece.token_ids, piece.logprobs, "stop", piece.stop)
        if self.made == self._limit:
            return self._flushed(piece.text, piece.token_ids, piece.logprobs, "length")
        return Delta(self.index, piece.text, piece.token_ids, piece.logprobs) if piece.token_ids else None

    def abort(self) -> Delta:
        """End here."""
        if self._scanner is None:
            return self._end("", [], None, "abort", None)
        return self._flushed("", [], None, "abort")

    def _last(self, text: str, token: int, logprobs: list[dict[str, Any]] | None, reason: str) -> Delta:
        if self._scanner is None:
            return self._end(text, [token], logprobs, reason, None)
        piece = self._scanner.push(text, [token], logprobs)
        return self._flushed(piece.text, piece.token_ids, piece.logprobs, reason)

    def _flushed(
        self, text: str, ids: list[int], logprobs: list[dict[str, Any]] | None, reason: str
    ) -> Delta:
        assert self._scanner is not None
        rest = self._scanner.flush()
        both = [*(logprobs or []), *(rest.logprobs or [])]
        return self._end(text + rest.text, [*ids, *rest.token_ids], both or None, reason, None)

    def _end(
        self,
        text: str,
        ids: Sequence[int],
        logprobs: list[dict[str, Any]] | None,
        reason: str,
        stop: str | None,
    ) -> Delta:
        self.done = True
        return Delta(self.index, text, ids, logprobs, reason, stop)


def _item(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _logprob(text: str, rank: int, top: int) -> dict[str, Any]:
    """Made up but repeatable: the alternatives are the next words of the list."""
    first = -0.01 * (1 + rank)
    others = [_item(WORDS[(rank + step) % len(WORDS)], first - step) for step in range(1, top)]
    item = _item(text, first)
    return {**item, "top_logprobs": [item, *others] if top else []}


def context_length(folder: Path) -> int:
    """Tokens a model folder's model takes, prompt and output together. Raises: OSError, ValueError."""
    config = json.loads((folder / "config.json").read_text())
    return int(config["max_position_embeddings"])


def make_model(folder: Path) -> None:
    """Write a model folder with a tokenizer, a chat template and no weights: bytes, our words, ChatML."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {token: number for number, token in enumerate(SPECIAL)}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in sorted(set(WORDS))])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[2],
        "unk_token": SPECIAL[0],
    }
    eos = tokenizer.token_to_id(SPECIAL[2])
    config = {
        "architectures": ["HeadraceDeterministic"],
        "model_type": "headrace-deterministic",
        "max_position_embeddings": CONTEXT,
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": eos,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=1))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}, indent=1))
