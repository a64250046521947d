"""Which numbers an engine on CPU computes with."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workers.vllm_dtype import choose_dtype
from workers.vllm_memory import memory_of


@pytest.mark.parametrize(
    ("machine", "capability", "quantized", "wanted"),
    [
        ("x86_64", "AVX512", False, "auto"),
        ("x86_64", "AVX2", False, "float32"),
        ("x86_64", "DEFAULT", False, "float32"),
        ("AMD64", "AVX2", False, "float32"),
        ("x86_64", "AVX2", True, "auto"),
        ("aarch64", "DEFAULT", False, "auto"),
    ],
)
def test_cores_without_bfloat16_compute_in_float32(
    machine: str, capability: str, quantized: bool, wanted: str
) -> None:
    assert choose_dtype(machine, capability, quantized=quantized) == wanted


@pytest.mark.parametrize(
    ("stored", "computed", "quantization", "weights", "kv"),
    [
        (torch.bfloat16, torch.bfloat16, None, 1000, 2 * 3 * 4 * 8 * 2),
        (torch.bfloat16, torch.float32, None, 2000, 2 * 3 * 4 * 8 * 4),
        (torch.float32, torch.bfloat16, None, 500, 2 * 3 * 4 * 8 * 2),
        (torch.bfloat16, torch.bfloat16, "awq", 1000, 2 * 3 * 4 * 8 * 2),
    ],
)
def test_memory_is_counted_in_the_type_that_is_computed_with(
    tmp_path: Path,
    stored: torch.dtype,
    computed: torch.dtype,
    quantization: str | None,
    weights: int,
    kv: int,
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    model = SimpleNamespace(
        dtype=computed,
        quantization=quantization,
        hf_text_config=SimpleNamespace(num_hidden_layers=3, dtype=stored),
        get_total_num_kv_heads=lambda: 4,
        get_head_size=lambda: 8,
    )
    cache = SimpleNamespace(cache_dtype="auto", num_gpu_blocks=5, block_size=32)
    found = memory_of(SimpleNamespace(model_config=model, cache_config=cache), tmp_path)
    assert found == {"weight_bytes": weights, "kv_bytes_per_token": kv, "kv_tokens": 160}
