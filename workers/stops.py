"""Stop strings, with text and token ids kept together.

What is handed on always pairs token ids with exactly their text: ids whose text is still held back (it may be
the beginning of a stop string, or half of a character) are held back with it. So the ids an attempt has sent
spell the text it has sent, and a later attempt can go on after them without a gap or a repeat.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

Logprobs = list[dict[str, Any]] | None


class Piece(NamedTuple):
    """Text, the ids that spell it, and their logprobs."""

    text: str
    token_ids: list[int]
    logprobs: Logprobs
    stop: str | None = None  # the stop string found; nothing follows


class StopScanner:
    """Watches one choice's output for stop strings."""

    def __init__(self, stops: Sequence[str], include: bool = False, exempt_tokens: int = 0) -> None:
        """`include`: the stop string stays in the text. `exempt_tokens`: no stop string ends within these."""
        self._stops = [stop for stop in stops if stop]
        self._include = include
        self._exempt_tokens = exempt_tokens
        self._exempt_end = 0  # in the held text: a stop string must end after it
        self._text = ""
        self._held: list[tuple[int, Sequence[int], Logprobs]] = []  # characters, ids, logprobs

    def push(self, text: str, token_ids: Sequence[int], logprobs: Logprobs) -> Piece:
        """Take what the engine added; return what may be handed on (perhaps nothing)."""
        before = len(self._text)
        self._text += text
        if self._held and self._held[-1][0] == 0:  # half a character: its ids go with the rest of it
            _, ids, old = self._held[-1]
            self._held[-1] = len(text), [*ids, *token_ids], _join(old, logprobs)
        else:
            self._held.append((len(text), token_ids, logprobs))
        if self._exempt_tokens > 0:
            self._exempt_tokens -= len(token_ids)
            self._exempt_end = len(self._text)
        found = self._find(max(before, self._exempt_end))
        if found is not None:
            start, stop = found
            text = self._text[: start + len(stop) if self._include else start]
            piece = self._take(len(self._held))
            return Piece(text, piece.token_ids, piece.logprobs, stop)
        free = len(self._text) - self._open_suffix()
        count = size = 0
        for characters, _, _ in self._held:
            if characters == 0 or size + characters > free:
                break
            size += characters
            count += 1
        return self._take(count)

    def flush(self) -> Piece:
        """Everything still held: the generation ended without a stop string."""
        return self._take(len(self._held))

    def _take(self, count: int) -> Piece:
        if count == 0:
            return Piece("", [], None)
        taken, self._held = self._held[:count], self._held[count:]
        size = sum(characters for characters, _, _ in taken)
        text, self._text = self._text[:size], self._text[size:]
        self._exempt_end = max(0, self._exempt_end - size)
        ids: list[int] = []
        logprobs: Logprobs = None
        for _, some, probabilities in taken:
            ids.extend(some)
            logprobs = _join(logprobs, probabilities)
        return Piece(text, ids, logprobs)

    def _find(self, new_from: int) -> tuple[int, str] | None:
        """The first stop string that ends behind `new_from`."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            at = self._text.find(stop, max(0, new_from - len(stop) + 1))
            if at >= 0 and (best is None or at < best[0]):
                best = at, stop
        return best

    def _open_suffix(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        text, longest = self._text, 0
        for stop in self._stops:
            at = max(0, len(text) - len(stop) + 1)
            while (at := text.find(stop[0], at)) >= 0:
                if len(text) - at <= longest:
                    break
                if stop.startswith(text[at:]):
                    longest = len(text) - at
                    break
                at += 1
        return longest


def _join(left: Logprobs, right: Logprobs) -> Logprobs:
    if left is None:
        return right
    return left if right is None else [*left, *right]
