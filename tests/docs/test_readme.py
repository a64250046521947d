"""README.md tells the truth: its commands are run as they stand, and its links lead somewhere.

A comment before a block says what is special about it:
`<!-- test: setup -->` nothing is printed, `<!-- test: prints TEXT -->` the output must hold TEXT,
`<!-- test: skip REASON -->` it can't be run here. Blocks share one shell's variables, in their order.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.stacks import ROOT, SharedStack

README = ROOT / "README.md"
RUN = ("bash", "python")

_BLOCK = re.compile(
    r"(?:^<!-- test: (?P<note>.*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    line: int
    language: str
    text: str
    note: str

    @property
    def prints(self) -> str:
        """What its output must hold; empty when nothing is asked."""
        return self.note.removeprefix("prints ") if self.note.startswith("prints ") else ""


def blocks() -> list[Block]:
    """All fenced blocks of the README."""
    text = README.read_text()
    return [
        Block(text.count("\n", 0, found.start("text")), found["language"], found["text"], found["note"] or "")
        for found in _BLOCK.finditer(text)
    ]


class Shell:
    """Runs blocks one after another, as somebody who copies them into one terminal would."""

    def __init__(self, folder: Path, stack: SharedStack) -> None:
        self._folder = folder
        self._stack = stack
        self._variables = folder / "variables"
        self._variables.touch()
        (folder / ".headrace").symlink_to(stack.data)
        command = folder / "headrace"
        root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
        command.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {python} -m cli "$@"\n')
        command.chmod(0o755)

    def run(self, block: Block) -> str:
        """Its output. Raises: AssertionError where it fails."""
        text = block.text.replace("http://127.0.0.1:8000", self._stack.api_url)
        text = text.replace("http://127.0.0.1:5555", self._stack.flower_url)
        if block.language == "python":
            text = f"{shlex.quote(sys.executable)} - <<'END'\n{text}END\n"
        kept = shlex.quote(str(self._variables))
        done = subprocess.run(
            ["bash", "-c", f"set -aeuo pipefail\n. {kept}\n{text}\nexport -p > {kept}"],
            cwd=self._folder,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=180,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"README.md:{block.line}\n{output}\n{self._stack.tail()}"
        return output


def test_every_block_is_run_or_says_why_not() -> None:
    for block in blocks():
        if block.language in RUN:
            assert block.note == "setup" or block.prints or block.note.startswith("skip "), block
            assert block.note != "skip ", block
        else:
            assert not block.language, f"README.md:{block.line}: {block.language} is not run by any test"
    assert sum(bool(block.prints) for block in blocks()) >= 8


def test_every_link_leads_somewhere() -> None:
    for target in _LINK.findall(README.read_text()):
        assert (ROOT / target).exists(), target


@pytest.mark.vllm
def test_every_command_does_what_it_says(vllm_stack: SharedStack, tmp_path: Path) -> None:
    shell = Shell(tmp_path, vllm_stack)
    for block in blocks():
        if block.language not in RUN or block.note.startswith("skip"):
            continue
        output = shell.run(block)
        assert block.prints in output.replace("\n", ""), f"README.md:{block.line} printed {output!r}"
