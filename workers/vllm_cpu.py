"""Repairs of vLLM 0.32 on CPU, made in each of its processes before a model is loaded.

AMX attention: on hosts with AMX, vLLM picks its AMX kernel for bfloat16, and greedy text comes out wrong (the
demo model answers "L'Étoile, la Marseillaise ..." to the capital of France; transformers, float32 and the
AVX-512 kernel answer Paris). `tests/engine` asks that question. Drop this when a vLLM answers it without.
"""

from typing import Any


def install() -> None:
    """Apply the repairs; does nothing on GPUs."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.attention.backends import cpu_attn

    choose = cpu_attn._get_attn_isa
    if getattr(choose, "repaired", False):
        return

    def without_amx(*args: Any, **kwargs: Any) -> str:
        isa: str = choose(*args, **kwargs)
        return "vec" if isa == "amx" else isa

    without_amx.repaired = True  # type: ignore[attr-defined]
    cpu_attn._get_attn_isa = without_amx
