"""Lives on real brokers: the sound one is not accused, planted bugs are found and shrunk, and a replay repeats them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from assay.conformance.cli import app
from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.life import Client, Cut, FilterPlan, Life, Publish, Replay, Restart, Subscribe
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.report import read_transcript
from assay.conformance.targets import StartHook, Target, load_target
from assay.conformance.targets.model import RestartHook
from assay.reference_broker.trace.results import Verdict, read_result

runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
RETAINED = Life(
    clients=(Client(), Client(version=4)),
    steps=(
        Publish(client=0, topic="assay/{t}/a", qos=1, retain=True),
        Subscribe(client=1, filters=(FilterPlan(filter="assay/{t}/+", qos=2),)),
    ),
)


def explore(*arguments: str) -> Result:
    return runner.invoke(app, ["explore", *arguments])


def broken_target(folder: Path, mutant: str, capabilities: str = "") -> Path:
    """A target file that starts the reference broker with a planted bug."""
    path = folder / "broken.toml"
    path.write_text(
        f"""
name = "broken"
[capabilities]
{capabilities}
[start]
command = ["{{python}}", "-m", "assay.conformance.adapter", "--mutant", "{mutant}"]
port_from = "stdout"
""",
        encoding="utf-8",
    )
    return path


def test_the_sound_broker_is_not_accused(tmp_path: Path) -> None:
    done = explore("--examples", "40", "--seed", "11", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "seed 11" in done.output
    assert read_result(tmp_path / "result.json").verdict is Verdict.PASS


def test_a_broker_that_does_not_start_again_is_a_finding_and_no_end_of_the_search(tmp_path: Path) -> None:
    """Moquette fell over a session in its own store."""
    births = tmp_path / "births"
    births.touch()
    # Of its lives, the second one does not begin.
    script = f"echo >> {births}; test $(wc -l < {births}) -ne 2 && exec {{python}} -m assay.conformance.adapter"
    hook = StartHook(command=("sh", "-c", script), port_from="stdout")
    capabilities = {"restart": True, "persistence": True}
    target = Target(name="mortal", start=hook, restart=RestartHook(), capabilities=capabilities)
    life = Life(clients=(Client(),), steps=(Publish(client=0, topic="assay/{t}/a"), Restart()))
    with Campaign(target) as campaign:
        with pytest.raises(ViolationError, match="does not start again on its data") as seen:
            campaign.play(life)
        assert seen.value.rule is Rule.DIED
        assert any("Restart" in line.decoded for line in campaign.transcript())
        campaign.play(life)


def test_a_planted_bug_is_found_shrunk_and_repeated(tmp_path: Path) -> None:
    target = broken_target(tmp_path, "v5-retain-as-published-ignored")
    done = explore("--target", str(target), "--examples", "200", "--max-findings", "1", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1, done.output
    file = tmp_path / "out" / "broken-1-retain-flag.json"
    found = msgspec.json.decode(file.read_bytes(), type=Replay)
    assert found.clauses == ("MQTT-3.3.1-12", "MQTT-3.3.1-13")
    assert len(found.life.steps) <= 3, found
    lines, problem = read_transcript(file.with_suffix(".jsonl"))
    assert lines
    assert not problem
    assert explore("--target", str(target), "--replay", str(file)).exit_code == 1
    assert explore("--replay", str(file)).exit_code == 0, "the sound broker passes the same life"


def test_wrong_usage_and_an_unreachable_broker_have_codes_of_their_own(tmp_path: Path) -> None:
    torn = tmp_path / "torn.json"
    torn.write_bytes(b'{"schema": "assay.explore/1", "target"')
    assert explore("--replay", str(torn)).exit_code == 2
    assert explore("--target", "nobody").exit_code == 2
    assert explore("--host", "127.0.0.1", "--port", "1", "--examples", "1").exit_code == 3


def test_a_life_is_played_to_its_end_by_clients_of_both_versions() -> None:
    with Campaign(load_target("reference")) as campaign:
        campaign.play(RETAINED)
        received = [line for line in campaign.player.transcript() if line.direction == "recv"]
    assert any(line.connection.startswith("c1") and "retain=True" in line.decoded for line in received)


@pytest.mark.parametrize(
    "mutant", ["v3-retained-qos-lost", "v3-retained-flag-not-set", "v3-retained-not-for-wildcards"]
)
def test_the_same_life_on_broken_brokers(mutant: str) -> None:
    with Campaign(load_target("reference"), mutant=mutant, patience_s=1.0) as campaign, pytest.raises(ViolationError):
        campaign.play(RETAINED)


def test_a_client_that_is_back_sends_one_pubrel_where_pubrec_came_again() -> None:
    """mochi says it again right behind CONNACK: two PUBRELs were sent, and the second PUBCOMP was called unasked."""
    exchange = Publish(client=0, topic="assay/{t}", qos=2, cut=Cut.BEFORE_PUBREL)
    life = Life(clients=(Client(clean=False),), steps=(exchange,))
    with Campaign(load_target("reference"), mutant="pubrec-said-again-to-who-is-back") as campaign:
        campaign.play(life)
        sent = [line.decoded for line in campaign.player.transcript() if line.direction == "send"]
    assert sum(text.startswith("PUBREL") and "packet_id=1" in text for text in sent) == 1
