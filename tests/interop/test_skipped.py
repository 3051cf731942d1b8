"""Without Java the tests with Redisson say so; where Java is promised, that is a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import redisson
from tests.interop.conftest import without_java

pytestmark = pytest.mark.one_server("no server is asked")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(redisson.JavaMissing, match="no java here"):
        redisson.build(redisson.NEWEST)
    tmp_path.joinpath("java").touch(mode=0o755)
    monkeypatch.setattr(redisson, "BUILDS", tmp_path)
    with pytest.raises(redisson.JavaMissing, match="no javac and no mvn here"):
        redisson.build(redisson.NEWEST)


def test_it_is_skipped_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELAYQ_REQUIRE_JAVA", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no test with Redisson: no java"):
        without_java("no java")
    monkeypatch.setenv("DELAYQ_REQUIRE_JAVA", "1")
    with pytest.raises(pytest.fail.Exception, match="no java"):
        without_java("no java")
