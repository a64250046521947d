"""Rows of a Parquet file as prompts; what needs the extra skips without it."""

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli.batch_rows import InputError, Prompting, read_rows, requests_from

PROMPTING = Prompting("{name}: {count}", "m", 4, None, None)


def parquet(file: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), file, **options)
    return file


def prompts(file: Path) -> list[str]:
    return [orjson.loads(line)["body"]["messages"][0]["content"] for line in requests_from(file, PROMPTING)]


def test_rows_of_all_row_groups_are_read_in_their_order(tmp_path: Path) -> None:
    names = [f"ä{number}" for number in range(2500)]
    file = parquet(tmp_path / "in.parquet", {"name": names, "count": list(range(2500))}, row_group_size=700)
    assert prompts(file) == [f"ä{number}: {number}" for number in range(2500)]
    assert [orjson.loads(line)["custom_id"] for line in requests_from(file, PROMPTING)][-1] == "row-2499"


def test_a_row_without_a_value_is_named_with_its_column(tmp_path: Path) -> None:
    file = parquet(tmp_path / "in.parquet", {"name": ["a", "b"], "count": [1, None]})
    with pytest.raises(InputError, match="row 1 has no 'count'"):
        prompts(file)


def test_a_file_that_only_says_it_is_one_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    file = tmp_path / "in.parquet"
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="no Parquet file"):
        list(read_rows(file))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'headrace\[parquet\]'"):
        list(read_rows(tmp_path / "in.parquet"))
