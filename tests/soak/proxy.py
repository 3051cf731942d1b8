"""A TCP proxy between a worker and its Redis: a network that can be slow, cut, or silent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

_CHUNK = 65536


class Proxy:
    """Forwards connections to a port of 127.0.0.1, in a thread of its own, until `close`.

    Every method is safe in any thread.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._delay_s = 0.0
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._flows = asyncio.Event()
        self._do(self._flows.set)
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        #: Where to connect.
        self.port: int = self._server.sockets[0].getsockname()[1]

    def delay(self, seconds: float) -> None:
        """Deliver everything so much later, in each direction; 0 for at once."""
        self._delay_s = seconds

    def cut(self) -> None:
        """Close all connections, on both sides; new ones are welcome."""
        self._do(self._abort)

    def refuse(self) -> None:
        """Close all connections, and whatever connects anew, until `admit`."""
        self._refuses = True
        self.cut()

    def admit(self) -> None:
        """Let connections be made again."""
        self._refuses = False

    def silence(self) -> None:
        """Deliver nothing until `flow`. It is not lost then, only late: TCP sends again."""
        self._do(self._flows.clear)

    def flow(self) -> None:
        """End a silence."""
        self._do(self._flows.set)

    def close(self) -> None:
        """Close everything and end the thread."""
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(10)
        self._do(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _do(self, call: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(call)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass  # the other direction ends too, since both sides are closed
        finally:
            writer.close()

    async def _shut_down(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._abort()
        await asyncio.sleep(0)  # let the transports close
