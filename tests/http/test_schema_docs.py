"""The commands of ``docs/schemas.md`` answer what stands below them, and its configuration is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import msgspec

from assay.reference_broker.config import parse_config
from assay.reference_broker.trace.yaml_text import read_yaml
from tests.http.conftest import Served, serve

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schemas.md").read_text(encoding="utf-8")


def test_the_commands_answer_what_is_written(tmp_path: Path) -> None:
    (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    steps = re.findall(r"^\$ (curl (?:.*\\\n)*.*)\n(.*)$", console, re.MULTILINE)
    assert len(steps) == 4
    with serve() as broker:
        client = Served(broker).client()
        for command, answer in steps:
            assert _asked(client, command).json() == msgspec.json.decode(answer), command
        client.close()


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "assay.yaml"
    path.write_text(text, encoding="utf-8")
    config = parse_config(read_yaml(path))
    assert config.queues.configured[0].schema.subject == "orders-value"


def _asked(client: httpx.Client, command: str) -> httpx.Response:
    """What curl would ask; it sends a body by POST."""
    words = iter(shlex.split(command.replace("\\\n", " "))[1:])
    method, headers, body, url = "", {}, None, ""
    for word in words:
        if word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-X":
            method = next(words)
        elif word == "-d":
            body = next(words)
        elif word != "-s":
            url = word.partition("localhost:8080")[2]
    return client.request(method or ("GET" if body is None else "POST"), url, headers=headers, content=body)
