"""The collector leaves alone what a process loaded."""

import gc
from collections.abc import Iterator

import pytest

from runtime.garbage import spare_what_is_there


@pytest.fixture(autouse=True)
def nothing_stays_frozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_there_is_not_looked_at_again_and_what_is_garbage_goes() -> None:
    class Node:
        me: "Node"

    kept = [Node()]
    cycle = Node()
    cycle.me = cycle
    before = gc.get_freeze_count()
    del cycle
    spare_what_is_there()
    assert gc.get_freeze_count() > before
    frozen = gc.get_objects(generation=2)
    assert not any(one is kept for one in frozen)
    assert not [one for one in gc.get_objects() if type(one).__name__ == "Node" and hasattr(one, "me")]


def test_what_was_replaced_since_is_collected_the_next_time() -> None:
    class Engine:
        me: "Engine"

    old = Engine()
    old.me = old
    spare_what_is_there()
    del old
    spare_what_is_there()
    gc.unfreeze()
    assert not [one for one in gc.get_objects() if type(one).__name__ == "Engine" and hasattr(one, "me")]
