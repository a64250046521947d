"""A client that nobody here wrote: `vllm bench serve`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import vllm

from tests.support.stacks import SharedStack

PROMPTS, INPUT, OUTPUT = 8, 50, 24


@pytest.mark.vllm
@pytest.mark.shows("vllm-bench-serve")
@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
def test_vllms_own_benchmark_gets_every_token(
    vllm_stack: SharedStack, tmp_path: Path, backend: str, endpoint: str
) -> None:
    # The CPU build is not called vllm in its metadata, where the command looks its own version up.
    metadata = tmp_path / f"vllm-{vllm.__version__.partition('+')[0]}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    version = metadata.parent.name.removesuffix(".dist-info").removeprefix("vllm-")
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    model = vllm_stack.data / "models" / vllm_stack.model
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
            *("--backend", backend, "--base-url", vllm_stack.api_url, "--endpoint", endpoint),
            *("--model", vllm_stack.model, "--tokenizer", str(model), "--ignore-eos", "--seed", "3"),
            *("--dataset-name", "random", "--random-input-len", str(INPUT)),
            *("--random-output-len", str(OUTPUT), "--num-prompts", str(PROMPTS), "--max-concurrency", "4"),
            *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"),
        ],
        env={
            **os.environ,
            "OPENAI_API_KEY": vllm_stack.api_key,
            "PYTHONPATH": str(tmp_path),
            "NO_PROXY": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result.get("failed", 0)) == (PROMPTS, 0), output
    assert result["total_output_tokens"] == PROMPTS * OUTPUT, output
    assert result["total_input_tokens"] >= PROMPTS * INPUT
    assert result["mean_ttft_ms"] > 0 and result["mean_itl_ms"] > 0
