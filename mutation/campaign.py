"""A campaign: draw mutants, judge them two at a time, write each verdict down at once, go on after an interruption."""

from __future__ import annotations

import random
import re
import threading
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

import msgspec

from mutation.judges import KILLS, Bench, Judge, Opinion, Outcome
from mutation.operators import Mutant, Operator, is_sound, mutants_of
from mutation.reach import Reach, digest
from mutation.tree import ROOT, StoppedError, Tree, copied_tree
from mutation.warm import Preload

DEFAULT_MODULES = (
    "reference_broker/mqtt",
    "reference_broker/core",
    "reference_broker/routing",
    "reference_broker/queues",
    "reference_broker/storage",
)
EQUIVALENTS = Path(__file__).with_name("equivalents.toml")


class CampaignError(Exception):
    """What was asked for cannot be done; the text says why."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant, and what the judges say of it."""

    mutant: Mutant
    opinions: tuple[Opinion, ...] = ()
    equivalent: str = ""
    """Why nobody can tell it from the broker; it is not judged then."""

    @property
    def killed(self) -> bool:
        return any(opinion.outcome in KILLS for opinion in self.opinions)

    @property
    def not_whole(self) -> bool:
        """It lives, but not all that may execute it was asked."""
        return not self.killed and any(opinion.left_out for opinion in self.opinions)

    @property
    def not_reached(self) -> bool:
        """No judge executes it."""
        return all(opinion.outcome is Outcome.NOT_REACHED for opinion in self.opinions)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the file of a campaign: what was drawn."""

    modules: tuple[str, ...]
    sample: int
    seed: int
    sources: str
    """Digest of the modules: another text has other mutants."""


def plan_of(names: Sequence[str], sample: int, seed: int) -> Plan:
    """The plan of a campaign that begins now. Raises :class:`CampaignError`."""
    modules = modules_of(names)
    sources = digest(ROOT / module for module in modules)
    return Plan(modules=tuple(modules), sample=sample, seed=seed, sources=sources)


def modules_of(names: Sequence[str]) -> list[str]:
    """Modules of the broker, from paths of modules or folders. Raises :class:`CampaignError`."""
    found: list[str] = []
    for name in names:
        path = (ROOT / name).resolve()
        below = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if not path.exists() or not path.is_relative_to(ROOT / "reference_broker"):
            message = f"{name!r} is no module or folder of reference_broker"
            raise CampaignError(message)
        found += [module.relative_to(ROOT).as_posix() for module in below]
    return sorted(set(found))


def draw(modules: Sequence[str], sample: int, seed: int) -> list[Mutant]:
    """``sample`` mutants (0 = all) of the modules by chance; the same seed draws the same."""
    sources = {module: (ROOT / module).read_text(encoding="utf-8") for module in modules}
    every = [mutant for module, source in sources.items() for mutant in mutants_of(module, source)]
    random.Random(seed).shuffle(every)
    found: list[Mutant] = []
    for mutant in every:
        if is_sound(mutant, sources[mutant.module]):
            found.append(mutant)
        if len(found) == sample:
            break
    return found


def known_equivalents() -> dict[str, str]:
    """Key of a mutant to the reason why it is the same program to everybody who looks from outside.

    What the file names and the broker has not got has an empty reason.
    """
    entries = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8"))
    found = {key: entry["reason"] for entry in entries["equivalent"] for key in entry["mutants"]}
    sizes = {name: entry["reason"] for entry in entries["size"] for name in entry["constants"]}
    modules = {key.partition("::")[0] for key in (*found, *sizes)}
    every = [
        mutant
        for module in sorted(modules)
        if (ROOT / module).exists()
        for mutant in mutants_of(module, (ROOT / module).read_text(encoding="utf-8"))
    ]
    known = {mutant.key: found.pop(mutant.key) for mutant in every if mutant.key in found}
    left = dict.fromkeys(sizes)
    for mutant in every:
        name = f"{mutant.module}::{re.split('[ :]', mutant.key.partition('::: ')[2])[0]}"
        if mutant.operator is Operator.CONSTANT and not mutant.function and name in sizes:
            known[mutant.key] = sizes[name]
            left.pop(name, None)
    return known | dict.fromkeys((*found, *left), "")


class Journal:
    """The file of a campaign: its plan, then a line per mutant."""

    def __init__(self, path: Path, plan: Plan, *, resume: bool) -> None:
        self.path = path
        self.done: dict[str, Judged] = {}
        if resume:
            if not path.exists():
                message = f"{path} does not exist"
                raise CampaignError(message)
            # The last line may be half written.
            first, *rest = path.read_bytes().split(b"\n")[:-1]
            if (begun := msgspec.json.decode(first, type=Plan)) != plan:
                message = f"{path} is of another campaign: {begun}"
                raise CampaignError(message)
            judged = [msgspec.json.decode(line, type=Judged) for line in rest]
            self.done = {one.mutant.identity: one for one in judged}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [msgspec.json.encode(line) for line in (plan, *self.done.values())]
        path.write_bytes(b"".join(line + b"\n" for line in lines))

    def add(self, judged: Judged) -> None:
        self.done[judged.mutant.identity] = judged
        with self.path.open("ab") as sink:
            sink.write(msgspec.json.encode(judged) + b"\n")


def read_plan(path: Path) -> Plan:
    """The plan of an interrupted campaign. Raises :class:`CampaignError`, also when the broker is another one now."""
    try:
        plan = msgspec.json.decode(path.read_bytes().partition(b"\n")[0], type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        message = f"{path} is no file of a campaign: {error}"
        raise CampaignError(message) from error
    if plan_of(plan.modules, plan.sample, plan.seed) != plan:
        message = f"the broker has changed since {path} was begun; draw again"
        raise CampaignError(message)
    return plan


def judge_one(mutant: Mutant, judges: Sequence[Judge], bench: Bench, *, until_killed: bool) -> Judged:
    """Every judge's opinion of a mutant; with ``until_killed`` of no more judges than it takes.

    Whom all let live is asked about again where something was left out.
    """
    opinions: list[Opinion] = []
    with bench.tree.planted(mutant, ran_at_import=bench.reach.ran_at_import(mutant)):
        for judge in judges:
            opinions.append(judge.judge(mutant, bench))
            if until_killed and opinions[-1].outcome in KILLS:
                break
        for place, (judge, opinion) in enumerate(zip(judges, opinions, strict=False)):
            if opinion.left_out and not any(one.outcome in KILLS for one in opinions):
                opinions[place] = judge.judge_rest(mutant, bench, opinion)
    return Judged(mutant=mutant, opinions=tuple(opinions))


def judge_all(
    mutants: Sequence[Mutant],
    judges: Sequence[Judge],
    journal: Journal,
    maps: Path,
    *,
    jobs: int = 2,
    budget_s: float = 20.0,
    rest_s: float = 120.0,
    patience_s: float = 10.0,
    until_killed: bool = False,
    report: Callable[[str], None] = lambda _text: None,
    on_judged: Callable[[Judged], None] = lambda _judged: None,
) -> list[Judged]:
    """Judge what the journal does not hold yet. Whatever ends this, nothing is left in temporary folders."""
    equivalents = known_equivalents()
    left = [mutant for mutant in mutants if mutant.identity not in journal.done]
    with ExitStack() as stack:
        report(f"copying the project {jobs} times")
        trees = [stack.enter_context(copied_tree()) for _ in range(jobs)]
        reach = Reach(maps)
        parts = [part for judge in judges for part in judge.parts()]
        wanted = [judge.preload() for judge in judges]
        preload = Preload(
            packages=tuple(dict.fromkeys(name for each in wanted for name in each.packages)),
            tests=tuple(dict.fromkeys(name for each in wanted for name in each.tests)),
        )
        lock = threading.Lock()
        try:
            reach.make(trees, parts, preload, report=lambda name, more: report(f"mapping {name}, {more} more"))

            for name in reach.unusable():
                report(f"cannot judge: {name}")

            report("importing the broker, its tests and its judges")

            def work(tree: Tree) -> None:
                tree.warm_up(preload)
                bench = Bench(tree, reach, budget_s=budget_s, rest_s=rest_s, patience_s=patience_s)
                while True:
                    with lock:
                        if not left:
                            return
                        mutant = left.pop(0)
                    if mutant.key in equivalents:
                        judged = Judged(mutant=mutant, equivalent=equivalents[mutant.key])
                    else:
                        judged = judge_one(mutant, judges, bench, until_killed=until_killed)
                    with lock:
                        journal.add(judged)
                        on_judged(judged)

            with ThreadPoolExecutor(jobs) as pool:
                try:
                    for done in as_completed([pool.submit(work, tree) for tree in trees]):
                        done.result()
                except BaseException:
                    left.clear()
                    for tree in trees:
                        tree.close()
                    raise
        except StoppedError as error:
            raise KeyboardInterrupt from error
    return [journal.done[mutant.identity] for mutant in mutants]
