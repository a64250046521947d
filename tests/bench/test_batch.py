"""What `headrace bench batch` makes of its runs; the whole of it runs on the deterministic engine by hand."""

from pathlib import Path

import pytest

from bench import batch


def runs(*rates: tuple[str, float]) -> list[dict[str, object]]:
    return [{"arm": arm, "tokens_per_s": rate, "requests_per_s": rate} for arm, rate in rates]


def test_rows_are_ratios_of_neighbouring_runs_and_say_every_scale_down() -> None:
    throughput = runs(("offline", 100.0), ("batch", 98.0), ("batch", 96.0), ("offline", 100.0))
    order = runs(("file", 2.0), ("prefix", 3.0), ("prefix", 4.0), ("file", 2.0))
    ours, sorted_ = batch.rows(batch.FULL, throughput, order, "vllm")
    assert (ours.name, ours.value, ours.low, ours.high, ours.met) == (
        "throughput_ratio",
        0.97,
        0.96,
        0.98,
        True,
    )
    assert (sorted_.name, sorted_.value, sorted_.met) == ("prefix_sorted_ratio", 1.75, True)
    for row, slots, tokens in (
        (ours, batch.FULL.slots, batch.FULL.kv_tokens),
        (sorted_, batch.FULL.prefix_slots, batch.FULL.prefix_kv_tokens),
    ):
        assert f"{slots} slots, KV cache of {tokens} tokens" in row.note
    assert "no model" in batch.rows(batch.FULL, throughput, order, "deterministic")[0].note


def test_a_run_that_made_other_tokens_than_asked_for_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="made 3 tokens, not 4"):
        batch._run("batch", 3, 1.0, [{"max_tokens": 4}])


def test_it_asks_for_the_prompts_before_it_starts_anything(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(ValueError, match="needs --data"):
            batch.bench(quick=True, engine="vllm", say=print, data=data)
