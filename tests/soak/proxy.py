"""A TCP proxy between clients and their Redis: a network that can be slow, cut, silent, or forget idle connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

_CHUNK = 65536

#: How often it looks for idle connections, in seconds.
_LOOK_S = 0.1

#: How a connection is dropped: ended in order (FIN), ended at once (RST), or forgotten without a word, as NAT does.
Drop = Literal["fin", "rst", "silently"]


class Proxy:
    """Forwards connections to a port of 127.0.0.1, in a thread of its own, until `close`.

    Every method is safe in any thread.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._delay_s = 0.0
        self._drops_replies = False
        #: It takes replies with these bytes, and passes none of them on; empty for all replies.
        self.swallows: bytes | None = None
        #: It ends a connection instead of passing on the reply to the next command with these bytes.
        self.loses: bytes | None = None
        self._idle_s: float | None = None
        self._drop: Drop = "fin"
        #: How many idle connections it has dropped.
        self.dropped = 0
        self._links: set[_Link] = set()
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

    @property
    def is_idle(self) -> bool:
        """Whether all connections are dropped."""
        return all(link.is_forgotten for link in tuple(self._links))

    def delay(self, seconds: float) -> None:
        """Deliver everything so much later, in each direction; 0 for at once."""
        self._delay_s = seconds

    def cut(self) -> None:
        """Close all connections, on both sides; new ones are welcome."""
        self._run(self._abort())

    def drop_replies(self, drops: bool = True) -> None:
        """End a connection instead of passing on a reply; False: pass it on, as at first."""
        self._drops_replies = drops

    def drop_idle(self, after_s: float | None, how: Drop = "fin") -> None:
        """Drop connections on which nothing passed for so long, in seconds; None for never, as at first."""
        self._drop, self._idle_s = how, after_s

    def refuse(self) -> None:
        """Close all connections, and refuse new ones until `accept`."""
        self._run(self._stop_listening())
        self._run(self._abort())

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

    async def _abort(self) -> None:
        for link in self._links:
            for writer in link.writers:
                writer.transport.abort()
        await asyncio.sleep(0)  # let the transports close

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
        link = _Link(writer, far_writer)
        self._links.add(link)
        watch = asyncio.create_task(self._watch(link))
        try:
            await asyncio.gather(
                self._pump(link, reader, far_writer), self._pump(link, far_reader, writer, is_reply=True)
            )
        finally:
            watch.cancel()
            for one in link.writers:
                one.close()
            self._links.discard(link)

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool = False
    ) -> None:
        try:
            while chunk := await reader.read(_CHUNK):
                if is_reply and (self._drops_replies or link.loses_reply):
                    break
                if is_reply and self.swallows is not None and self.swallows in chunk:
                    continue
                if not is_reply and self.loses is not None and self.loses in chunk:
                    self.loses, link.loses_reply = None, True
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                if not link.is_forgotten:
                    link.passed_at = time.monotonic()
                    writer.write(chunk)
                    await writer.drain()
        except OSError:
            pass  # the other direction ends too, since both sides are closed
        if link.is_forgotten:
            await asyncio.Event().wait()  # nobody tells the other side
        writer.close()

    async def _watch(self, link: _Link) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._idle_s is not None and time.monotonic() - link.passed_at > self._idle_s:
                break
        self.dropped += 1
        if self._drop == "silently":
            link.is_forgotten = True
            return
        for writer in link.writers:
            if self._drop == "rst":
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _shut_down(self) -> None:
        await self._stop_listening()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._abort()


class _Link:
    """A client's connection, and the one to the server."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.writers = frozenset(writers)
        self.passed_at = time.monotonic()
        self.is_forgotten = False
        self.loses_reply = False


def _reserved_port() -> socket.socket:
    """Return a socket that keeps a port from others while nobody listens there: who connects is refused then."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind(("127.0.0.1", 0))
    return place
