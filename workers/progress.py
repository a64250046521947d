"""What a task has streamed so far, over all its attempts: rebuilt from its stream, then kept up to date."""

from collections.abc import Sequence
from typing import Any

import orjson

from core.pricing import Usage
from schemas import events
from schemas.completion import FORMS, Choice, Piece
from storage.streams import FIRST_STORED, Append, Event
from workers.engine import Delta, EngineUsage


class Progress:
    """One task's output as its readers know it."""

    def __init__(
        self,
        task_id: str,
        attempt: int,
        earlier: Sequence[Event],
        *,
        url: str,
        n: int = 1,
        keep_s: float = 0.0,
    ) -> None:
        """`url`: the task's route, whose form its output takes. `n`: choices asked for, over all prompts.

        `keep_s`: how much longer than an ended stream this one must be kept.
        """
        self._task_id, self._attempt, self._n, self._keep_s = task_id, attempt, n, keep_s
        self.form = FORMS[url]
        self._next = FIRST_STORED
        self.torn = False  # Redis lost a part of what was streamed: what is left is not the output so far
        self._held: list[int] = []  # tokens not sent yet, some of whose text is still to come
        self._waiting: dict[int, Piece] = {}  # by choice
        self.choices: dict[int, Choice] = {}
        self.emitted: list[int] = []  # token ids of choice 0, sent before the engine's present run
        self._sent: list[int] = []  # and by the present run
        self._cached: int | None = None  # prompt tokens that the first run read from the prefix cache
        self.usage = Usage(0, 0, 0)  # of the whole task
        self.reasoning_tokens: int | None = None  # of its output; None: not known
        for event in earlier:
            self.torn = self.torn or event.sequence != self._next
            self._next = event.sequence + 1
            if event.type == events.RESTARTED:
                self._void()
            elif event.type == events.DELTA:
                data = orjson.loads(event.data)
                self._add(data["choices"])
                self.emitted.extend(event.token_ids)
                prompt, output = data["tokens"]
                self.usage = Usage(prompt, 0, output)

    @property
    def streamed(self) -> bool:
        """Whether readers have seen any output."""
        return bool(self.choices)

    @property
    def complete(self) -> bool:
        """Whether the output ended: an attempt generated it all and was lost before it settled."""
        return len(self.choices) == self._n and all(choice.finish_reason for choice in self.choices.values())

    @property
    def text(self) -> str:
        """What was sent, of all choices together."""
        return "".join(choice.text for choice in self.choices.values())

    @property
    def sent_tokens(self) -> int:
        """Tokens whose text readers have."""
        return len(self.emitted) + len(self._sent)

    def checkpoint(self) -> None:
        """Have the engine's next run go on after what was sent; what was not is generated again."""
        self._held, self._waiting = [], {}
        self.emitted += self._sent
        self._sent = []
        # the next run finds its own prompt in the cache: that is no saving of the caller's
        self._cached = self.usage.cached_tokens
        self.usage = Usage(self.usage.prompt_tokens, self._cached, len(self.emitted))

    def _void(self) -> None:
        self.choices, self.emitted, self.usage, self.torn = {}, [], Usage(0, 0, 0), False

    def _add(self, choices: list[dict[str, Any]]) -> None:
        for item in choices:
            self._choice(item["index"]).add(item)

    def _choice(self, index: int) -> Choice:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = self.form.choice()
        return choice

    def _entry(self, kind: str, data: bytes, token_ids: Sequence[int] = ()) -> Append:
        keep_s = 0.0 if kind in events.FINAL_STATES else self._keep_s
        entry = Append(self._task_id, self._attempt, self._next, kind, data, token_ids, keep_s)
        self._next += 1
        return entry

    def started(self) -> Append:
        """The entry that says which attempt works now."""
        return self._entry(events.STARTED, events.started_data(self._attempt))

    def restarted(self) -> Append:
        """The entry that voids what was streamed."""
        self._void()
        return self._entry(events.RESTARTED, events.started_data(self._attempt))

    def final(self, kind: str, data: bytes) -> Append:
        """The entry that ends the stream."""
        return self._entry(kind, data)

    def count(self, usage: EngineUsage) -> None:
        """Take the engine's counts of this attempt."""
        cached = usage.cached_prompt_tokens if self._cached is None else self._cached
        self.usage = Usage(
            usage.prompt_tokens,
            min(cached, usage.prompt_tokens),
            len(self.emitted) + usage.output_tokens,
        )
        # what an earlier run reasoned is not counted: where there is reasoning, a task is made by one run alone
        self.reasoning_tokens = None if self.emitted else usage.reasoning_tokens

    def add(self, deltas: Sequence[Delta]) -> None:
        """Take what a step produced; it is sent by the next `take`."""
        for delta in deltas:
            self._held.extend(delta.token_ids)
            # an aborted output did not end: its readers hear how from the final event
            finish = None if delta.finish_reason == "abort" else delta.finish_reason
            if not (delta.text or finish or delta.reasoning or delta.tool_calls or delta.logprobs):
                continue
            waiting = self._waiting.get(delta.index)
            if waiting is None:
                waiting = self._waiting[delta.index] = Piece()
            waiting.text += delta.text
            waiting.reasoning += delta.reasoning
            for call in delta.tool_calls:
                waiting.add_tool_call(call)
            if delta.logprobs:
                waiting.logprobs = (waiting.logprobs or []) + delta.logprobs
            if finish is not None:
                waiting.finish_reason, waiting.stop_reason = finish, delta.stop_reason

    def take(self) -> Append | None:
        """Build the entry of everything added since the last one; None when that made no text yet."""
        if not self._waiting:
            return None
        choices = [self._choice(index).delta(index, piece) for index, piece in self._waiting.items()]
        self._waiting = {}
        self._add(choices)
        tokens, self._held = self._held, []
        self._sent += tokens
        data = orjson.dumps(
            {"choices": choices, "tokens": [self.usage.prompt_tokens, self.usage.output_tokens]}
        )
        return self._entry(events.DELTA, data, tokens)
