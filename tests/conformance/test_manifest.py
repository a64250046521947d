"""The manifest is complete both ways."""

from tests.conformance.manifest import CONTRACT, behaviours, plain, shown


def test_every_required_behaviour_is_shown_by_a_test() -> None:
    tested = shown()
    assert [one.id for one in behaviours() if one.id not in tested] == []


def test_every_marked_test_shows_a_required_behaviour() -> None:
    known = {one.id for one in behaviours()}
    assert {name: places for name, places in shown().items() if name not in known} == {}


def test_every_behaviour_names_its_source() -> None:
    contract = plain(CONTRACT.read_text())
    for one in behaviours():
        assert one.does, one
        assert (one.docs is None) != (one.spec is None), f"{one.id}: one of docs and spec"
        assert one.docs is None or plain(one.docs) in contract, f"{one.id}: not in docs/api.md: {one.docs}"
