"""docs/http.md: its commands are run as they stand there, on a broker with its configuration."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import parse_config
from tests.http.conftest import TOKENS, Served

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_commands_of_the_page_work() -> None:
    (configuration,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = parse_config(yaml.safe_load(configuration))
    free = tuple(msgspec.structs.replace(listener, port=0) for listener in config.listeners)
    with Broker(msgspec.structs.replace(config, listeners=free)) as broker:
        commands = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
        commands = commands.replace("http://127.0.0.1:8080", broker.addresses[1].url)
        # Their timeouts are cut, nothing else.
        script = "set -eu\n" + commands.replace("--max-time 2", "--max-time 0.2")
        finished = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for part in (
        '"settled":1',
        '"offset":0',
        "mqtt_queue_depth",
        '"cluster_mode":false',
        '"value":"one"',
        '"delay_id"',
    ):
        assert part in finished.stdout, part


def test_the_program_of_the_page_works(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(program.replace("http://127.0.0.1:8080", served.urls[0]), {"__name__": "__main__"})
    assert capsys.readouterr().out == "hello, delivered 1 time\n0 left\n"


def test_the_page_names_every_scope() -> None:
    assert all(f"| `{scope.value}` |" in PAGE for scope in TOKENS["admin"])
