"""Dead letters: what was delivered too often, or is no message, is set aside by whoever recovers it, and told."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest
from kombu.utils.json import dumps, loads

from celery_delayq.fetching.held import Redelivery
from celery_delayq.queue import dead_letter, dead_letters
from celery_delayq.transport import redelivery
from celery_delayq.transport.last_delivery import isolate
from celery_delayq.transport.program import Program
from tests.consumer.conftest import Consumers, in_another_thread
from tests.consumer.lone import LONG_S, known, lone, wait_for_end_of_lease
from tests.state import now_ms
from tests.support import wait_until


class TestDeadLetters:
    LIMIT = 3

    def message(self, number: int, deliveries: int = 0, *, alone: bool = False) -> bytes:
        headers = {"id": str(number), "task": "note", redelivery.DELIVERY_COUNT: deliveries}
        if alone:
            headers[redelivery.ALONE] = True
        return str(dumps({"body": "", "headers": headers, "properties": {"delivery_tag": str(number)}})).encode()

    def limited(self, told: list[tuple[str, bytes]]) -> Redelivery:
        return Redelivery(
            recover=partial(redelivery.recover, delivery_limit=self.LIMIT),
            on_dead=lambda name, record: told.append((name, dead_letter.unpack(name, 0, "", record).message)),
        )

    def test_are_what_was_delivered_too_often_and_what_is_no_message(
        self, consumers: Consumers, caplog: pytest.LogCaptureFixture
    ) -> None:
        dead = self.message(1, self.LIMIT - 1, alone=True)
        messages = [self.message(0), dead, b"garbage", self.message(2, self.LIMIT - 2), self.message(3, self.LIMIT - 1)]
        told: list[tuple[str, bytes]] = []
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                consumers.start(lease_s=LONG_S, redelivery=self.limited(told))
            with lone(consumers, *messages) as process:
                process.kill()
                wait_until(lambda: len(told) == 2, "they are dead", 10)
        wait_until(lambda: len(known(consumers)) == 2, "it is forgotten")
        counts = {loads(m.decode())["headers"]["id"]: redelivery.deliveries(loads(m)) for m in consumers.waiting()}
        assert counts == {"0": 1, "2": self.LIMIT - 1, "3": self.LIMIT - 1}
        assert sorted(told) == sorted([("q", self.message(1, self.LIMIT - 1)), ("q", b"garbage")])
        letters = list(dead_letters.DeadLetters(consumers.client, "q"))
        assert {(letter.reason, letter.deliveries, letter.message) for letter in letters} == {
            (dead_letter.DELIVERY_LIMIT, self.LIMIT, self.message(1, self.LIMIT - 1)),
            (dead_letter.NOT_A_MESSAGE, None, b"garbage"),
        }
        assert "delayq:dead:{q}" in caplog.text

    def test_after_as_many_deaths_as_the_limit(self, consumers: Consumers) -> None:
        told: list[tuple[str, bytes]] = []
        consumers.publish(self.message(1))
        for deaths in range(1, self.LIMIT + 1):
            gone = consumers.make(lease_s=0.5)
            (message,) = gone.fetch("q", 1)
            if redelivery.is_last_delivery(loads(message.decode()), self.LIMIT):
                assert isolate(gone, gone.hold("q", message))
            rescuer = consumers.start(lease_s=0.5, redelivery=self.limited(told))
            wait_until(lambda: not consumers.in_flight(gone), "it is recovered", 20)  # noqa: B023
            assert len(consumers.waiting()) == (deaths < self.LIMIT)
            wait_until(lambda: len(told) == (deaths == self.LIMIT), "it is told when it is dead")  # noqa: B023
            consumers.unwatch(rescuer)
            rescuer.close()
        assert len(dead_letters.DeadLetters(consumers.client, "q")) == 1

    def test_are_told_although_their_neighbour_was_acknowledged_just_then(self, consumers: Consumers) -> None:
        """The consumer was suspended, and goes on while it is recovered."""
        told: list[tuple[str, bytes]] = []
        gone = consumers.make(lease_s=0.5)
        dead, neighbour = self.message(1, self.LIMIT - 1, alone=True), self.message(2)
        _, tag = consumers.take(gone, dead, neighbour)
        limited = self.limited(told)

        def recover(raw: bytes) -> tuple[bytes, bool]:
            in_another_thread(gone.ack, tag)
            return limited.recover(raw)

        consumers.start(lease_s=0.5, redelivery=Redelivery(recover=recover, on_dead=limited.on_dead))
        wait_until(lambda: len(dead_letters.DeadLetters(consumers.client, "q")) == 1, "it is dead", 20)
        wait_until(lambda: told == [("q", self.message(1, self.LIMIT - 1))], "it is told", 5)

    def test_that_take_long_to_be_told_do_not_cost_the_lease(self, consumers: Consumers) -> None:
        """For example because the result backend is away."""
        is_told, may_end = threading.Event(), threading.Event()

        class Slow(Program):
            def on_dead_letter(self, name: str, record: bytes) -> None:
                is_told.set()
                may_end.wait(20)

        gone = consumers.make(lease_s=0.5)
        consumers.take(gone, b"garbage")
        limited = self.limited([])
        slow = consumers.start(lease_s=0.5, redelivery=Redelivery(recover=limited.recover, on_dead=Slow().tell_dead))
        try:
            assert is_told.wait(20)
            for _ in range(2):
                wait_for_end_of_lease(consumers, slow)
                wait_until(lambda: consumers.score(slow) > now_ms(consumers.client), "it is renewed", 3)
        finally:
            may_end.set()
