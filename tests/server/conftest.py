"""An authority and a server certificate for the tests of one module."""

from __future__ import annotations

import pytest

from assay.reference_broker.config import (
    TlsConfig,
)
from tests.server.secure import Pki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tls(pki: Pki) -> TlsConfig:
    certificate, key = pki.issue("127.0.0.1", "localhost")
    return TlsConfig(certificate=certificate, key=key)
