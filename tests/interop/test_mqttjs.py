"""MQTT.js from npm, unchanged, in both versions over every transport.

It is installed once into the folder that ``ASSAY_MQTTJS`` names; without it these tests are passed over, so that the
unit tests need no npm. ``./toxw run -e interop`` sets it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interop.conftest import InteropBroker

HERE = Path(__file__).parent / "mqttjs"
FOLDER = os.environ.get("ASSAY_MQTTJS", "")
INSTALL_S, RUN_S = 300, 90
SCENARIOS = {4: 9, 5: 16}
"""How many there are a version, so that none goes missing."""
SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "websocket": "ws", "secure websocket": "wss"}

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(INSTALL_S + RUN_S),
    pytest.mark.skipif(not FOLDER, reason="ASSAY_MQTTJS names no folder to install MQTT.js into (tox: interop)"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]


@pytest.fixture(scope="session")
def mqttjs() -> Path:
    """The script, beside an installed MQTT.js of the version that package.json names."""
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]["mqtt"]
    folder = Path(FOLDER).resolve()
    installed = folder / "node_modules" / "mqtt" / "package.json"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "scenarios.mjs"):
        shutil.copy(HERE / name, folder / name)
    if not installed.exists() or json.loads(installed.read_text())["version"] != wanted:
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        assert done.returncode == 0, f"npm could not install MQTT.js: {done.stderr[-2_000:]}"
    return folder / "scenarios.mjs"


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("transport", list(SCHEMES))
def test_mqttjs(interop: InteropBroker, mqttjs: Path, transport: str, version: int) -> None:
    path = "/mqtt" if "websocket" in transport else ""
    url = f"{SCHEMES[transport]}://127.0.0.1:{interop.ports[transport]}{path}"
    authority = [interop.authority] if transport in ("tls", "secure websocket") else []
    command = ["node", str(mqttjs), url, str(version), *authority]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = {result["name"]: result["error"] for result in results if result["error"]}
    assert not failed, "\n\n".join(f"{name}: {error}" for name, error in failed.items())
    assert len(results) == SCENARIOS[version], done.stdout + done.stderr
