"""Secrets in logs and texts: scrubbed, whatever brought them in."""

import json
import logging

import pytest
import structlog

from core.keys import make_key
from core.secrets import HIDDEN, is_secret_name, scrub
from runtime.logs import configure_logs
from runtime.settings import Settings

KEY = make_key(bytes(range(44)), b"pepper").text


@pytest.mark.parametrize(
    ("text", "secret", "kept"),
    [
        (f"refused {KEY}.", KEY[15:], KEY[:15]),
        (f"Authorization: Bearer {KEY}", KEY[15:], "Bearer"),
        ("Authorization: Bearer eyJhbGciOi.abc-def", "eyJhbGciOi", "Bearer "),
        ("postgresql://headrace:pass-word@host:5432/x", "pass-word", "@host:5432/x"),
        ("postgresql+asyncpg://u:p%40ss@h/x", "p%40ss", "@h/x"),
        ("redis://:pass-word@host:6379/0", "pass-word", "redis://:"),
        ("secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqr", "whsec_"),
    ],
)
def test_a_secret_is_taken_out_and_what_it_was_stays_known(text: str, secret: str, kept: str) -> None:
    scrubbed = scrub(text)
    assert secret not in scrubbed
    assert kept in scrubbed
    assert HIDDEN in scrubbed


@pytest.mark.parametrize(
    "text",
    ["", "hr_short", "GET /v1/tasks/task_01jd", "http://127.0.0.1:8000/v1", "bearer of bad news", "a@b"],
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert scrub(text) == text


def test_values_are_secret_by_their_name_too() -> None:
    assert all(map(is_secret_name, ("password", "Authorization", "flower_password", "key-pepper", "api_key")))
    assert not any(map(is_secret_name, ("prompt_tokens", "key_id", "secret_id", "tokens", "path")))


def test_no_log_line_has_a_secret_whoever_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        database_url="postgresql://u:hidden-one@h/x",
        broker_url="redis://:hidden-two@h/0",
        streams_url="redis://:hidden-two@h/1",
        key_pepper="hidden-three",
    )
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure_logs(settings, process="test")
        structlog.get_logger().warning("refused", key=KEY, password="hidden-four", tokens=3)
        logging.getLogger("sqlalchemy").error("can't reach %s", settings.database_url.get_secret_value())
        try:
            raise OSError(f"connection to {settings.broker_url.get_secret_value()} refused for {KEY}")
        except OSError as error:
            structlog.get_logger().error("failed", exc_info=error)
        structlog.get_logger().error("settings", settings=settings)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.reset_defaults()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(json.loads(line)["process"] == "test" for line in lines)
    assert json.loads(lines[0])["tokens"] == 3
    for secret in (KEY[15:], "hidden-one", "hidden-two", "hidden-three", "hidden-four"):
        assert secret not in "\n".join(lines)
