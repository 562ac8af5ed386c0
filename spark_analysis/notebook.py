"""Executes a notebook for a run folder, and leaves it as ``.ipynb`` and ``.html`` beside the result it explains."""

from __future__ import annotations

import os
import re
import tempfile
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Final

import jupytext
import msgspec
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter
from plotly.offline import get_plotlyjs
from traitlets.config import Config

from assay.reference_broker.trace.results import read_result, write_result
from assay.spark_analysis.sources import SPARK_FOLDER

PLOTLY_FILE: Final = "plotly.min.js"
"""Beside the page, which draws with it."""
PARAMETERS: Final = "parameters"
"""Tag of the cell whose assignments are replaced."""
_ELSEWHERE: Final = ("jquery_url", "mathjax_url", "mermaid_js_url", "mermaid_layout_elk_js_url", "require_js_url")
"""Scripts that the page would fetch from the network; it needs none of them."""
_ICONS: Final = re.compile(r"\s*--jp-icon-[\w-]+: url\([^)]*\);")
"""Of JupyterLab's buttons, which a page has none of: half of its size."""


class Kind(StrEnum):
    """Which notebook."""

    REPORT = "report"
    """What the Spark analysis of a run says of the broker."""
    CLUSTERS = "clusters"
    """Which cluster is needed, and what happens when a node dies: models beside measurements."""


class _Notebook(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    folder: str
    """Below the run folder: holds the ``result.json`` that is explained, and gets the executed notebook."""
    advice: str


_NOTEBOOKS: Final = {
    Kind.REPORT: _Notebook(
        source="broker_report.py",
        folder=SPARK_FOLDER,
        advice="has not been analysed: run `assay spark analyse {}` first",
    ),
    Kind.CLUSTERS: _Notebook(
        source="cluster_choice.py",
        folder="cluster",
        advice="holds no model of a cluster: run `assay sim model run cluster planning nats rabbitmq --out {}` first",
    ),
}


class NotebookError(RuntimeError):
    """A cell of the notebook failed; the text is its error."""


class ExecutedNotebook(msgspec.Struct, frozen=True, kw_only=True):
    """Where the executed notebook is."""

    ipynb: Path
    html: Path


def notebook_text(kind: Kind = Kind.REPORT) -> str:
    """The notebook as ``py:percent`` text."""
    return (resources.files("assay.spark_analysis") / "notebooks" / _NOTEBOOKS[kind].source).read_text(encoding="utf-8")


def with_parameters(text: str, parameters: dict[str, str]) -> nbformat.NotebookNode:
    """The notebook with the cell tagged :data:`PARAMETERS` replaced. Raises :class:`ValueError` when it has none."""
    notebook: nbformat.NotebookNode = jupytext.reads(text, fmt="py:percent")
    for cell in notebook.cells:
        if PARAMETERS in cell.metadata.get("tags", []):
            cell.source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
            return notebook
    message = f"the notebook has no cell tagged {PARAMETERS!r}"
    raise ValueError(message)


def execute_notebook(run_folder: Path, *, kind: Kind = Kind.REPORT, timeout_s: int = 300) -> ExecutedNotebook:
    """Execute a notebook for a run folder.

    Raises :class:`FileNotFoundError` when the folder lacks what it explains, :class:`NotebookError` when a cell fails
    or one takes longer than ``timeout_s``.
    """
    chosen = _NOTEBOOKS[kind]
    folder = run_folder / chosen.folder
    if not (folder / "result.json").exists():
        message = f"{run_folder} {chosen.advice.format(run_folder)}"
        raise FileNotFoundError(message)
    notebook = with_parameters(notebook_text(kind), {"run_folder": str(run_folder.resolve())})
    with tempfile.TemporaryDirectory(prefix="assay-notebook-") as private:
        # By sockets in a private folder: nothing listens on the network.
        place = {"transport": "ipc", "connection_file": str(Path(private) / "kernel.json")}
        config = Config({"ConnectionFileMixin": place})
        client = NotebookClient(notebook, timeout=timeout_s, kernel_name="python3", config=config)
        try:
            client.execute(env=_kernel_environment(Path(private)))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            message = f"the notebook failed: {error}"
            raise NotebookError(message) from error
    executed = ExecutedNotebook(ipynb=folder / f"{kind}.ipynb", html=folder / f"{kind}.html")
    nbformat.write(notebook, executed.ipynb)
    (folder / PLOTLY_FILE).write_text(get_plotlyjs(), encoding="utf-8")
    executed.html.write_text(_as_html(notebook), encoding="utf-8")
    _list_among_artefacts(folder, executed)
    return executed


def _list_among_artefacts(folder: Path, executed: ExecutedNotebook) -> None:
    """The run's result names the notebook, so that reports link to it."""
    result = read_result(folder / "result.json")
    artefacts = {**result.artefacts, "notebook": executed.html.name, "notebook source": executed.ipynb.name}
    write_result(folder, msgspec.structs.replace(result, artefacts=artefacts))


def _kernel_environment(private: Path) -> dict[str, str]:
    """The kernel finds this very package, and keeps its own files to itself."""
    package_parent = Path(__file__).parents[2]
    path = os.pathsep.join(part for part in (str(package_parent), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(private)}


def _as_html(notebook: nbformat.NotebookNode) -> str:
    exporter = HTMLExporter()
    for name in _ELSEWHERE:
        setattr(exporter, name, "")
    body, _ = exporter.from_notebook_node(notebook)
    return _ICONS.sub("", str(body))
