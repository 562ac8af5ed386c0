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
# # What a run says of the broker
#
# This page reads the Spark analysis of one run folder and explains it: what was judged and how, where the time goes,
# what faults did, and which messages went wrong. Everything shown is computed by the package; the notebook only
# arranges it. The last cell asserts that the page and the verdict agree.

# %% tags=["parameters"]
run_folder = "."

# %%
from pathlib import Path

from assay.spark_analysis import charts, summaries
from assay.spark_analysis.charts import open_analysis

summaries.show_in_full()
analysis = open_analysis(Path(run_folder))
result = analysis.result
show = charts.Page().show
print(f"{result.name}: {result.verdict.upper()}")
print(result.summary)

# %% [markdown]
# ## Targets
#
# Each figure has a source and conditions, and says of what it is: a figure of one queue is the worst of all queues.
# **pass** and **fail** were measured under these conditions. **unknown** was not, and says why. A run that offered 500
# messages a second says nothing about 100 000.

# %%
summaries.checks(result)

# %%
show(charts.verdict_chart(result))

# %% [markdown]
# ## Latency
#
# Latency counts from the time at which a message *was due*, so a stalled broker cannot hide behind a stalled
# generator. Percentiles are nearest-rank and exact up to five million samples. Those that are **missing** were due and
# never answered: they have no latency, and count as the worst where a bound is judged.

# %%
summaries.percentiles(result)

# %%
show(charts.percentile_chart(result))

# %% [markdown]
# ## Second by second
#
# Shaded bands are faults. A latency peak inside a band is the fault's; one outside is the broker's own. The backlog is
# what the broker acknowledged and had not yet delivered: it must return to zero.

# %%
show(*(charts.series_chart(result, group, analysis.bands(group)) for group in analysis.groups()))

# %% [markdown]
# ## What faults cost
#
# The same operations, split by whether any part of their life fell into a fault; and how long publishers heard nothing.

# %%
fault_latency = analysis.table("fault_latency")
show(*([] if fault_latency is None else [charts.fault_chart(fault_latency)]))

# %%
recovery = analysis.table("recovery")
recovery if recovery is not None else "No fault, nothing to recover from."

# %% [markdown]
# ## Findings
#
# One row per rule that was broken, in one queue and group. **safety** makes the run invalid; **quality** is reported
# only. The values name messages: look them up in the history to see their whole life.

# %%
summaries.findings(result)

# %% [markdown]
# ## The page agrees with the verdict

# %%
safety = [finding for finding in result.findings if finding.severity == "safety"]
anomalies = analysis.table("anomalies")
if anomalies is not None:
    assert bool(safety) == bool((anomalies["severity"] == "safety").any()), "findings and anomalies disagree"
for check in result.checks:
    assert check.verdict != "pass" or check.value is not None, f"{check.name} is green without a figure"
assert result.verdict != "pass" or not safety, "a run with safety findings cannot pass"
assert result.verdict != "pass" or result.metrics["rows"] != 0, "no data is never green"
print("consistent")
