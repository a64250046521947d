"""What an attempt makes of the stream that earlier attempts left."""

import orjson

from core.pricing import Usage
from schemas import events
from schemas.completion import ChatChoice, Piece
from storage.streams import Event
from tests.support.engines import CHAT
from workers.engine import Delta, EngineUsage
from workers.progress import Progress


def delta(sequence: int, text: str, *, index: int = 0, finish: str | None = None) -> Event:
    choices = [ChatChoice().delta(index, Piece(text, finish_reason=finish))]
    data = orjson.dumps({"choices": choices, "tokens": [10, sequence]})
    return Event(sequence, events.DELTA, data, (sequence,))


def started(sequence: int, attempt: int = 1) -> Event:
    return Event(sequence, events.STARTED, events.started_data(attempt))


def restarted(sequence: int, attempt: int = 2) -> Event:
    return Event(sequence, events.RESTARTED, events.started_data(attempt))


def test_an_attempt_knows_what_was_streamed_and_counts_on() -> None:
    progress = Progress("task_1", 2, [started(2), delta(3, "a"), delta(4, "b")], url=CHAT)
    assert progress.choices[0].item(0)["message"]["content"] == "ab"
    assert progress.emitted == [3, 4]
    assert not progress.torn
    assert progress.started().sequence == 5


def test_a_stream_whose_beginning_is_lost_is_no_output_to_continue_from() -> None:
    assert Progress("task_1", 2, [delta(51, "rest", finish="stop")], url=CHAT).torn
    assert Progress("task_1", 2, [started(2), delta(3, "a"), delta(51, "rest")], url=CHAT).torn


def test_what_was_lost_before_a_restart_does_not_matter() -> None:
    progress = Progress(
        "task_1", 3, [delta(51, "void"), restarted(52), started(53), delta(54, "a")], url=CHAT
    )
    assert not progress.torn
    assert progress.emitted == [54]
    torn = Progress("task_1", 2, [delta(51, "void")], url=CHAT)
    torn.restarted()
    assert not torn.torn
    assert not torn.streamed


def test_an_output_is_complete_once_each_of_its_choices_ended() -> None:
    one = [started(2), delta(3, "a", finish="stop")]
    assert Progress("task_1", 2, one, url=CHAT).complete
    assert not Progress("task_1", 2, one, n=2, url=CHAT).complete
    assert Progress("task_1", 2, [*one, delta(4, "b", index=1, finish="length")], n=2, url=CHAT).complete


def test_after_a_checkpoint_the_next_run_goes_on_after_what_was_sent_and_is_counted_once() -> None:
    progress = Progress("task_1", 1, [started(2), delta(3, "a")], url=CHAT)
    progress.count(EngineUsage(10, 4, 2))
    progress.add([Delta(0, "bc", [7, 8])])
    assert progress.take() is not None
    progress.count(EngineUsage(10, 4, 3))
    progress.add([Delta(0, "", [9])])  # half a character: it has no text yet
    progress.checkpoint()
    assert progress.emitted == [3, 7, 8]
    assert progress.usage == Usage(10, 4, 3)
    progress.count(EngineUsage(10, 10, 1))  # the second run finds its own prompt in the cache
    assert progress.usage == Usage(10, 4, 4)
    progress.add([Delta(0, "é", [9], finish_reason="stop")])
    entry = progress.take()
    assert entry is not None and list(entry.token_ids) == [9]
    assert progress.text == "abcé"
