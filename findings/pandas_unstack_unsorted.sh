#!/bin/sh
# Before pandas 3, Series.unstack(level, sort=False) puts values under wrong labels, without an error.
#
# Expected: `sort=False` decides the order of rows and columns, and a value keeps its labels.
# Seen: where the unstacked level is not the one that varies fastest, as after pd.concat of a series for each threshold
#   and reorder_levels, rows and columns have right labels in the right order, and the values stand in the order of the
#   series: of four numbers two are under another client and threshold. idxmax over such a table names wrong
#   thresholds. With the usual sort=True, and in pandas 3.0.0 with either, every value is under its labels.
# Source: pandas 2.3.3, core/reshape/reshape.py, _Unstacker: with sort=False _make_sorted_values gives the values as
#   they are, and get_new_values, if no cell is missing, reshapes them as if they lay row by row.
# Versions: pandas 2.3.3 and 3.0.0, NumPy 2.3.5, Python 3.11.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for pandas in 2.3.3 3.0.0; do
    python3 -m venv "$folder/$pandas"
    "$folder/$pandas/bin/pip" install --quiet "pandas==$pandas" numpy==2.3.5
    "$folder/$pandas/bin/python" - <<'END'
import pandas as pd

of_each = {threshold: pd.Series({"a": threshold, "b": 10 * threshold}) for threshold in (1.0, 2.0)}
values = pd.concat(of_each, names=["threshold", "client"]).reorder_levels(["client", "threshold"])
moved = {sort: [key for key, value in values.items() if values.unstack("threshold", sort=sort).loc[key] != value]
         for sort in (True, False)}
print(f"pandas {pd.__version__}", values.unstack("threshold", sort=False), f"under other labels: {moved}", sep="\n")
wrong = [("b", 1.0), ("a", 2.0)] if pd.__version__ < "3" else []
assert moved == {True: [], False: wrong}
END
done
