"""Which request made how many tokens in a step of vLLM's, for the time that each used.

Wraps `OutputProcessor.process_outputs`, a name that is not vLLM's public API: it is the last place that knows
which outputs belong to one step.
"""

from collections.abc import Sequence
from typing import Any

from workers.accounts import Account, EngineAccounts, now_us


class StepAccounts:
    """Tells each step of vLLM's to the engine's accounts."""

    def __init__(self, accounts: EngineAccounts) -> None:
        self._engine = accounts
        self._accounts: dict[str, Account] = {}  # by the id that we gave a request
        self._internal: dict[str, Account] = {}  # by the id that vLLM made of it; several where n is above 1
        self._made: dict[Account, int] = {}
        self._cached: dict[Account, int] = {}

    def begin(self, request_id: str, account: Account, prompt_tokens: int) -> None:
        """A request goes to vLLM."""
        self._accounts[request_id] = account
        self._engine.begin(account, prompt_tokens, now_us())

    def end(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        account = self._accounts.pop(request_id, None)
        if account is not None:
            self._internal = {name: one for name, one in self._internal.items() if one is not account}
            self._engine.end(account, now_us())

    def watch(self, processor: Any) -> None:
        """Look at every output from now on, before it is processed."""
        process = processor.process_outputs

        def process_outputs(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self._count(processor.request_states, outputs)
            return process(outputs, *args, **kwargs)

        processor.process_outputs = process_outputs

    def _count(self, states: dict[str, Any], outputs: Sequence[Any]) -> None:
        made, internal = self._made, self._internal
        for output in outputs:
            tokens = len(output.new_token_ids)
            if not tokens and output.pooling_output is None:
                continue  # an abort's
            account = internal.get(output.request_id)
            if account is None:
                account = self._find(states, output.request_id)
                if account is None:
                    continue  # a warm-up's, or of a request that was given up
            made[account] = made.get(account, 0) + tokens
            prefill = output.prefill_stats
            if prefill is not None and prefill.num_cached_tokens:
                self._cached[account] = self._cached.get(account, 0) + prefill.num_cached_tokens

    def _find(self, states: dict[str, Any], internal_id: str) -> Account | None:
        state = states.get(internal_id)
        if state is None:
            return None
        account = self._accounts.get((state.parent_req or state).external_req_id)
        if account is not None:
            self._internal[internal_id] = account
        return account

    def step(self) -> None:
        """The step whose outputs were seen is over."""
        self._engine.step(self._made, now_us(), cached=self._cached)
        self._made, self._cached = {}, {}
