"""What processes use grows with what they do."""

from __future__ import annotations

import os
import time

from examples.private_redis import PrivateRedis
from tests.benchmarks.usage import process_bytes, process_cpu_s, server_bytes, server_cpu_s
from tests.support import wait_until


def test_a_process() -> None:
    before_s, before_bytes = process_cpu_s(os.getpid()), process_bytes(os.getpid())
    held = bytearray(b"x" * 50_000_000)
    end = time.process_time() + 0.2
    wait_until(lambda: time.process_time() > end or sum(range(100_000)) < 0, "some work")
    assert 0.1 < process_cpu_s(os.getpid()) - before_s < 10
    assert process_bytes(os.getpid()) - before_bytes > len(held) * 0.8


def test_a_server() -> None:
    with PrivateRedis() as server, server.client() as client:
        before_s, before_bytes = server_cpu_s(client), server_bytes(client)
        client.set("large", bytes(10_000_000))

        def works() -> bool:
            client.eval("for number = 1, 10000 do local text = tostring(number) end", 0)
            return server_cpu_s(client) - before_s > 0.05

        wait_until(works, "it counts what the server does")
        assert server_bytes(client) - before_bytes >= 10_000_000
