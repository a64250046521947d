"""Whether words are a `headrace` command, asked of the command itself without running it."""

import shlex
from collections.abc import Sequence
from typing import Any

import typer.main

from cli.main import app


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a command line that begins with `headrace`.

    Raises: AssertionError for another program or an unknown subcommand, click's UsageError for its options.
    """
    assert words and words[0].rpartition("/")[2] == "headrace", f"not a headrace command: {words}"
    command: Any = typer.main.get_command(app)
    rest = list(words[1:])
    while hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"no such subcommand: {words}"
        command = command.commands[rest.pop(0)]
    parameters: dict[str, Any] = command.make_context("headrace", rest).params
    return parameters


def inner(words: Sequence[str]) -> list[str]:
    """The headrace command inside `sh -c '…'`, `exec` and `env NAME=value`; other words stay as they are."""
    words = list(words)
    if words[:2] == ["sh", "-c"]:
        assert len(words) == 3
        words = shlex.split(words[2])
    if words[:1] == ["exec"]:
        words = words[1:]
    if words[:1] == ["env"]:
        words = words[1:]
        while "=" in words[0]:
            words = words[1:]
    return words
