"""A certificate authority of one's own, and a certificate of it for 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from examples.private_redis import PrivateRedis
from tests.support import missing, servers


def _on_the_path() -> list[Path]:
    """Return each redis-server on the PATH: the first may be one from PyPI, which hides that of the machine."""
    return [server for folder in os.get_exec_path() if (server := Path(folder) / "redis-server").is_file()]


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port on which Redis may listen, and nobody else: it sets SO_REUSEADDR, as this holder does."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port


class Certificates:
    """Files of an authority and a server, made by openssl."""

    def __init__(self, folder: Path) -> None:
        if not shutil.which("openssl"):
            missing("no openssl on the PATH, which makes the certificates for TLS")
        self._folder = folder
        self.authority = folder / "ca.crt"
        extensions = folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n")
        self._openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),  # Python 3.13 asks for it
            *("-keyout", "ca.key", "-out", "ca.crt"),
        )
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"),
            *("-keyout", "redis.key", "-out", "redis.csr"),
        )
        self._openssl(
            *("x509", "-req", "-in", "redis.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", "extensions", "-out", "redis.crt"),
        )

    def redis_options(self, port: int) -> tuple[str, ...]:
        """Return what makes redis-server speak TLS on a further port."""
        return (
            *("--tls-port", str(port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(self._folder / "redis.crt")),
            *("--tls-key-file", str(self._folder / "redis.key")),
            *("--tls-ca-cert-file", str(self.authority)),
        )

    def server(self) -> Path:
        """Return a Redis server of this machine that speaks TLS. Not all do: of those from PyPI, some do not."""
        found = next(filter(self._is_spoken_by, [*servers().values(), *_on_the_path()]), None)
        return found or missing("no Redis server of this machine speaks TLS")

    def _is_spoken_by(self, server: Path) -> bool:
        with reserved_port() as port, suppress(RuntimeError), PrivateRedis(*self.redis_options(port), server=server):
            return True
        return False

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)
