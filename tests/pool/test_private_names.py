"""An upgrade of celery or kombu that moves a private name stops the worker."""

from typing import Any

import pytest
from celery import _state
from celery.concurrency import prefork
from celery.utils import log
from celery.utils.threads import LocalStack
from celery.worker import state
from kombu.transport import redis, virtual

from workers.celery_private import CeleryChangedError, verify


def test_the_installed_versions_have_every_private_name() -> None:
    verify()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (prefork, "_run_ready_callbacks"),
        (log, "_in_sighandler"),
        (state, "should_terminate"),
        (redis.Channel, "_brpop_read"),
        (redis.Channel, "_in_poll"),
        (redis.QoS, "restore_by_tag"),
        (virtual.QoS, "_delivered"),
        (virtual.QoS, "_dirty"),
        (virtual.Transport, "_callbacks"),
        (LocalStack, "__ident_func__"),
        (_state, "_task_stack"),
    ],
)
def test_a_private_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(CeleryChangedError, match=name):
        verify()
