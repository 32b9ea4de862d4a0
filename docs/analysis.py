# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own look at a comparison
#
# `python compare.py --repeats 5` leaves a folder under `results/`. `comparison.load` reads it as pandas DataFrames, and
# `docs/columns.md` explains their columns. This notebook takes the latest folder, or the one that `COMPARISON` in the
# environment names.

# %%
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt

REPOSITORY = Path.cwd() if (Path.cwd() / "compare.py").exists() else Path.cwd().parent
sys.path.insert(0, str(REPOSITORY))

import comparison

folders = sorted((REPOSITORY / "results").glob("*/comparison.json"), key=lambda path: path.stat().st_mtime)
if not folders and "COMPARISON" not in os.environ:
    raise SystemExit("there is no comparison under results/: run python compare.py --repeats 5 first")
folder = Path(os.environ.get("COMPARISON") or folders[-1].parent)
found = comparison.load(folder)
print(folder.name)
print("\n".join(f"warning: {line}" for line in found.warnings) or "no warnings")

# %% [markdown]
# Read the warnings before you use the numbers. Then the rows: one for each implementation and mode, over all its runs.

# %%
found.rows[
    ["implementation", "mode", "test_accuracy", "images_per_second", "ratio", "ratio_low", "ratio_high", "status"]
]

# %% [markdown]
# ## Every run
#
# A median hides how far runs are apart. Each point is a run, and a line joins the runs of a round: where all lines rise
# or fall together, the machine was faster or slower for all, which a ratio of pairs does not feel.

# %%
found.runs["row"] = found.runs["implementation"] + found.runs["mode"].map({"plain": "", "tuned": " tuned"})
speeds = found.runs.pivot_table("images_per_second", index=["seed", "round"], columns="row")
axes = speeds.T.plot(style="o-", color="tab:gray", alpha=0.6, legend=False, ylabel="images per second", xlabel="")
axes.set_ylim(bottom=0)
plt.show()

# %% [markdown]
# ## Ratios of your own
#
# `ratio` is always to the table's first row. Any other pair is a division of two columns, round by round.

# %%
first, *others = speeds.columns
ratios = speeds[others].div(speeds[first], axis=0)
ratios.agg(["count", "min", "median", "max"]) if others else "one row alone: nothing to divide by"

# %% [markdown]
# ## Two comparisons side by side
#
# Set `earlier` to the folder of another comparison, or name it as `EARLIER` in the environment. The two share no round,
# so a ratio far from 1 may be the machine's load as well as your change.

# %%
earlier = os.environ.get("EARLIER", folder)
key, numbers = ["variant", "implementation", "mode"], ["test_accuracy", "images_per_second"]
then, now = (loaded.rows.set_index(key)[numbers] for loaded in (comparison.load(earlier), found))
then.join(now, how="outer", lsuffix=" then", rsuffix=" now").assign(
    ratio=now["images_per_second"] / then["images_per_second"]
)

# %% [markdown]
# ## Learning curves
#
# In lockstep all implementations lie on one line. Where do they part, by rounding?

# %%
curves = found.epochs.groupby(["epoch", "implementation"])["test_accuracy"].mean().unstack()
curves.plot(ylabel="test accuracy")
plt.show()

# %%
losses = found.steps.pivot_table("loss", index="step", columns="implementation", aggfunc="first")
differences = losses.sub(losses.iloc[:, 0], axis=0).abs().iloc[:, 1:]
if not differences.empty:
    differences.plot(logy=True, ylabel=f"difference in loss from {losses.columns[0]}")
    plt.show()

# %% [markdown]
# ## Where the time goes

# %%
phases = [f"{name}_seconds" for name in ("imports", "data", "build", "training", "evaluation", "between", "rest")]
found.runs.groupby("row")[phases].median().plot.barh(stacked=True, xlabel="seconds, medians over runs", ylabel="")
plt.show()
