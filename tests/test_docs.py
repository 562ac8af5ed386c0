"""The documentation says what is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from assay.conformance.targets.model import CAPABILITIES, Target
from assay.faults.scenario import FaultKind, parse_scenario
from assay.reference_broker.config import BrokerConfig, parse_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _keys(struct: type, path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        yield field.encode_name
        for kind in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield from _keys(kind, f"{path}.{field.encode_name}")


def test_the_configuration_page_is_a_valid_configuration_and_names_every_key() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert block is not None
    config = parse_config(yaml.safe_load(block.group(1)))
    missing = {key for key in _keys(BrokerConfig) if not re.search(rf"\b{key}:", block.group(1))}
    assert not missing
    defaults = BrokerConfig()
    assert config.mqtt == defaults.mqtt, "the page shows the defaults"
    assert config.listeners == defaults.listeners


def test_the_scenario_page_shows_a_valid_scenario() -> None:
    page = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert block is not None
    parse_scenario(yaml.safe_load(block.group(1)))
    for kind in FaultKind:
        assert f"`{kind.value}`" in page


def test_the_target_page_shows_a_valid_target() -> None:
    page = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert block is not None
    target = msgspec.toml.decode(block.group(1).encode(), type=Target)
    assert set(target.capabilities) <= set(CAPABILITIES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_the_pages_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:reference_broker|sim|conformance|faults|loadtests|reports|tests)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
