"""The demo model's folder is whole or not there."""

from pathlib import Path

import pytest

from cli.stack import model

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def write(folder: Path, weights_bytes: int = model.WEIGHTS_BYTES) -> None:
    for name in FILES:
        (folder / name).write_text("{}")
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(weights_bytes)  # a sparse file: only its size is looked at


def test_a_converted_model_is_not_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def record(folder: Path) -> None:
        calls.append(folder)
        write(folder)

    monkeypatch.setattr(model, "_write", record)
    target = tmp_path / "models" / "m"
    model.convert(target)
    assert model.is_complete(target)
    model.convert(target)
    assert len(calls) == 1


def test_a_conversion_that_was_cut_short_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "m"

    def cut_short(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "_write", cut_short)
    with pytest.raises(KeyboardInterrupt):
        model.convert(target)
    assert not target.exists()
    monkeypatch.setattr(model, "_write", write)
    model.convert(target)
    assert model.is_complete(target)


def test_another_model_than_expected_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_write", lambda folder: write(folder, weights_bytes=1000))
    with pytest.raises(ValueError, match="not what was expected"):
        model.convert(tmp_path / "m")
    assert not (tmp_path / "m").exists()
