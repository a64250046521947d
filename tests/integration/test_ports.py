"""Ports that two stacks would both find free."""

from pathlib import Path

import pytest

from cli.stack.ports import PortClaims, free_port
from cli.stack.process import StackError


def test_a_port_that_is_claimed_is_taken_by_nobody_else_until_it_is_given_back(tmp_path: Path) -> None:
    port = free_port()
    first, second = PortClaims(tmp_path), PortClaims(tmp_path)
    assert first.take(port) == port
    assert second.take(port) not in (0, port)
    with pytest.raises(StackError, match=f"api: port {port} on 127.0.0.1 is in use"):
        second.require(port, "api")
    first.release()
    assert second.require(port, "api") == port


def test_a_stack_takes_no_port_twice(tmp_path: Path) -> None:
    claims = PortClaims(tmp_path)
    port = claims.take(None)
    assert claims.take(port) != port
