"""Proxy: passes on what clients and a server send, until it is told not to."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes on what clients and a server send, until it is told not to.

    Attributes:
        port: where it listens.
        drops: end a connection instead of passing on a reply.
    """

    def __init__(self, to: int) -> None:
        self.drops = False
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run)
        self._ending = False
        self._thread.start()

    def _run(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj in self._peers:
                    self._pass_on(key.fileobj, is_reply=key.data)  # type: ignore[arg-type]
        for sock in list(self._peers):
            self._end(sock)
        self._server.close()
        self._selector.close()

    def _accept(self) -> None:
        client = self._server.accept()[0]
        server = socket.create_connection(("127.0.0.1", self._to))
        for one, other, is_reply in ((client, server, False), (server, client, True)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ, is_reply)

    def _pass_on(self, sock: socket.socket, *, is_reply: bool) -> None:
        with suppress(OSError):
            data = sock.recv(65536)
            if data and not (is_reply and self.drops):
                self._peers[sock].sendall(data)
                return
        self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        for one in (sock, self._peers.get(sock)):
            if one is not None and self._peers.pop(one, None) is not None:
                self._selector.unregister(one)
                one.close()

    def close(self) -> None:
        """Refuse connections from now on."""
        self._ending = True
        self._thread.join()
