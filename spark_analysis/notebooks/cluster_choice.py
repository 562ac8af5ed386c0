# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which cluster do I need, and what happens when a node dies?
#
# This page reads what models left in a run folder (`assay sim model run cluster planning nats rabbitmq rebalance
# --out FOLDER`) and sets measurements beside them. A model is as good as its check: each one's rows are shown
# first, and the last cell fails when a row does. Parameters and where they are from stand in the results.

# %% tags=["parameters"]
run_folder = "."

# %%
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from assay.reference_broker.trace.results import read_result
from assay.spark_analysis import charts, summaries

summaries.show_in_full()
folder = Path(run_folder)
results = {path.parent.name: read_result(path) for path in sorted(folder.glob("*/result.json"))}
show = charts.Page().show


def drawn(name: str) -> charts.Shown:
    """Every group of series of a model."""
    result = results.get(name)
    if result is None:
        return show()
    groups = dict.fromkeys(line.group for line in result.series)
    return show(*(charts.series_chart(result, group, result.bands) for group in groups))


def figures(name: str, *beginnings: str) -> pd.DataFrame:
    """The metrics of a model whose names begin so."""
    metrics = results[name].metrics if name in results else {}
    rows = [(key, value) for key, value in metrics.items() if key.startswith(beginnings)]
    return pd.DataFrame(rows, columns=["figure", "value"])


# %% [markdown]
# ## Can the models be trusted?
#
# What each model computes, beside a closed form, another exact method or a measurement.

# %%
pd.concat([summaries.checks(result).assign(model=name) for name, result in results.items()], ignore_index=True)[
    ["model", "figure", "value", "unit", "bound", "verdict", "of", "source"]
]

# %% [markdown]
# ## The question
#
# Does the latency hold while all is well, and after a node died? **healthy** is before the death, **outage** from it
# until every partition has a leader again and the backlog is through, **after** is the rest, with one node less.

# %%
cluster = results["cluster"]
print(cluster.summary)
figures("cluster", "healthy.", "outage.", "after.", "utilisation.", "lost", "unwritable", "availability")

# %%
summaries.percentiles(cluster)

# %%
drawn("cluster")

# %% [markdown]
# The rows of `samples.parquet` are those of load runs, so whatever reads one reads the other: here the share of
# requests that took longer than 10 ms, until confirmed and until delivered, by phase.

# %%
samples = pq.read_table(folder / "cluster" / cluster.artefacts["samples"]).to_pandas()
slow = (samples["completed_ns"] - samples["intended_ns"]) > 10_000_000
slow.groupby([samples["workload"], samples["operation"]]).mean().rename("share above 10 ms").to_frame()

# %% [markdown]
# ## What each policy of acknowledgement costs and loses
#
# The same cluster and the same death at a small load: `none` asks for no confirm, `leader` waits for the leader, `all`
# for every in-sync replica, `quorum` for a majority.

# %%
policies = ("none", "leader", "all", "quorum")
pd.DataFrame(
    {
        policy: {key.partition(".")[2]: value for key, value in cluster.metrics.items() if key.startswith(f"{policy}.")}
        for policy in policies
    }
)

# %% [markdown]
# ## How many nodes, partitions and consumers
#
# The fewest that keep the bound with one node dead, and what the number becomes when a parameter is halved or doubled.
# 0 = no number of nodes keeps the bound: the latency is not a matter of capacity any more.

# %%
print(results["planning"].summary if "planning" in results else "not planned")
figures("planning", "nodes", "partitions", "consumers")

# %%
drawn("planning")

# %% [markdown]
# ## How real brokers fail over
#
# Time without a confirm when the leader's process is killed and when it is frozen, modelled and measured on three
# nodes. One number a broker would be wrong: RabbitMQ notices a killed node at once and a frozen one after seconds.

# %%
drawn("nats")

# %%
drawn("rabbitmq")

# %%
pd.concat([figures(name, "kill.", "pause.").assign(broker=name) for name in ("nats", "rabbitmq")], ignore_index=True)

# %% [markdown]
# ## And the consumers
#
# One more consumer joins a group: eager rebalancing pauses every partition, cooperative only those that move.

# %%
drawn("rebalance")

# %% [markdown]
# ## The page agrees with the checks

# %%
for name, result in results.items():
    for check in result.checks:
        assert check.verdict == "pass", f"{name}: {check.name} is {check.verdict}: {check.subject}"
        assert check.value is not None, f"{check.name} is green without a figure"
assert "cluster" in results, "no cluster, no answer"
print("consistent")
