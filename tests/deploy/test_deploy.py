"""What ``deploy/`` holds: configurations that the broker takes, manifests that Kubernetes knows, metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import httpx
import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ListenerConfig, ListenerProtocol, load_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = DEPLOY / "kubernetes/assay.yaml"
ALERTS = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "prometheus/dashboard.json").read_text())
UP: dict[str, list[set[str]]] = {"up": [{"job", "instance"}]}
"""Of Prometheus itself, which adds ``job`` and ``instance`` to all others, too."""


def manifests() -> dict[str, dict[str, Any]]:
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(MANIFESTS.read_text())}


# -- configurations --------------------------------------------------------------------------------------------------


def configurations() -> dict[str, str]:
    return {
        "docker": (DEPLOY / "docker/broker.yaml").read_text(),
        "kubernetes": manifests()["ConfigMap/assay"]["data"]["broker.yaml"],
        "helm": yaml.safe_dump(yaml.safe_load((DEPLOY / "helm/assay/values.yaml").read_text())["config"]),
    }


@pytest.mark.parametrize("where", configurations())
def test_the_broker_takes_the_configuration(where: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("")
    text = configurations()[where]
    assert "/etc/assay/secrets/users" in text
    path = tmp_path / "broker.yaml"
    path.write_text(text.replace("/etc/assay/secrets/users", str(users)))
    config = load_config(path)
    assert {port for each in config.listeners if (port := each.port)} == {1883, 5672, 8080, 9000}
    assert config.data_dir.startswith("/var/lib/assay")
    assert all(each.host == "0.0.0.0" for each in config.listeners)


def test_the_image_and_the_unit_agree_with_the_configuration() -> None:
    image = (DEPLOY / "docker/Dockerfile").read_text()
    assert re.search(r"^EXPOSE 1883 5672 8080 9000$", image, re.MULTILINE)
    assert re.search(r"^USER 10001$", image, re.MULTILINE)
    assert re.search(r"^VOLUME /var/lib/assay$", image, re.MULTILINE)
    for source in re.findall(r"^COPY (?!--from)(\S+) ", image, re.MULTILINE):
        assert (ROOT / source).exists()
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith(".") and source != "./secrets":
                assert (DEPLOY / "compose" / source).exists(), source


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "assay.service"
    unit.write_text((DEPLOY / "systemd/assay.service").read_text().replace("/opt/assay/bin/assay", "/bin/true"))
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stderr) == (0, "")


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def test_kubernetes_knows_the_manifests() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="./toxw run -e deploy")
    for manifest in manifests().values():
        kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_ports_volumes_and_labels_of_the_manifests_fit() -> None:
    found = manifests()
    pod = found["StatefulSet/assay"]["spec"]["template"]
    container = pod["spec"]["containers"][0]
    ports = {port["name"] for port in container["ports"]}
    for name in ("Service/assay", "Service/assay-headless"):
        spec = found[name]["spec"]
        assert {port["targetPort"] for port in spec["ports"]} <= ports
        assert spec["selector"].items() <= pod["metadata"]["labels"].items()
    probes = [container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    rules = found["NetworkPolicy/assay"]["spec"]["ingress"]
    assert {*probes, *(port["port"] for rule in rules for port in rule["ports"])} <= ports
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in found["StatefulSet/assay"]["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


_ACTION = re.compile(r"\s*\{\{- (.+?) \}\}|\{\{ (.+?) \}\}")


def rendered(template: str, values: dict[str, Any]) -> str:
    """What helm makes of a template, for the actions that ours have."""
    scope: Any = {"Values": values, "Release": {"Name": "assay"}}
    scopes, made, at = [(scope, True)], "", 0
    for action in _ACTION.finditer(template):
        scope, is_shown = scopes[-1]
        made += template[at : action.start()] if is_shown else ""
        at = action.end()
        first, *stages = (action[1] or action[2]).split(" | ")
        verb, _, path = first.rpartition(" ")
        value = scope
        for name in path.strip(".").split(".") if path not in {".", "end"} and is_shown else ():
            value = value[name]
        if verb in {"if", "with"}:
            scopes.append((value if verb == "with" else scope, is_shown and bool(value)))
        elif path == "end":
            scopes.pop()
        elif is_shown:
            assert verb in {"", "toYaml"}, action[0]
            text = yaml.safe_dump(value).rstrip() if verb else str(value)
            for stage in stages:
                assert re.fullmatch(r"nindent \d+|sha256sum", stage), action[0]
                text = "x" if stage == "sha256sum" else "\n" + indent(text, int(stage.split()[1]) * " ")
            made += text
    assert len(scopes) == 1
    return made + template[at:]


def chart(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for template in sorted((DEPLOY / "helm/assay/templates").glob("*.yaml")):
        made = yaml.safe_load_all(rendered(template.read_text(), values))
        found |= {f"{each['kind']}/{each['metadata']['name']}": each for each in made if each}
    return found


def test_the_chart_makes_the_manifests() -> None:
    values = yaml.safe_load((DEPLOY / "helm/assay/values.yaml").read_text())
    assert _without_release(chart(values)) == _without_release(manifests())
    values["storage"]["className"], values["image"]["tag"] = "fast", "1.2"
    values["networkPolicy"]["enabled"] = False
    made = chart(values)
    assert made.keys() == manifests().keys() - {"NetworkPolicy/assay"}
    spec = made["StatefulSet/assay"]["spec"]
    assert spec["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    assert spec["template"]["spec"]["containers"][0]["image"] == "assay:1.2"


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
def test_helm_makes_the_manifests() -> None:
    command = ["helm", "template", "assay", str(DEPLOY / "helm/assay"), "--kube-version", "1.31.0"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    made = {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(said.stdout) if each}
    assert _without_release(made) == _without_release(manifests())


def _without_release(value: Any) -> Any:
    """Without what tells one release from another, and with the configuration as data."""
    if isinstance(value, dict):
        own = {"app.kubernetes.io/instance", "assay/config"}
        return {key: _without_release(each) for key, each in value.items() if key not in own}
    if isinstance(value, list):
        return [_without_release(each) for each in value]
    return yaml.safe_load(value) if isinstance(value, str) and "\n" in value else value


# -- metrics ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labels() -> dict[str, list[set[str]]]:
    """Name of a metric that a busy broker tells -> the labels of each of its samples."""
    http = (ListenerProtocol.HTTP,)
    config = BrokerConfig(listeners=(ListenerConfig(port=0), ListenerConfig(port=0, protocols=http)))
    with Broker(config) as broker:
        url = next(address.url for address in broker.addresses if address.scheme == "http")
        with broker.queues.subscribe("orders", group="shop"), httpx.Client(base_url=url) as client:
            broker.queues.publish("orders", b"one")
            text = client.get("/metrics").text
    found: dict[str, list[set[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append({*sample.labels, "job", "instance"})
    return found | UP


def selectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    """Each metric that an expression reads, and the labels that it asks for."""
    if isinstance(node, promql.VectorSelector):
        yield node.name or "", {matcher.name for matcher in node.matchers.matchers}
        return
    for part in ("vector_selector", "expr", "lhs", "rhs", "param"):
        if (below := getattr(node, part, None)) is not None and not isinstance(below, str):
            yield from selectors(below)
    for below in getattr(node, "args", None) or ():
        yield from selectors(below)


def asked(expression: str) -> list[tuple[str, set[str]]]:
    plain = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$queue", ".*")
    found = list(selectors(promql.parse(plain)))
    assert len(found) == len(re.findall(r"\b(?:mqtt|assay|goqueue)_\w+|\bup\b", plain)), expression
    return found


def panels() -> dict[str, list[str]]:
    found = {panel["title"]: [each["expr"] for each in panel.get("targets", ())] for panel in DASHBOARD["panels"]}
    found |= {each["name"]: [each["expr"]] for each in DASHBOARD["annotations"]["list"]}
    return {title: expressions for title, expressions in found.items() if expressions}


@pytest.mark.parametrize("title", panels())
def test_every_panel_shows_what_a_broker_tells(title: str, labels: dict[str, list[set[str]]]) -> None:
    for expression in panels()[title]:
        for name, wanted in asked(expression):
            assert any(wanted <= found for found in labels.get(name, ())), f"{name} with {sorted(wanted)}"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_reads_what_a_broker_tells_and_is_explained(
    rule: dict[str, Any], labels: dict[str, list[set[str]]]
) -> None:
    for name, wanted in asked(rule["expr"]):
        assert any(wanted <= found for found in labels.get(name, ())), f"{name} with {sorted(wanted)}"
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert any(label in found for found in labels[name]), f"{name} has no {label}"
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings]
    assert rule["alert"] in headings


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_prometheus_reads_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(DEPLOY / "prometheus/alerts.yaml")], check=True, timeout=60)
