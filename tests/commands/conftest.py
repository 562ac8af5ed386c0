"""The command line in this process, and the brokers that it asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from assay.cli import build_app
from tests.http.conftest import secured, serve


class Assay:
    """``assay``, with the environment of a user who has nothing configured."""

    def __init__(self, **environment: str) -> None:
        self.environment: dict[str, str | None] = dict(environment)

    def run(self, *words: str, text: str | bytes = "", **environment: str) -> Any:
        """``result.exit_code``, ``.stdout``, ``.stderr``."""
        return CliRunner().invoke(build_app(words[0]), words, input=text, env={**self.environment, **environment})

    def __call__(self, *words: str, text: str | bytes = "", **environment: str) -> str:
        """Standard output of what must succeed."""
        result = self.run(*words, text=text, **environment)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    def json(self, *words: str, **environment: str) -> Any:
        """Likewise, as JSON."""
        return msgspec.json.decode(self(*words, "-o", "json", **environment))

    def fails(self, status: int, *words: str, text: str | bytes = "", **environment: str) -> str:
        """Standard error of what must end with a status: one line."""
        result = self.run(*words, text=text, **environment)
        assert result.exit_code == status, result.output
        assert result.stderr.count("\n") == 1, result.stderr
        return str(result.stderr)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a broker without users: whoever is on loopback may do everything."""
    with serve() as broker:
        yield broker.addresses[1].url


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Of one with users, tokens and a tenant."""
    with serve(secured()) as broker:
        yield broker.addresses[1].url


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def assay(url: str) -> Assay:
    return Assay(ASSAY_SERVER=url)
