"""The command itself."""

import tomllib
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"headrace {project['version']}\n")
