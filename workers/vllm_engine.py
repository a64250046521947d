"""The vLLM engine: the Engine protocol over vLLM 0.32's AsyncLLM, with its core in processes of its own.

It alone knows how vLLM is started, stepped and ended; `vllm_params` knows how a body becomes vLLM's request.
vLLM and torch are imported here and in its siblings only, which nobody but a worker with `engine=vllm` loads.

Every step of every running request passes through `generate`: no pydantic and no copies on that path.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import vllm
from vllm import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VLLMEngineDeadError

from workers import body as bodies
from workers.accounts import EngineAccounts, now_us
from workers.engine import (
    Delta,
    EngineDeadError,
    EngineHealth,
    EngineInfo,
    EngineUsage,
    GenerateRequest,
    Output,
)
from workers.meter import StepMeter
from workers.stops import Logprobs
from workers.vllm_accounts import StepAccounts
from workers.vllm_dtype import cpu_dtype
from workers.vllm_errors import translate
from workers.vllm_memory import measure_bandwidth, memory_of
from workers.vllm_output import empty, failure, logprob_items, usage
from workers.vllm_params import Prepared, prepare
from workers.vllm_parsing import ParserNames, Parsers, reasoning_tokens
from workers.vllm_process import Launcher, prepare_environment
from workers.vllm_stats import HealthLogger

WARM_UP_TOKENS = 512  # of prompt: the first long prompt of an engine's life is slow
SHUTDOWN_S = 1.0  # what vLLM's processes get to end by themselves; with 0 they stay as zombies


class VLLMEngine:
    """See the module. One object can be started again after `stop` and after the engine died."""

    def __init__(
        self,
        model: str,
        path: Path | str,
        *,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        kv_cache_bytes: int | None = None,
        gpu_memory_share: float = 0.9,
        max_batched_tokens: int | None = None,
        engine_args: Mapping[str, Any] | None = None,
        parsers: ParserNames | None = None,
    ) -> None:
        """`kv_cache_bytes` counts on CPU, `gpu_memory_share` on GPUs; `engine_args` overrides everything."""
        self._model, self._path = model, Path(path)
        self._max_num_seqs, self._max_model_len = max_num_seqs, max_model_len
        self._kv_cache_bytes, self._gpu_memory_share = kv_cache_bytes, gpu_memory_share
        self._max_batched_tokens, self._engine_args = max_batched_tokens, dict(engine_args or {})
        self._parser_names = parsers or ParserNames()
        self._parsers: Parsers | None = None
        self._engine: Any = None  # AsyncLLM
        self._launcher: Launcher | None = None
        self._info: EngineInfo | None = None
        self._defaults: dict[str, Any] = {}
        self._health = EngineHealth()
        self.meter = StepMeter(model)
        self.accounts = EngineAccounts(now_us())
        self._steps = StepAccounts(self.accounts)
        self._aborted: dict[str, bool] = {}  # requests between `generate` and its end

    @property
    def info(self) -> EngineInfo:
        """Facts; only valid once `start` returned."""
        assert self._info is not None
        return self._info

    def pids(self) -> list[int]:
        """The engine's own processes, for watching."""
        return [] if self._launcher is None else [process.pid for process in self._launcher.processes()]

    async def start(self) -> None:
        """Load the model and run warm-up requests; 20 s and more. Raises: EngineDeadError."""
        await self.stop()
        launcher = self._launcher = Launcher()
        self._health = EngineHealth()
        loop = asyncio.get_running_loop()
        try:
            self._engine = await loop.run_in_executor(launcher.thread, launcher.launch, self._build)
            self._steps.watch(self._engine.output_processor)
            self._defaults = self._engine.model_config.get_diff_sampling_param()
            length = self._engine.model_config.max_model_len
            self._parsers = Parsers(self._engine, self._parser_names)
            self._info = EngineInfo(
                "vllm",
                self._model,
                vllm.__version__,
                self._max_num_seqs,
                length,
                reads_reasoning=self._parser_names.reasoning is not None,
                **memory_of(self._engine.vllm_config, self._path),
                memory_bandwidth=await loop.run_in_executor(launcher.thread, measure_bandwidth)
                if current_platform.is_cpu()
                else 0.0,
            )
            self.meter.started(self._max_num_seqs)
            await self._warm_up(self._engine)
            scheduler = self._engine.vllm_config.scheduler_config
            self.accounts.up(
                now_us(), step_tokens=scheduler.max_num_batched_tokens, max_requests=self._max_num_seqs
            )
        except Exception as error:
            await self.stop()
            raise EngineDeadError(f"vLLM can't be started: {error!r}") from error
        except BaseException:
            await self.stop()
            raise

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Output, None]:
        """Stream one request's output.

        Raises: RequestRejectedError, EngineFailedError, EngineDeadError.
        """
        engine = self._running()
        field = "messages" if request.url == bodies.CHAT else "prompt"
        self._aborted[request.request_id] = False
        try:
            assert self._parsers is not None
            prepared = await prepare(engine, request, self._defaults, self._parsers)
            finished = "abort" if self._aborted[request.request_id] else prepared.finished
            if finished is not None:
                yield empty(prepared, finished)
                return
            self._steps.begin(
                request.request_id, request.account, len(prepared.engine_input["prompt_token_ids"])
            )
            async with contextlib.aclosing(self._stream(engine, request, prepared)) as stream:
                async for output in stream:
                    yield output
        except Exception as error:
            await self._forget(engine, request.request_id)
            translated = translate(error, field, request.body)
            if engine.errored:
                translated = EngineDeadError("the vLLM engine ended")
            if translated is error:
                raise
            raise translated from error
        finally:
            self._steps.end(request.request_id)
            self._aborted.pop(request.request_id, None)

    async def abort(self, request_id: str) -> None:
        """Stop a request: its stream ends with finish_reason "abort". Unknown ids are ignored."""
        if self._engine is None or request_id not in self._aborted:
            return
        self._aborted[request_id] = True
        await self._forget(self._engine, request_id)
        self._steps.end(request_id)  # what a step under way still makes is nobody's

    async def check(self, timeout_s: float) -> EngineHealth:
        """Ask the engine core something only its step loop can answer.

        Raises: EngineDeadError, TimeoutError: a busy core answers late, and a hung one never.
        vLLM's own health check still passes when the core's input thread has died.
        """
        engine = self._running()
        try:
            async with asyncio.timeout(timeout_s):
                await engine.is_paused()
        except TimeoutError:
            raise
        except Exception as error:
            raise EngineDeadError(f"the vLLM engine can't answer: {error!r}") from error
        return self._health

    async def stop(self) -> None:
        """End the engine and its processes; running requests get EngineDeadError."""
        engine, launcher = self._engine, self._launcher
        self._engine = self._launcher = None
        self.accounts.down(now_us())
        if launcher is None:
            return
        if engine is not None:
            await _end_streams(engine)
        shutdown = functools.partial(_shutdown, engine)
        await asyncio.get_running_loop().run_in_executor(launcher.thread, launcher.end, shutdown)
        launcher.close()

    def _running(self) -> AsyncLLM:
        if self._engine is None or self._engine.errored:
            raise EngineDeadError("the vLLM engine is not running")
        return self._engine

    async def _forget(self, engine: AsyncLLM, request_id: str) -> None:
        """Some refused requests leave a slot taken; a dead engine has none to free."""
        with contextlib.suppress(Exception):
            await engine.abort(request_id)

    def _build(self) -> AsyncLLM:
        on_cpu = current_platform.is_cpu()
        prepare_environment(on_cpu)
        args: dict[str, Any] = {
            "model": str(self._path),
            "served_model_name": self._model,
            "max_num_seqs": self._max_num_seqs,
            "max_model_len": self._max_model_len,
            "max_num_batched_tokens": self._max_batched_tokens,
            "scheduling_policy": "priority",  # a person's prompt is read before those of batch work
            "disable_log_stats": False,  # the timings in usage come from them
            "reasoning_parser": self._parser_names.reasoning or "",  # a grammar begins where it ends
        }
        if on_cpu:
            args["enforce_eager"] = True  # compiled, greedy text was wrong, and the start took two minutes
            args["kv_cache_memory_bytes"] = self._kv_cache_bytes
            args["dtype"] = cpu_dtype(self._path)
        else:
            args["gpu_memory_utilization"] = self._gpu_memory_share
        logger = functools.partial(_health_logger, self._health, self.meter, self._steps)
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(**{**args, **self._engine_args}), stat_loggers=[logger]
        )

    async def _warm_up(self, engine: AsyncLLM) -> None:
        vocabulary = engine.model_config.get_vocab_size()
        for name, tokens in (("long", WARM_UP_TOKENS), ("short", 16)):
            tokens = min(tokens, engine.model_config.max_model_len - 4)
            prompt = {"prompt_token_ids": [token % vocabulary for token in range(7, tokens + 7)]}
            params = SamplingParams(
                max_tokens=4, temperature=0.5, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
            )
            async for _ in engine.generate(prompt, params, f"warm-up-{name}-{time.monotonic_ns()}"):
                pass

    async def _stream(
        self, engine: AsyncLLM, request: GenerateRequest, prepared: Prepared
    ) -> AsyncGenerator[Output, None]:
        """One Output a step. Ids of half a character wait for the step that completes it."""
        prompt_tokens, scanner, top = prepared.prompt_tokens, prepared.scanner, prepared.top
        held: dict[int, tuple[list[int], Logprobs]] = {}
        made = cached = 0
        headers = None if request.trace_headers is None else dict(request.trace_headers)
        stream = engine.generate(
            prepared.engine_input,
            prepared.params,
            request.request_id,
            trace_headers=headers,
            priority=request.priority,
            **prepared.engine_arguments,
        )
        async with contextlib.aclosing(stream):
            async for step in stream:
                deltas: list[Delta] = []
                stopped = False
                if step.num_cached_tokens:
                    cached = min(step.num_cached_tokens, prompt_tokens)
                for part in step.outputs:
                    index, text, ids, reason = part.index, part.text, part.token_ids, part.finish_reason
                    made += len(ids)
                    if reason == "error":
                        raise failure(step, prepared)
                    logprobs = None if part.logprobs is None else logprob_items(ids, part.logprobs, top)
                    if scanner is not None:
                        piece = scanner.push(text, ids, logprobs)
                        if piece.stop is not None:
                            deltas.append(
                                Delta(index, piece.text, piece.token_ids, piece.logprobs, "stop", piece.stop)
                            )
                            stopped = True
                            break
                        text, ids, logprobs = piece.text, piece.token_ids, piece.logprobs
                        if reason is not None:
                            rest = scanner.flush()
                            text, ids = text + rest.text, [*ids, *rest.token_ids]
                            logprobs = [*(logprobs or ()), *(rest.logprobs or ())] or None
                    elif not text and reason is None:
                        old_ids, old_logprobs = held.get(index, ([], None))
                        joined = None if logprobs is None else [*(old_logprobs or ()), *logprobs]
                        held[index] = [*old_ids, *ids], joined
                        continue
                    elif index in held:
                        old_ids, old_logprobs = held.pop(index)
                        ids = [*old_ids, *ids]
                        logprobs = None if logprobs is None else [*(old_logprobs or ()), *logprobs]
                    if ids or reason is not None:
                        deltas.append(Delta(index, text, ids, logprobs, reason, part.stop_reason))
                finished = step.finished or stopped
                if prepared.readers is not None:
                    deltas = [prepared.readers[delta.index].read(delta) for delta in deltas]
                if finished:
                    reasoning = reasoning_tokens(prepared.readers)
                    yield Output(deltas, usage(step, prompt_tokens, cached, made, reasoning), True)
                    return  # closing the stream aborts what still runs after a stop string
                if deltas:
                    yield Output(deltas, EngineUsage(prompt_tokens, cached, made))


def _health_logger(
    health: EngineHealth, meter: StepMeter, accounts: StepAccounts, vllm_config: Any, engine_index: int
) -> HealthLogger:
    return HealthLogger(health, meter, accounts)


async def _end_streams(engine: AsyncLLM) -> None:
    """Fail what runs, by us: left to vLLM, an orderly stop is logged as the engine's crash."""
    handler = engine.output_handler
    if handler is not None and not handler.done():
        handler.cancel()
        await asyncio.wait([handler])
        engine.output_processor.propagate_error(VLLMEngineDeadError())


def _shutdown(engine: AsyncLLM | None) -> None:
    if engine is not None:
        engine.shutdown(timeout=SHUTDOWN_S)
