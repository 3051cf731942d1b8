"""Answers of a node that does not serve a slot are known in all versions of redis-py."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions

from celery_delayq.queue.redirection import understood


class TestUnderstood:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("MOVED 5 127.0.0.1:7000", exceptions.MovedError),
            ("ASK 5 127.0.0.1:7000", exceptions.AskError),
            ("TRYAGAIN Multiple keys", exceptions.TryAgainError),
            ("CLUSTERDOWN Hash slot not served", exceptions.ClusterDownError),
            ("CROSSSLOT Keys", exceptions.ClusterCrossSlotError),
            ("Command # 1 (GET a) of pipeline caused error: MOVED 5 ::1:7000", exceptions.MovedError),
            ("WRONGTYPE Operation", exceptions.ResponseError),
            ("MOVED away", exceptions.ResponseError),
        ],
    )
    def test_plain_errors_of_redis_py_5_get_their_class(self, text: str, kind: type[Exception]) -> None:
        assert type(understood(exceptions.ResponseError(text))) is kind

    def test_it_keeps_what_a_redirection_says(self) -> None:
        error: Any = understood(exceptions.ResponseError("MOVED 5 ::1:7000"))
        assert (error.slot_id, error.host, error.port) == (5, "::1", 7000)

    def test_other_errors_stay_as_they_are(self) -> None:
        for error in (exceptions.ConnectionError("MOVED"), exceptions.MovedError("5 127.0.0.1:7000"), OSError()):
            assert understood(error) is error
