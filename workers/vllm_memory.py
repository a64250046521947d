"""How much memory a vLLM engine's model takes, and how fast that memory is.

Source: the KV formula is exact for models whose layers are all alike; others are shown as vLLM counts them.
"""

import time
from pathlib import Path
from typing import Any

import torch

_COPY_BYTES = 256 << 20  # larger than any cache
_COPIES = 3


def memory_of(vllm_config: Any, path: Path) -> dict[str, int]:
    """Return weight_bytes, kv_bytes_per_token and kv_tokens of a started engine."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    width = torch.finfo(model.dtype).bits // 8
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    stored = getattr(model.hf_text_config, "dtype", None)
    if isinstance(stored, torch.dtype) and model.quantization is None:
        weights = weights * width // (torch.finfo(stored).bits // 8)  # converted as they are loaded
    if str(cache.cache_dtype).startswith(("fp8", "int8")):
        width = 1
    heads = model.get_total_num_kv_heads()
    per_token = model.hf_text_config.num_hidden_layers * 2 * heads * model.get_head_size() * width
    blocks = cache.num_gpu_blocks or 0
    return {
        "weight_bytes": weights,
        "kv_bytes_per_token": per_token,
        "kv_tokens": blocks * cache.block_size,
    }


def measure_bandwidth() -> float:
    """Bytes a second that this machine's memory moves, by copying: read and write both count. Takes 0.2 s."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(_COPIES):
        began = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * _COPY_BYTES / (time.perf_counter() - began))
    return best
