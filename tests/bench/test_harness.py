"""Order, pairing, spread and the result's format."""

import json

import pytest

from bench.harness import (
    Result,
    Row,
    interleaved,
    meets,
    paired,
    percentile,
    quiet_pairs,
    read_result,
    row,
    spread,
)


def test_arms_swap_places_from_pair_to_pair() -> None:
    assert interleaved("A", "B", 3) == ["A", "B", "B", "A", "A", "B"]


def test_each_ratio_is_taken_within_a_pair_whichever_arm_ran_first() -> None:
    order = ["A", "B", "B", "A"]
    assert paired(order, [100, 90, 40, 50], over="A") == [0.9, 0.8]


@pytest.mark.parametrize("order", [["A"], ["A", "A"], ["B", "B"], ["A", "B", "B"]])
def test_runs_that_make_no_pairs_are_refused(order: list[str]) -> None:
    with pytest.raises(ValueError):
        paired(order, [1.0] * len(order), over="A")


def test_one_ratio_a_run_is_refused() -> None:
    with pytest.raises(ValueError):
        paired(["A", "B"], [1.0], over="A")


def test_a_drifting_machine_leaves_the_ratio_alone() -> None:
    speeds = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]  # of the machine, run by run
    order = interleaved("A", "B", 4)
    values = [speed * (100 if arm == "A" else 95) for speed, arm in zip(speeds, order, strict=True)]
    middle = spread(paired(order, values, over="A"))
    assert middle.low < 0.95 < middle.high
    assert middle.median == pytest.approx(0.95, abs=0.05)


def test_pairs_are_chosen_by_their_disturbance_alone() -> None:
    assert quiet_pairs([0.0, 0.1, 0.5, 0.0, 0.0, 0.0], 0.1) == [0, 2]
    assert quiet_pairs([0.0, 0.1, 0.5, 0.0], 0.1) == [0, 1]  # one quiet pair shows no spread: all are taken


def test_a_row_carries_the_median_and_the_extremes() -> None:
    made = row("tokens_ratio", [0.9, 1.0, 0.95], "ratio", "≥ 0.95", "three pairs")
    assert made == Row("tokens_ratio", 0.95, 0.9, 1.0, "ratio", "≥ 0.95", "three pairs")
    assert made.met is True


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [
        (0.95, "≥ 0.95", True),
        (0.94, "≥ 0.95", False),
        (0.30, "≤ 0.30", True),
        (0.31, "≤ 0.30", False),
        (1.0, "", None),
        (1.0, "none yet", None),
    ],
)
def test_a_target_is_met_at_its_bound(value: float, target: str, met: bool | None) -> None:
    assert meets(value, target) is met


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.01) == 7


def test_a_result_is_written_in_the_published_format_and_read_back() -> None:
    result = Result("raw", {"cores": 2}, [row("tokens_ratio", [0.97], "ratio", "≥ 0.95")], {"runs": []})
    written = json.loads(json.dumps(result.as_json()))
    assert list(written) == ["bench", "machine", "rows", "arms"]
    assert list(written["rows"][0]) == ["name", "value", "low", "high", "unit", "target", "note"]
    assert read_result(written) == result


def test_what_is_not_a_result_is_refused() -> None:
    with pytest.raises(ValueError):
        read_result({"bench": "raw"})
    with pytest.raises(ValueError):
        read_result({"bench": "raw", "machine": {}, "rows": [{"name": "x"}], "arms": {}})
