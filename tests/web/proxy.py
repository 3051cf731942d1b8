"""A reverse proxy that strips a prefix from paths, as `location /ops/delayq/ { proxy_pass http://site/; }` in nginx."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

#: Headers that are for one connection.
_HOP_BY_HOP = ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")

_TIMEOUT_S = 60


@contextmanager
def stripping_proxy(upstream: str, prefix: str, *, forwarded: bool = True) -> Iterator[str]:
    """Run the proxy in threads; yield its URL, with the prefix and a slash at the end.

    It changes nothing in answers: a redirect to an absolute path, or to the site's own host, leads out of the prefix.

    Args:
        upstream: URL of the site.
        prefix: such as `/ops/delayq`. Other paths are answered with 404.
        forwarded: whether it tells the site of host, scheme and prefix in `X-Forwarded-...` headers.
    """
    to = urlsplit(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == prefix:
                self.answer(301, [("Location", f"{prefix}/")], b"")
                return
            if not self.path.startswith(f"{prefix}/"):
                self.answer(404, [], b"")
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            if forwarded:
                headers["X-Forwarded-For"] = self.client_address[0]
                headers["X-Forwarded-Host"] = headers.get("Host", "")
                headers["X-Forwarded-Proto"] = "http"
                headers["X-Forwarded-Prefix"] = prefix
            headers["Host"] = to.netloc
            connection = http.client.HTTPConnection(str(to.hostname), to.port, timeout=_TIMEOUT_S)
            try:
                path = to.path.rstrip("/") + self.path.removeprefix(prefix)
                connection.request(self.command, path, body, headers)
                response = connection.getresponse()
                pairs = [(name, value) for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP]
                self.answer(response.status, pairs, response.read())
            finally:
                connection.close()

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = forward

        def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() != "content-length":
                    self.send_header(name, value)
            if status not in (204, 304):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Be quiet: a browser may close a connection at any time."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{prefix}/"
        finally:
            server.shutdown()
            thread.join()
