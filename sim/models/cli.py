"""``assay sim model``: queues, brokers and clusters as models, judged by theory and by measurements."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from assay.reference_broker.trace.results import RunResult, Verdict, worst
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable
from assay.reference_broker.trace.yaml_text import YamlError, parse_yaml
from assay.sim.models.fit import fit, write_parameters
from assay.sim.models.mistakes import MISTAKES, planted
from assay.sim.models.model import Model, ModelError, Outcome, load_parameters
from assay.sim.models.registry import MODELS, find_model
from assay.sim.models.runner import PLOT_FILE, run_model

PASSED: Final = 0
FAILED: Final = 1
USAGE: Final = 2
_MARKS: Final = {Verdict.PASS: "[green]pass[/]", Verdict.FAIL: "[red]fail[/]"}

app = typer.Typer(
    name="model",
    no_args_is_help=True,
    help="""Ask models of queues, brokers and clusters, instead of building the cluster.

    Each model knows a check of its own: rows of what it computes beside a closed form, another exact method or a
    measurement. `list` names them, `run` runs some, `fit` takes parameters from benches of this machine, `compare`
    holds a model to measurements. Exit status: 0 all rows agree, 1 a row does not, 2 wrong usage.""",
)
console = WholeConsole()
errors = WholeConsole(stderr=True)

Found = tuple[Model[Any], Outcome, RunResult]
Seed = Annotated[int, typer.Option(min=0, help="Of every random choice; the same seed gives the same figures.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A parameter, as name=value in YAML; may be repeated.")
]


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of usage into a line for people and exit status 2."""
    try:
        yield
    except (ModelError, OSError) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(USAGE) from error


def _settings(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for setting in given:
        name, equals, text = setting.partition("=")
        try:
            found[name] = parse_yaml(text)
        except YamlError as error:
            raise ModelError(f"--set {setting}: {error}") from error
        if not equals or found[name] is None:
            message = f"--set {setting}: write name=value"
            raise ModelError(message)
    return found


@contextmanager
def bars(name: str) -> Iterator[Any]:
    """A progress bar; yields what models call."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda what, share: progress.update(task, description=f"{name}: {what}", completed=share)


def number(value: float | None) -> str:
    """Four digits."""
    return "-" if value is None else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _error(outcome_row: Any) -> str:
    error = outcome_row.error_percent
    return "-" if error is None else f"{error:+.2f} %"


def show(found: list[Found]) -> None:
    """The table: model, what it computed, what was expected, how far off."""
    table = WholeTable("model", "figure", "value", "expected", "error", "allowed", "", "by", box=None, pad_edge=False)
    for model, outcome, _ in found:
        for row in outcome.rows:
            value = f"{number(row.value)} {row.unit}".rstrip()
            mark = _MARKS.get(row.verdict, f"[yellow]{row.verdict.value}[/]")
            table.add_row(model.name, row.what, value, number(row.reference), _error(row), row.bound, mark, row.method)
    console.print(table)
    for _, outcome, _ in found:
        for answer in outcome.answers:
            console.print(answer, highlight=False)


def markdown(found: list[Found]) -> str:
    """The same table for a page."""
    lines = ["| model | figure | value | expected | error | by |", "| --- | --- | --- | --- | --- | --- |"]
    for model, outcome, _ in found:
        for row in outcome.rows:
            expected = number(row.reference) if row.reference is not None else row.bound
            cells = [model.name, row.what, f"{number(row.value)} {row.unit}".rstrip(), expected, _error(row)]
            lines.append(f"| {' | '.join([*cells, row.method])} |")
    return "\n".join(lines)


@app.command(name="list")
def list_command() -> None:
    """List the models, their parameters, and the mistakes that their checks refuse."""
    table = WholeTable("model", "what it is", "parameters", box=None, pad_edge=False)
    for name, model in MODELS.items():
        table.add_row(name, model.what, ", ".join(model.parameters.__struct_fields__))
    console.print(table)
    console.print()
    wrong = WholeTable("mistake", "of model", "what is wrong", box=None, pad_edge=False)
    for mistake in MISTAKES.values():
        wrong.add_row(mistake.name, mistake.model, mistake.what)
    console.print(wrong)


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Models (see list), or all.")],
    parameters: Annotated[
        Path | None, typer.Option(help="A YAML file of parameters in place of the shipped ones, as `fit` writes it.")
    ] = None,
    settings: Settings = None,
    seed: Seed = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for result.json, samples.parquet and plot.html of each model.")
    ] = None,
    mistake: Annotated[
        str | None, typer.Option(help="Make a mistake on purpose (see list): the check must refuse it.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Run models, and hold each to its check.

    \b
    assay sim model run all
    assay sim model run mm1 --set utilisation=0.8 --set customers=2000000
    assay sim model run group-commit --out out/models --seed 7
    """
    with explained():
        found = []
        for name in MODELS if names == ["all"] else names:
            plant = nullcontext() if mistake is None else planted(mistake, find_model(name).name)
            with plant:
                found.append(_run(name, parameters, settings, seed, out))
    if as_markdown:
        typer.echo(markdown(found))
    else:
        show(found)
    _end(found, out)


@app.command()
def compare(
    name: Annotated[str, typer.Argument(help="nats, rabbitmq or broker.")],
    measured: Annotated[
        list[Path], typer.Option(help="A result.json or its folder; repeat for several runs, which count together.")
    ],
    parameters: Annotated[Path | None, typer.Option(help="A YAML file of parameters, as `fit` writes it.")] = None,
    settings: Settings = None,
    seed: Seed = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json, samples.parquet and plot.html.")] = None,
) -> None:
    """Hold a model to measurements of this machine.

    \b
    assay faults failover nats --rounds 10 --out out/nats
    assay sim model compare nats --measured out/nats
    """
    with explained():
        found = [_run(name, parameters, settings, seed, out, measured)]
    show(found)
    _end(found, out)


@app.command(name="fit")
def fit_command(
    storage: Annotated[Path, typer.Option(help="What assay bench storage --out wrote.")],
    queue: Annotated[Path, typer.Option(help="What assay bench queue --out wrote.")],
    load: Annotated[
        list[Path] | None,
        typer.Option(
            help="What assay load run wrote; repeat for several rates. One sets the time of a turn, several also what "
            "waking up adds and how much turns differ."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The YAML file of parameters.")] = Path("out/broker.yaml"),
    seed: Seed = 1,
) -> None:
    """Take the broker model's parameters from benches of this machine, each with its source.

    \b
    assay bench storage --out out/bench/storage
    assay bench queue --out out/bench/queue
    assay load run queue --rate-times 0.2 --out out/load/0.2
    assay load run queue --rate-times 3 --out out/load/3
    assay sim model fit --storage out/bench/storage --queue out/bench/queue --load out/load/0.2 --load out/load/3
    assay load run queue --rate-times 1 --out out/load/1
    assay sim model compare broker --parameters out/broker.yaml --measured out/load/1
    """
    with explained():
        found = fit(storage, queue, load or [], seed)
        write_parameters(out, found)
    table = WholeTable("parameter", "us", "from", box=None, pad_edge=False)
    for name, (value, source) in found.items():
        table.add_row(name, f"{value * 1e6:.3g}" if name.endswith("_s") else f"{value:.3g} (a share)", source)
    console.print(table)
    console.print(f"wrote {out}", highlight=False)


def _run(
    name: str,
    parameters: Path | None,
    settings: list[str] | None,
    seed: int,
    out: Path | None,
    measured: Sequence[Path] = (),
) -> Found:
    model = find_model(name)
    values, sources = load_parameters(model, parameters, _settings(settings or []))
    with bars(model.name) as progress:
        outcome, result = run_model(
            model,
            values,
            seed=seed,
            sources=sources,
            command=shlex.join(["assay", *sys.argv[1:]]),
            out=None if out is None else out / model.name,
            progress=progress,
            measured=measured,
        )
    return model, outcome, result


def _end(found: list[Found], out: Path | None) -> None:
    if out is not None:
        console.print(f"wrote {out}: result.json, {PLOT_FILE} and samples of each", highlight=False)
    verdict = worst([outcome.verdict for _, outcome, _ in found])
    raise typer.Exit(PASSED if verdict is Verdict.PASS else FAILED)
