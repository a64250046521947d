"""Which numbers a vLLM engine on CPU computes with."""

import json
import platform
from pathlib import Path

import torch

_X86 = ("x86_64", "AMD64")
_WITHOUT_BFLOAT16 = ("DEFAULT", "AVX2")  # of what torch calls the capabilities of x86


def cpu_dtype(path: Path) -> str:
    """Return vLLM's `dtype` for a model's folder on this machine's cores. Raises: OSError, ValueError."""
    config = json.loads((path / "config.json").read_text())
    return choose_dtype(
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        quantized="quantization_config" in config,
    )


def choose_dtype(machine: str, capability: str, *, quantized: bool) -> str:
    """Return "float32" where bfloat16 would have to be emulated, else "auto", the model's own. Pure.

    On x86 without AVX-512, oneDNN has no bfloat16 product and torch's own takes a step apart token by token: on two
    cores with AVX2, 8 requests at once made 7 tokens/s in bfloat16, half of what one alone did, and 34 in float32.
    Weights and KV cache are twice as large then. A quantized model's kernels ask for types of their own.
    """
    if machine in _X86 and capability in _WITHOUT_BFLOAT16 and not quantized:
        return "float32"
    return "auto"
