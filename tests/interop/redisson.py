"""The real Redisson: fetched by Maven, built once a version, run in a process of its own and driven line by line."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "java"
SOURCES = [*sorted((EXAMPLE / "src").rglob("*.java")), *sorted((Path(__file__).parent / "java").glob("*.java"))]

#: What is tested: the newest release (that of the example's pom.xml), one of the 3.2x line and later with the same
#: packing, and one with the packing before 3.21.1.
NEWEST, CURRENT, OLD = "4.7.0", "3.27.2", "3.20.1"

#: How to start a JVM so that it is there soon.
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")

#: Where builds are kept; `make clean` removes them.
BUILDS = REPOSITORY / "build" / "redisson"

#: So long Maven may take to fetch what it needs, an answer of Redisson, and its end, in seconds.
_FETCH_S, _ANSWER_S, _STOP_S = 600, 60, 20


class JavaMissing(RuntimeError):
    """Java or Maven are not on this machine, or Maven cannot fetch Redisson."""


def build(version: str) -> str:
    """Return the class path of the test program with a version of Redisson, built unless it has been.

    One process builds at a time: Maven's own repository does not bear two.

    Raises:
        JavaMissing: it cannot be built here.
    """
    _require("java")
    inputs = hashlib.sha256(b"".join(path.read_bytes() for path in (EXAMPLE / "pom.xml", *SOURCES))).hexdigest()
    done = BUILDS / f"{version}-{inputs[:16]}"
    if not done.exists():
        _require("javac", "mvn")
        BUILDS.mkdir(parents=True, exist_ok=True)
        with Path(BUILDS, "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=BUILDS) as folder:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():  # as another process may have built it meanwhile
                _build_in(Path(folder), version)
                Path(folder, "build").rename(done)
    return os.pathsep.join((str(done / "classes"), str(done / "lib" / "*")))


def _require(*commands: str) -> None:
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        raise JavaMissing(f"no {' and no '.join(missing)} here (apt-get install default-jdk-headless maven)")


def _build_in(folder: Path, version: str) -> None:
    lib, classes = folder / "build" / "lib", folder / "build" / "classes"
    maven = ["mvn", "-q", "-B", "-f", str(EXAMPLE / "pom.xml"), "dependency:copy-dependencies"]
    options = [f"-Dredisson.version={version}", "-DincludeScope=runtime", f"-DoutputDirectory={lib}"]
    try:
        fetched = _run([*maven, *options])
    except subprocess.TimeoutExpired as error:
        raise JavaMissing(f"Maven did not fetch Redisson {version} within {error.timeout:g} s") from None
    if fetched.returncode:
        raise JavaMissing(f"Maven cannot fetch Redisson {version}:\n{fetched.stdout[-2000:]}")
    compiled = _run(["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(classes), *map(str, SOURCES)])
    assert compiled.returncode == 0, f"with Redisson {version}: {compiled.stdout}"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_FETCH_S, check=False
    )


class Redisson:
    """One Java process with one Redisson client, for as long as a `with` block lasts.

    Args:
        class_path: what `build` returned.
        port: of Redis on this machine, or of a node of a cluster.
        codec: "bytes" (ByteArrayCodec) or "string" (StringCodec).
        is_cluster: whether that is a cluster.
    """

    def __init__(self, class_path: str, port: int, codec: str = "bytes", *, is_cluster: bool = False) -> None:
        # SIGKILL is for tests; a parent that dies closes standard input, and the program ends.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*JVM, "-cp", class_path, "RedissonShell", str(port), codec, "cluster" if is_cluster else "server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Redisson:
        try:
            self.answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if self._process.poll() is None:
                self._process.stdin.close()
                self._process.wait(_STOP_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            self.kill()
            self._reader.join(_STOP_S)
            for file in (self._process.stdin, self._process.stdout, self._log):
                file.close()

    @property
    def log(self) -> str:
        """What it wrote besides answers."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """Kill it as a lost machine would end it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(_STOP_S)

    def ask(self, command: str, name: str, *args: Any) -> None:
        """Send a command (see RedissonShell.java) about the queue `name`; bytes go as base64."""
        assert self._process.stdin is not None
        words = [command, name, *(b64encode(arg).decode() if isinstance(arg, bytes) else arg for arg in args)]
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, timeout: float = _ANSWER_S) -> Any:
        """Return the answer to the command that was sent first and not answered yet."""
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"Redisson did not answer within {timeout} s:\n{self.log}") from None
        assert line, f"Redisson ended:\n{self.log}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["ok"]

    def call(self, command: str, name: str, *args: Any) -> Any:
        """Send a command and return its answer."""
        self.ask(command, name, *args)
        return self.answer()

    def value(self, command: str, name: str, *args: Any) -> bytes | None:
        """Return the value that a command answers with."""
        answer = self.call(command, name, *args)
        return None if answer is None else b64decode(answer)

    def values(self, command: str, name: str, *args: Any) -> list[bytes]:
        """Return the values that a command answers with."""
        return [b64decode(value) for value in self.call(command, name, *args)]

    def offer(self, name: str, *values: bytes, delay_ms: int) -> None:
        """RDelayedQueue.offer each of the values, one after the other; its transfer task runs from then on."""
        for value in values:
            self.call("offer", name, delay_ms, value)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")
