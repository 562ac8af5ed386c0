"""The client that takes no part in any case notices when it is not served any more, and starts afresh after that."""

from __future__ import annotations

import asyncio

import pytest

from assay.conformance.adapter import reference_broker_endpoint
from assay.conformance.bystander import BystanderError, MqttBystander
from assay.conformance.case import load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.targets import DEFAULT_CAPABILITIES, Endpoint, RunningTarget, load_target
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict


@pytest.mark.parametrize("version", [4, 5])
def test_it_is_served_as_long_as_the_broker_runs(version: int) -> None:
    async def main(endpoint: Endpoint) -> None:
        bystander = MqttBystander(endpoint, version, timeout_s=5.0)
        await bystander.join()
        await asyncio.gather(*(bystander.prove_served() for _ in range(20)))
        bystander.close()

    with reference_broker_endpoint() as endpoint:
        asyncio.run(main(endpoint))


class SilentBroker:
    """Reads and says nothing; ends every connection when told."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.connected = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.connected.set()
        while await reader.read(1_000):
            pass
        writer.close()


def test_silence_is_noticed() -> None:
    async def main() -> None:
        broker = SilentBroker()
        async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            bystander = MqttBystander(Endpoint(host=host, port=port), 4, timeout_s=0.05)
            with pytest.raises(BystanderError, match=r"no answer within 0\.05 s"):
                await bystander.join()

    asyncio.run(main())


def test_the_end_of_its_connection_is_noticed() -> None:
    async def main() -> None:
        broker = SilentBroker()
        async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            bystander = MqttBystander(Endpoint(host=host, port=port), 5, timeout_s=5.0)
            joining = asyncio.create_task(bystander.join())
            await broker.connected.wait()
            broker.writers[0].transport.abort()
            with pytest.raises(BystanderError, match="lost its connection"):
                await joining

    asyncio.run(main())


def test_it_joins_again_after_a_failure() -> None:
    async def main(endpoint: Endpoint) -> None:
        bystander = MqttBystander(endpoint, 5, timeout_s=5.0)
        with pytest.raises(BystanderError, match="not connected"):
            await bystander.prove_served()
        await bystander.join()
        await bystander.prove_served()
        bystander.close()

    with reference_broker_endpoint() as endpoint:
        asyncio.run(main(endpoint))


def judge(case_id: str, *mutants: str) -> CaseResult:
    """Run one case of the suite beside the bystander, against the reference broker with mutants."""

    async def main(endpoint: Endpoint) -> CaseResult:
        broker = RunningTarget(load_target("reference"), endpoint)
        capabilities = {**DEFAULT_CAPABILITIES, "mqtt311": True, "mqtt5": True}
        engine = Engine(broker, capabilities, RunOptions(patience_s=1.0))
        outcomes = await engine.run_all([load_cases()[case_id]], lambda _outcome: None)
        return outcomes[0].result

    with reference_broker_endpoint(*mutants) as endpoint:
        return asyncio.run(main(endpoint))


@pytest.mark.parametrize("case_id", ["mqtt311/malformed/pingreq-flags-are-reserved", "mqtt5/topic-alias/zero-refused"])
def test_any_case_with_bad_input_fails_a_broker_that_serves_nobody_after_it(case_id: str) -> None:
    sound, broken = judge(case_id), judge(case_id, "others-unserved-after-bad-input")
    assert sound.verdict is CaseVerdict.PASS
    assert broken.verdict is CaseVerdict.FAIL
    assert "others are not served" in broken.detail


def test_a_case_without_bad_input_says_nothing_of_others() -> None:
    result = judge("mqtt5/ping/every-pingreq-gets-one-pingresp", "others-unserved-after-bad-input")
    assert result.verdict is CaseVerdict.PASS
