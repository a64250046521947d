"""The deterministic engine: an Engine without a model, for faults and load on everything around the engine.

Its output is a pure function of the prompt's token ids, the seed and the choice; not of the batch, of time or
of the attempt. So a run that was killed and resumed equals an undisturbed run to the letter, which a real
model does not promise. It is labelled `kind="deterministic"` and is never the default. One loop gives every
running choice a token per step, as continuous batching does; `step_s=0` makes it as fast as the process is.

`python -m workers.deterministic --make-model DIR` writes a model folder for it.

Test hooks: `freeze`, `thaw`, `kill`, and prompts that hold one of the FAULT_* markers, or STAMP, which gives up the
pure function for a clock.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

from runtime.chat_template import ModelTokenizer, TemplateError
from workers import body as bodies
from workers.accounts import Account, EngineAccounts, now_us
from workers.deterministic_output import VERSION, Choice, Words, context_length, make_model
from workers.engine import (
    Delta,
    EngineDeadError,
    EngineHealth,
    EngineInfo,
    EngineUsage,
    GenerateRequest,
    Output,
    RequestRejectedError,
)
from workers.meter import StepMeter

FAULT_REFUSE = "<<fault:refuse>>"  # RequestRejectedError
FAULT_DIE = "<<fault:die>>"  # the runtime ends: EngineDeadError for every running request
FAULT_EXIT = "<<fault:exit>>"  # the whole process is killed, as by the kernel
FAULT_SLOW = "<<fault:slow>>"  # every step takes three times as long from now on
FAULT_FREEZE = "<<fault:freeze>>"  # the runtime stops stepping
STAMP = "<<stamp>>"  # each token's text is the time of its step: nanoseconds of the machine's monotonic clock


class _Running:
    """One request: what the step loop fills and the consumer takes."""

    __slots__ = (
        *("account", "admitted_at", "choices", "error", "first_at", "prompt"),
        *("priority", "queued_at", "ready", "stamped", "tokens_at_once", "wake"),
    )

    def __init__(self, choices: Sequence[Choice], prompt: int, request: GenerateRequest) -> None:
        self.choices, self.prompt = choices, prompt
        self.account, self.priority = request.account, request.priority
        self.tokens_at_once = 1 if bodies.stops(request.body) else request.tokens_at_once
        self.ready: dict[int, Delta] = {}
        self.wake = asyncio.Event()
        self.error: Exception | None = None
        self.stamped = False
        self.queued_at = time.monotonic()
        self.admitted_at = self.first_at = 0.0

    @property
    def done(self) -> bool:
        return all(choice.done for choice in self.choices)

    def add(self, delta: Delta) -> None:
        """Keep for the consumer; a slow one gets what several steps made in one item."""
        old = self.ready.get(delta.index)
        if old is not None:
            delta = Delta(
                delta.index,
                old.text + delta.text,
                [*old.token_ids, *delta.token_ids],
                [*(old.logprobs or []), *(delta.logprobs or [])] or None,
                delta.finish_reason,
                delta.stop_reason,
            )
        self.ready[delta.index] = delta
        choice = self.choices[delta.index]
        first = choice.made - choice.emitted <= len(delta.token_ids)
        if first or delta.finish_reason is not None or len(delta.token_ids) >= self.tokens_at_once:
            self.wake.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.wake.set()

    def usage(self) -> EngineUsage:
        made = sum(choice.made - choice.emitted for choice in self.choices)
        if not self.first_at:
            return EngineUsage(self.prompt, 0, made)
        waited, prefill = self.admitted_at - self.queued_at, self.first_at - self.admitted_at
        return EngineUsage(self.prompt, 0, made, waited, prefill, time.monotonic() - self.first_at)


class DeterministicEngine:
    """See the module."""

    def __init__(
        self,
        model: str,
        path: Path | str,
        *,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        step_s: float = 0.01,
    ) -> None:
        """`step_s`: how long a step takes, in which every running choice gets one token."""
        self._model, self._path = model, Path(path)
        self._max_num_seqs, self._max_model_len, self._step_s = max_num_seqs, max_model_len, step_s
        self._tokenizer: ModelTokenizer | None = None
        self._words: Words | None = None
        self._running: dict[str, _Running] = {}
        self._waiting: deque[tuple[str, _Running]] = deque()
        self._work = asyncio.Event()
        self._thawed = asyncio.Event()
        self._pings: list[asyncio.Future[None]] = []
        self._stepping: asyncio.Task[None] | None = None
        self._dead = "not started"
        self._last_step_at = 0.0
        self.accounts = EngineAccounts(now_us())
        self.steps = 0  # taken since the object was made
        self.meter = StepMeter(model)

    @property
    def info(self) -> EngineInfo:
        """Facts; only valid once `start` returned."""
        assert self._max_model_len is not None
        kind, length = "deterministic", self._max_model_len
        return EngineInfo(kind, self._model, VERSION, self._max_num_seqs, length)

    def pids(self) -> list[int]:
        """None: it lives in this process."""
        return []

    async def start(self) -> None:
        """Read the tokenizer and start stepping. Raises: EngineDeadError when the folder is unusable."""
        await self.stop()
        try:
            self._tokenizer = await asyncio.to_thread(ModelTokenizer, self._path)
            self._max_model_len = self._max_model_len or context_length(self._path)
        except (OSError, ValueError, KeyError) as error:
            raise EngineDeadError(f"no model at {self._path}: {error}") from error
        self._words = Words(self._tokenizer)
        self._dead = ""
        self.meter.started(self._max_num_seqs)
        self._thawed.set()
        self.accounts.up(now_us())
        self._stepping = asyncio.create_task(self._step_loop(), name="deterministic-engine")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Output, None]:
        """Stream one request's output. Raises: RequestRejectedError, EngineDeadError."""
        running = self._admit(request)
        try:
            while True:
                await running.wake.wait()
                running.wake.clear()
                if running.error is not None:
                    raise running.error
                ready, running.ready = running.ready, {}
                finished = running.done
                if ready or finished:
                    yield Output(tuple(ready.values()), running.usage(), finished)
                if finished:
                    return
        finally:
            self._drop(request.request_id, running)

    async def abort(self, request_id: str) -> None:
        """Stop a request: its stream ends with finish_reason "abort". Unknown ids are ignored."""
        running = self._running.get(request_id) or dict(self._waiting).get(request_id)
        if running is None or running.done:
            return
        for choice in running.choices:
            if not choice.done:
                running.add(choice.abort())
        self._drop(request_id, running)

    async def check(self, timeout_s: float) -> EngineHealth:
        """Prove that the step loop turns. Raises: EngineDeadError, TimeoutError."""
        self._raise_if_dead()
        ping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings.append(ping)
        self._work.set()
        async with asyncio.timeout(timeout_s):
            await ping
        return EngineHealth(len(self._running), len(self._waiting), self._last_step_at)

    async def stop(self) -> None:
        """End the step loop; running requests get EngineDeadError."""
        self.kill("stopped")
        if self._stepping is not None:
            self._stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stepping
            self._stepping = None

    def freeze(self) -> None:
        """Test hook: stop stepping without dying, as a hung runtime does."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Test hook: step again after `freeze`."""
        self._thawed.set()

    def kill(self, reason: str = "killed") -> None:
        """Test hook: the runtime ends, as by kill -9; every running request gets EngineDeadError."""
        self._dead = reason
        self.accounts.down(now_us())
        error = EngineDeadError(f"the engine ended: {reason}")
        for running in [*self._running.values(), *dict(self._waiting).values()]:
            running.fail(error)
        self._running.clear()
        self._waiting.clear()
        for ping in self._pings:
            if not ping.done():
                ping.set_exception(error)
        self._pings.clear()

    def _raise_if_dead(self) -> None:
        if self._dead:
            raise EngineDeadError(f"the engine ended: {self._dead}")

    def _admit(self, request: GenerateRequest) -> _Running:
        self._raise_if_dead()
        assert self._tokenizer is not None and self._words is not None and self._max_model_len is not None
        bodies.check(request)
        body, emitted = request.body, request.emitted_token_ids
        chat = request.url == bodies.CHAT
        field = "messages" if chat else "prompt"
        try:
            prompt = (
                self._tokenizer.encode_chat(body) if chat else self._tokenizer.encode_prompt(body["prompt"])
            )
        except TemplateError as error:
            raise RequestRejectedError(str(error), field, "invalid_value") from error
        room = self._max_model_len - len(prompt)
        if room < 1:
            message = f"the context length is {self._max_model_len} tokens, the prompt has {len(prompt)}"
            raise RequestRejectedError(message, field, "context_length_exceeded")
        self._fault(str(body[field]))
        limit, top = min(request.max_output_tokens, room), bodies.top_logprobs(request.url, body)
        choices = [
            Choice(self._words, index, prompt, body, limit=limit, emitted=emitted, top=top)
            for index in range(bodies.choices(body))
        ]
        running = _Running(choices, len(prompt), request)
        running.stamped = STAMP in str(body[field])
        self.accounts.begin(request.account, len(prompt) + len(emitted), now_us())
        behind = [at for at, (_, other) in enumerate(self._waiting) if other.priority <= request.priority]
        self._waiting.insert(behind[-1] + 1 if behind else 0, (request.request_id, running))
        self._work.set()
        return running

    def _fault(self, text: str) -> None:
        if "<<fault:" not in text:
            return
        if FAULT_REFUSE in text:
            raise RequestRejectedError("refused by a fault marker", None, "fault")
        if FAULT_EXIT in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT_DIE in text:
            self.kill("a fault marker")
            self._raise_if_dead()
        if FAULT_SLOW in text:
            self._step_s *= 3
        if FAULT_FREEZE in text:
            self.freeze()

    def _drop(self, request_id: str, running: _Running) -> None:
        self.accounts.end(running.account, now_us())
        if self._running.get(request_id) is running:
            del self._running[request_id]
            self._work.set()
        else:
            with contextlib.suppress(ValueError):
                self._waiting.remove((request_id, running))

    async def _step_loop(self) -> None:
        while not self._dead:
            await self._thawed.wait()
            for ping in self._pings:
                if not ping.done():
                    ping.set_result(None)
            self._pings.clear()
            self._fill()
            if not self._running:
                self._work.clear()
                await self._work.wait()
                continue
            await asyncio.sleep(self._step_s)
            if not self._thawed.is_set():
                continue
            self._step()

    def _fill(self) -> None:
        used = sum(len(running.choices) for running in self._running.values())
        while self._waiting:
            request_id, running = self._waiting[0]
            used += len(running.choices)
            if self._running and used > self._max_num_seqs:
                return
            self._waiting.popleft()
            running.admitted_at = time.monotonic()
            self._running[request_id] = running

    def _step(self) -> None:
        self._last_step_at = time.monotonic()
        self.steps += 1
        made: dict[Account, int] = {
            running.account: sum(not choice.done for choice in running.choices)
            for running in self._running.values()
        }
        self.accounts.step(made, now_us())
        read = 0
        for request_id, running in list(self._running.items()):
            if not running.first_at:
                running.first_at = self._last_step_at
                read += running.prompt
            for choice in running.choices:
                if not choice.done and (delta := choice.step()) is not None:
                    running.add(replace(delta, text=f"{time.monotonic_ns()} ") if running.stamped else delta)
            if running.done:
                del self._running[request_id]
        self.meter.step(
            self._last_step_at,
            running=len(self._running),
            waiting=len(self._waiting),
            output_tokens=sum(made.values()),
            prompt_tokens=read,
        )


def main() -> None:
    """Make a model folder for this engine."""
    parser = argparse.ArgumentParser(prog="python -m workers.deterministic", description=main.__doc__)
    parser.add_argument("--make-model", type=Path, metavar="DIR", required=True)
    make_model(parser.parse_args().make_model)


if __name__ == "__main__":
    main()
