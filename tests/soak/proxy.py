"""A TCP proxy between a worker and its Redis: a network that can be slow, cut, or silent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_CHUNK = 65536


class Proxy:
    """Forwards connections to a port of 127.0.0.1, in a thread of its own, until `close`.

    Every method is safe in any thread.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._delay_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._flows = asyncio.Event()
        self._do(self._flows.set)
        self._place = _reserved_port()
        #: Where to connect.
        self.port: int = self._place.getsockname()[1]
        self._server: asyncio.Server | None = None
        self.accept()

    def delay(self, seconds: float) -> None:
        """Deliver everything so much later, in each direction; 0 for at once."""
        self._delay_s = seconds

    def cut(self) -> None:
        """Close all connections, on both sides; new ones are welcome."""
        self._do(self._abort)

    def refuse(self) -> None:
        """Close all connections, and refuse new ones until `accept`."""
        self._run(self._stop_listening())
        self._do(self._abort)

    def accept(self) -> None:
        """Accept connections, as it does at first."""
        self._run(self._listen())

    def silence(self) -> None:
        """Deliver nothing until `flow`. It is not lost then, only late: TCP sends again."""
        self._do(self._flows.clear)

    def flow(self) -> None:
        """End a silence."""
        self._do(self._flows.set)

    def close(self) -> None:
        """Close everything and end the thread."""
        self._run(self._shut_down())
        self._do(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._place.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_port=True)

    async def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _do(self, call: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(call)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        await self._stop_listening()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._abort()
        await asyncio.sleep(0)  # let the transports close


def _reserved_port() -> socket.socket:
    """Return a socket that keeps a port from others while nobody listens there: who connects is refused then."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind(("127.0.0.1", 0))
    return place
