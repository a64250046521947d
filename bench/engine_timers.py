"""Stopwatches inside a vLLM engine's processes, for `bench single`: where a step's time goes.

vLLM runs `install` in each of its processes as a plugin: `plugin_folder` makes what announces it, for PYTHONPATH,
so that nothing of it is in the product. Each process adds up the time of what is named here and writes a line a step
to a file of its own: `{"at": monotonic ns, "NAME": ns, …}`. On CPU nothing runs beside the Python that started it, so
a call's wall time is its own. It names private parts of vLLM 0.32; one that is gone is an error, never a silent zero.
"""

import functools
import importlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

FOLDER = "HEADRACE_BENCH_TIMERS"

# name: (module, class or "", function). `STEP_ENDS` name the last of a step in their process: a line is written then.
WATCHED = {
    "outputs": ("vllm.v1.engine.output_processor", "OutputProcessor", "process_outputs"),
    "detokenize": ("vllm.v1.engine.detokenizer", "BaseIncrementalDetokenizer", "update"),
    "core_step": ("vllm.v1.engine.core", "EngineCoreProc", "_process_engine_step"),
    "schedule": ("vllm.v1.core.sched.scheduler", "Scheduler", "schedule"),
    "update": ("vllm.v1.core.sched.scheduler", "Scheduler", "update_from_output"),
    "execute": ("vllm.v1.worker.gpu_worker", "Worker", "execute_model"),
    "forward": ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "_model_forward"),
    "linear": ("vllm.model_executor.layers.utils", "", "cpu_unquantized_gemm"),
    "attention": ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl", "forward"),
    "kv_write": ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl", "do_kv_cache_update"),
    "small_ops": ("vllm.model_executor.custom_op", "CustomOp", "forward"),
    "logits": ("vllm.model_executor.layers.logits_processor", "LogitsProcessor", "forward"),
    "sample": ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "_sample"),
    "sample_step": ("vllm.v1.worker.gpu_worker", "Worker", "sample_tokens"),
}
STEP_ENDS = ("outputs", "core_step", "sample_step")
# calls of these count for what they are part of, when they are
INSIDE = {"linear": ("logits",), "small_ops": ("logits", "sample")}
_installed = False


class Sums:
    """What a process added up since its last line."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._ns: dict[str, int] = {}
        self._open: list[str] = []

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time taken."""
        inside, clock, sums, open_ = INSIDE.get(name, ()), time.monotonic_ns, self._ns, self._open
        ends = name in STEP_ENDS

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if open_ and (open_[-1] in inside or open_[-1] == name):  # within `name` itself: counted already
                return function(*args, **kwargs)
            open_.append(name)
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                ended = clock()
                open_.pop()
                sums[name] = sums.get(name, 0) + ended - began
                if ends:
                    self._file.write(json.dumps({"at": ended, **sums}) + "\n")
                    sums.clear()

        return timed


def install() -> None:
    """Called by vLLM in every process it has."""
    global _installed
    folder = os.environ.get(FOLDER)
    if _installed or not folder:
        return
    _installed = True
    sums = Sums((Path(folder) / f"{os.getpid()}.jsonl").open("a", buffering=1))
    for name, (module, owner, function) in WATCHED.items():
        found = importlib.import_module(module)
        place = getattr(found, owner) if owner else found
        setattr(place, function, sums.watch(name, getattr(place, function)))


def plugin_folder(folder: Path) -> Path:
    """Make a folder that announces `install` to vLLM when it is on PYTHONPATH."""
    about = folder / "headrace_bench_timers-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-bench-timers\nVersion: 0\n")
    (about / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nheadrace_bench_timers = bench.engine_timers:install\n"
    )
    return folder


def read(folder: Path, windows: Iterable[tuple[int, int]]) -> dict[str, float]:
    """Return the nanoseconds of each name and, as `steps`, how often the core stepped within these moments."""
    within, sums, steps = list(windows), dict.fromkeys(WATCHED, 0.0), 0
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            at = entry.pop("at")
            if not any(began <= at <= ended for began, ended in within):
                continue
            steps += "core_step" in entry
            for name, value in entry.items():
                sums[name] += value
    return {**sums, "steps": float(steps)}
