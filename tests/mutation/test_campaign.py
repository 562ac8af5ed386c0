"""A small campaign of fixed mutants: who must be killed is killed, by whom, and who cannot be is listed as it is."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from assay.conformance.case import load_cases
from mutation import reach as reach_module
from mutation.black_box import groups_by_target
from mutation.campaign import (
    EQUIVALENTS,
    CampaignError,
    Journal,
    Judged,
    draw,
    judge_all,
    judge_one,
    known_equivalents,
    modules_of,
    plan_of,
    read_plan,
)
from mutation.judges import UNIT_FOLDERS, Bench, Commands, Judge, Opinion, Outcome, Suites, UnitTests
from mutation.operators import Mutant, mutants_of
from mutation.reach import Check, Part, Reach
from mutation.report import Rate, diff
from mutation.tree import ROOT, StoppedError, Tree, copied_tree
from mutation.warm import PYTEST_OPTIONS, Preload

TOPICS = "reference_broker/routing/topics.py"
WIRE_TYPES = "reference_broker/mqtt/wire/wire_types.py"
LANES = "reference_broker/mqtt/connections/queue_batches.py"
KILLED, SURVIVED, TIMEOUT, UNREACHED = Outcome.KILLED, Outcome.SURVIVED, Outcome.TIMEOUT, Outcome.NOT_REACHED

NEVER_READ = "-c pass"
"""A command that reaches nothing of the broker."""
EXPECTED: dict[str, tuple[Outcome, Outcome]] = {
    # What the tests say of each mutant, and what the suite's area of UTF-8 says.
    TOPICS + '::split_shared: "#" in name -> "#" not in name': (KILLED, UNREACHED),
    TOPICS + "::validate_filter: len(levels) > max_levels -> len(levels) >= max_levels": (UNREACHED, SURVIVED),
    TOPICS + "::matches: index >= len(topic_levels) -> index > len(topic_levels)": (KILLED, UNREACHED),
    WIRE_TYPES + r'::decode_string: "\0" in text -> (not ("\0" in text))': (KILLED, KILLED),
    WIRE_TYPES + "::Reader.four_bytes: start + 4 -> start - 4": (KILLED, UNREACHED),
}
EQUIVALENT = WIRE_TYPES + "::Reader.string: start <= self._end -> start < self._end"


def _mutants(*keys: str) -> list[Mutant]:
    every = {
        mutant.key: mutant
        for module in (TOPICS, WIRE_TYPES)
        for mutant in mutants_of(module, (ROOT / module).read_text(encoding="utf-8"))
    }
    return [every[key] for key in keys]


def _judges() -> list[Judge]:
    return [
        UnitTests("unit tests", ["tests/routing/test_topics.py", "tests/mqtt/test_codec.py"]),
        Commands("nothing", NEVER_READ),
        Suites("conformance", ["mqtt5/utf8"]),
    ]


def test_every_part_of_the_broker_has_its_tests_and_its_suite_among_the_judges() -> None:
    """AMQP 0.9.1 had neither, so that its mutants were reached by lives alone."""
    parts = {part.name for part in (ROOT / "reference_broker").iterdir() if (part / "__init__.py").exists()}
    with_tests = {part for part in parts if (ROOT / "tests" / part).is_dir()}
    asked = {folder.removeprefix("tests/") for folder in UNIT_FOLDERS}
    assert asked <= with_tests
    # What the environment of the tool has no extras for, and what is no part of a broker.
    assert with_tests - asked <= {"http", "grpc_api", "schemas", "coap", "clients", "commands", "embedded", "trace"}
    cases = [load_cases()[name] for part in Suites("conformance").parts() for name in part.arguments[3:]]
    count = Counter(case.spec for case in cases)
    assert count.keys() == {"mqtt311", "mqtt5", "queue", "amqp091", "http", "grpc"}
    assert min(count.values()) > 20


def test_every_case_of_the_suites_is_asked_on_the_configuration_that_it_is_proved_on() -> None:
    """Those about servers that offer less were left out: nobody black-box saw what such settings do."""
    cases = [case for case in load_cases().values() if case.spec in ("mqtt311", "mqtt5", "queue", "amqp091", "http")]
    asked = {name for part in Suites("conformance").parts() for name in part.arguments}
    assert {case.id for case in cases} <= asked
    groups = groups_by_target(cases)
    assert sorted(case.id for _, together in groups for case in together) == sorted(case.id for case in cases)
    assert all(len({case.judged_on for case in together}) == 1 for _, together in groups)
    assert len({together[0].judged_on for _, together in groups}) > 2


@pytest.mark.timeout(600)
def test_a_campaign_kills_what_it_must_goes_on_when_interrupted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = {module: (ROOT / module).read_bytes() for module in (TOPICS, WIRE_TYPES)}
    mutants = _mutants(*EXPECTED, EQUIVALENT)
    plan = plan_of((TOPICS, WIRE_TYPES), len(mutants), 1)
    path = tmp_path / "out" / "mutants.jsonl"
    seen: list[str] = []

    def interrupt(judged: Judged) -> None:
        seen.append(judged.mutant.key)
        raise KeyboardInterrupt

    def judge(journal: Journal, on_judged: object) -> list[Judged]:
        return judge_all(
            mutants,
            _judges(),
            journal,
            tmp_path / "maps",
            patience_s=20.0,
            on_judged=on_judged,  # type: ignore[arg-type]
        )

    with pytest.raises(KeyboardInterrupt):
        judge(Journal(path, plan, resume=False), interrupt)
    assert not list(scratch.iterdir()), "copies were left behind"
    assert seen
    with path.open("ab") as sink:
        sink.write(b'{"half a li')
    assert read_plan(path) == plan
    judged = judge(Journal(path, plan, resume=True), lambda one: seen.append(one.mutant.key))
    assert sorted(seen) == sorted(mutant.key for mutant in mutants), "each is judged once"
    assert not list(scratch.iterdir())
    assert {module: (ROOT / module).read_bytes() for module in before} == before

    outcomes = {one.mutant.key: tuple(opinion.outcome for opinion in one.opinions) for one in judged}
    details = {one.mutant.key: one.opinions for one in judged}
    assert outcomes.pop(EQUIVALENT) == ()
    for key in outcomes:  # on a busy machine a kill may take too long, which is a kill as well
        outcomes[key] = tuple(KILLED if outcome is TIMEOUT else outcome for outcome in outcomes[key])
    assert outcomes == {key: (tests, UNREACHED, suite) for key, (tests, suite) in EXPECTED.items()}, details
    rates = [Rate(judge.name, judged, [judge.name]) for judge in _judges()]
    killed = [sum(pair[index] in (KILLED, TIMEOUT) for pair in EXPECTED.values()) for index in (0, 1)]
    assert [(rate.killed, rate.of) for rate in rates] == [(killed[0], 5), (0, 5), (killed[1], 5)]
    with pytest.raises(CampaignError, match="another campaign"):
        Journal(path, plan_of((TOPICS,), 1, 2), resume=True)


def test_a_campaign_on_another_broker_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "mutants.jsonl"
    Journal(path, msgspec.structs.replace(plan_of((TOPICS,), 1, 2), sources="of yesterday"), resume=False)
    with pytest.raises(CampaignError, match="the broker has changed"):
        read_plan(path)
    path.write_text("{}\n")
    with pytest.raises(CampaignError, match="no file of a campaign"):
        read_plan(path)


def test_a_seed_draws_the_same_mutants_from_all_modules() -> None:
    modules = modules_of([WIRE_TYPES, "reference_broker/trace"])
    drawn = draw(modules, 30, 5)
    assert drawn == draw(modules, 30, 5)
    assert len({mutant.key for mutant in drawn}) == 30
    assert drawn != draw(modules, 30, 6)
    assert len({mutant.module for mutant in drawn}) > 2


@pytest.mark.parametrize("name", ["reference_broker/nothing.py", "sim/node.py", ".."])
def test_what_is_not_of_the_broker_is_refused(name: str) -> None:
    with pytest.raises(CampaignError, match="no module"):
        modules_of([name])


def test_known_equivalents_are_mutants_that_there_are() -> None:
    """Code that has changed may have made one a bug: then its entry goes."""
    known = known_equivalents()
    assert not [key for key, reason in known.items() if not reason], f"take these out of {EQUIVALENTS.name}"
    assert known[f"{LANES}::: MAX_TOPICS = 64 -> MAX_TOPICS = 65"], "one more of what is remembered"
    assert f"{LANES}::: _MOST = 2_048 -> _MOST = 2049" not in known, "a turn is bounded by it"


def test_a_key_names_one_mutant() -> None:
    """What is written down as equivalent excuses no other bug."""
    for module in (TOPICS, WIRE_TYPES, LANES):
        keys = [mutant.key for mutant in mutants_of(module, (ROOT / module).read_text(encoding="utf-8"))]
        assert len(set(keys)) == len(keys)


def test_who_lives_because_time_was_short_is_no_survivor_and_is_asked_about_again(tmp_path: Path) -> None:
    """A test that the budget left out may kill: it is asked when nobody else does, or the mutant is listed apart."""
    (mutant,) = _mutants(TOPICS + "::matches: index >= len(topic_levels) -> index > len(topic_levels)")

    class Known(Reach):
        def reaching(self, judge: str, mutant: Mutant) -> list[Check]:
            return [Check(name="it kills", duration_s=9.0), Check(name="it does not", duration_s=1.0)]

    class Tests(UnitTests):
        def ask(self, checks: list[Check], bench: Bench) -> Opinion:
            kills = any(check.name == "it kills" for check in checks)
            return self.opinion(KILLED if kills else SURVIVED, "")

    with copied_tree() as tree:

        def judged(budget_s: float, rest_s: float) -> Judged:
            bench = Bench(tree, Known(tmp_path), budget_s=budget_s, rest_s=rest_s, patience_s=1.0)
            return judge_one(mutant, [Tests("unit tests")], bench, until_killed=True)

        whole, again, short = judged(10.0, 0.0), judged(5.0, 20.0), judged(5.0, 5.0)
    assert [one.killed for one in (whole, again, short)] == [True, True, False]
    assert [one.not_whole for one in (whole, again, short)] == [False, False, True]
    assert [(opinion.outcome, opinion.left_out) for opinion in short.opinions] == [(SURVIVED, 1)]
    rate = Rate("unit tests", [whole, short], ["unit tests"])
    assert (rate.killed, rate.of, rate.not_whole) == (1, 2, 1)


def test_a_test_that_the_map_left_out_may_kill_whatever_its_file_reaches(tmp_path: Path) -> None:
    part = Part(
        judge="unit tests",
        name="test_made.py",
        arguments=("-m", "pytest", "-q", "-p", "mutation.contexts", "-p", "no:cacheprovider", "test_made.py"),
        many=True,
    )
    mutants = _mutants(TOPICS + "::matches: index >= len(topic_levels) -> index > len(topic_levels)", EQUIVALENT)
    (constant,) = _mutants(TOPICS + "::: MAX_TOPIC_BYTES = 65_535 -> MAX_TOPIC_BYTES = 65536")
    with copied_tree() as tree:
        (tree.root / "test_made.py").write_text(
            "import os\n"
            "from assay.reference_broker.routing.topics import matches\n"
            "def test_first():\n    assert matches('a/+', 'a/b')\n    os.environ['ASSAY_MOST_S'] = '0'\n"
            "def test_second():\n    assert not matches('a/+', 'a')\n"
        )
        reach = Reach(tmp_path / "maps")
        preload = Preload(packages=("assay.reference_broker.routing",))
        reach.make([tree], [part], preload, report=lambda _name, _more: None)
    found = [[check.name for check in reach.reaching("unit tests", mutant)] for mutant in mutants]
    assert found == [["test_made.py::test_first", "test_made.py::test_second"], []]
    ran = [check.name for check in reach.checks["unit tests"].values() if check.ran]
    assert ran == ["test_made.py::test_first"], "nobody knows that the other one is good"
    assert reach.ran_at_import(constant)
    assert [check.name for check in reach.reaching("unit tests", constant)] == found[0], "it concerns the whole module"
    assert not any(reach.ran_at_import(mutant) for mutant in mutants)


@pytest.mark.timeout(300)
def test_a_map_outlives_its_sample(tmp_path: Path) -> None:
    """What one draw has recorded is read for the next one; what has changed since is recorded anew, nothing else."""
    told, source = tmp_path / "told", tmp_path / "source"
    source.write_text("as it was")
    command = (
        "from assay.reference_broker.routing.topics import matches; matches('a/+', 'a/b'); "
        f"open({str(told)!r}, 'a').write('x')"
    )
    maps = tmp_path / "maps"
    others = [maps / f"of-yesterday-{number}" for number in range(6)]
    for number, folder in enumerate(others):
        folder.mkdir(parents=True)
        os.utime(folder, (number, number))

    def mapped(tree: Tree) -> Reach:
        parts = [
            Part(judge="commands", name="changes", arguments=("-c", command), sources=(str(source),)),
            Part(judge="commands", name="stays", arguments=("-c", command)),
        ]
        shutil.rmtree(tree.root.parent / "compiled", ignore_errors=True)
        reach = Reach(maps)
        reach.make([tree], parts, Preload(), report=lambda _name, _more: None)
        return reach

    with copied_tree() as tree:
        first = mapped(tree)
        assert told.read_text() == "xx"
        again = mapped(tree)
        assert told.read_text() == "xx", "all is known already"
        source.write_text("as it is now")
        reach_module._digest_of.cache_clear()  # another process would see it
        mapped(tree)
        assert told.read_text() == "xxx"
    every = mutants_of(TOPICS, (ROOT / TOPICS).read_text(encoding="utf-8"))
    names = [check.name for check in first.reaching("commands", every[-1])]
    reached = [[check.name for check in first.reaching("commands", mutant)] for mutant in every]
    assert ["changes", "stays"] in reached, names
    assert [] in reached, "not all of the module is executed"
    assert [[check.name for check in again.reaching("commands", mutant)] for mutant in every] == reached
    assert [again.ran_at_import(mutant) for mutant in every] == [first.ran_at_import(mutant) for mutant in every]
    assert [folder for folder in others if folder.exists()] == others[-3:], "old maps go"


def test_a_survivor_is_shown_as_a_diff() -> None:
    (mutant,) = _mutants(EQUIVALENT)
    assert [line for line in diff(mutant).splitlines() if line[:1] in "+-"] == [
        "-        if start <= self._end:",
        "+        if start < self._end:",
    ]


def test_who_takes_much_longer_than_the_unchanged_broker_is_killed_by_time(tmp_path: Path) -> None:
    with copied_tree() as tree:
        bench = Bench(tree, Reach(tmp_path / "maps"), budget_s=1.0, rest_s=1.0, patience_s=2.0)
        opinion = Commands("commands").ask([Check(name="-c pass"), Check(name="-c while(True):pass")], bench)
    assert (opinion.outcome, opinion.by) == (TIMEOUT, "-c while(True):pass")


def test_a_command_that_fails_on_the_unchanged_broker_too_accuses_nobody(tmp_path: Path) -> None:
    with copied_tree() as tree:
        bench = Bench(tree, Reach(tmp_path / "maps"), budget_s=1.0, rest_s=1.0, patience_s=20.0)
        assert Commands("commands").ask([Check(name="-c exit(1)")], bench).outcome is SURVIVED


@pytest.mark.parametrize("forked", [False, True], ids=["anew", "forked"])
def test_a_command_ends_with_all_that_it_started(tmp_path: Path, forked: bool) -> None:
    """By itself, by its time limit, and when the run is interrupted; what it left in TMPDIR goes, too."""
    told = tmp_path / "pid"
    child = (
        "import pathlib, subprocess, sys, tempfile\n"
        "tempfile.mkdtemp()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"pathlib.Path({str(told)!r}).write_text(str(child.pid))\n"
        "import os\nprint('all is said', flush=True)\nos._exit(3)\n"
    )

    def await_end() -> None:
        """A killed process goes when it is next looked at; nobody here can wait for a stranger's child."""
        state = Path(f"/proc/{told.read_text()}/stat")
        deadline = time.monotonic() + 30.0
        while state.exists() and state.read_text().split()[2] not in ("Z", "X"):
            assert time.monotonic() < deadline, "a child of the command is still there"
            time.sleep(0.01)

    with copied_tree() as tree:
        if forked:
            tree.warm_up(Preload())
        ended = tree.run(["-c", child], limit_s=60.0)
        assert (ended.status, ended.output, ended.timed_out) == (3, "all is said\n", False)
        await_end()
        assert not list(tree.scratch.iterdir())
        assert tree.run(["-c", "import signal; signal.pause()"], limit_s=0.1).timed_out
        assert tree.run(["-c", "while True: pass"], limit_s=0.1).timed_out
        tree.close()
        with pytest.raises(StoppedError):
            tree.run(["-c", "pass"], limit_s=30.0)
        root = tree.root
    assert not os.path.lexists(root.parent)


@pytest.mark.parametrize("preload", [None, Preload(), Preload(packages=("assay.reference_broker.core",))])
def test_a_mutant_is_in_every_process_of_a_command_and_in_no_file(preload: Preload | None) -> None:
    """Forked with the module or without it, or started: by itself, and in a Python that it starts."""
    (mutant,) = _mutants(TOPICS + '::split_shared: "#" in name -> "#" not in name')
    with copied_tree() as tree:
        (tree.root / "asks.py").write_text(
            "import subprocess, sys\n"
            "from assay.reference_broker.routing.topics import TopicError, split_shared\n"
            "try:\n    print(split_shared('$share/g/a')[1], flush=True)\n"
            "except TopicError:\n    print('refused', flush=True)\n"
            "if not sys.argv[1:]:\n    subprocess.run([sys.executable, '-m', 'asks', 'child'])\n"
        )
        if preload is not None:
            tree.warm_up(preload)
        before = (tree.root / TOPICS).read_bytes()
        for arguments in (["asks.py"], ["-m", "asks"]):
            with tree.planted(mutant, ran_at_import=False):
                assert tree.run(arguments, limit_s=30.0).output == "refused\nrefused\n"
                assert tree.run(arguments, limit_s=30.0, sound=True).output == "a\na\n"
            assert tree.run(arguments, limit_s=30.0).output == "a\na\n"
        assert (tree.root / TOPICS).read_bytes() == before


@pytest.mark.parametrize("ran_at_import", [False, True])
def test_tests_of_pytest_get_the_mutant_too(ran_at_import: bool) -> None:
    """Which rewrites the assertions of those that have a plugin, as the broker has, and loads what it has rewritten."""
    (mutant,) = _mutants(TOPICS + '::split_shared: "#" in name -> "#" not in name')
    with copied_tree() as tree:
        (tree.root / "test_asks.py").write_text(
            "from assay.reference_broker.routing.topics import split_shared\n"
            "def test_a_share_has_a_name():\n    assert split_shared('$share/g/a')[1] == 'a'\n"
        )
        command = ["-m", "pytest", *PYTEST_OPTIONS, "test_asks.py"]
        tree.warm_up(Preload(tests=("test_asks.py",)))
        assert tree.run(command, limit_s=30.0).status == 0
        with tree.planted(mutant, ran_at_import=ran_at_import):
            assert tree.run(command, limit_s=30.0).status == 1
