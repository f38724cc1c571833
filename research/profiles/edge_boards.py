"""Rates of Raspberry Pis and Jetsons, from the rows of measurements/ncnn.csv.

    python -m research.profiles.edge_boards

writes devices/edge_boards.csv: for each board the shortest time of MobileNet-V2 with any number of threads.
"""

import re

from research.profiles.ncnn_networks import HERE, REFERENCE, measurements
from sfl_sim.features.devices.fit import REFERENCE_MACS

BOARDS = r"Raspberry Pi|NVIDIA Jetson"
SHORT = r"\s*(\(|Broadcom|, ).*|^NVIDIA |(?<=Pi \d) Model "
"""What a name need not say."""
HEADER = {
    "what": "time of one image through MobileNet-V2 on the CPUs of Raspberry Pis and Jetsons",
    "source": "measurements/ncnn.csv, that is github.com/Tencent/ncnn @a4d2ea1d4422, benchmark/README.md",
    "unit": "ms for one image; threads with which it took that; reference_macs in MACs",
    "n": "{n} boards",
    "derived": "by research/profiles/edge_boards.py: for each board the number of threads that was fastest",
    "licence": "facts, stated with their source; ncnn is BSD-3-Clause",
    "caution": "a Jetson's GPU is not used; half precision where the cores have it; single images, no training",
}


def main() -> None:
    """Write devices/edge_boards.csv."""
    times_ms = measurements()[REFERENCE].dropna().rename("ms_per_frame").reset_index()
    boards = times_ms[times_ms["device"].str.match(BOARDS) & ~times_ms["device"].str.contains("Overclock")]
    names = boards["device"].map(lambda name: re.sub(SHORT, "", name))
    fastest = boards.assign(device=names).sort_values("ms_per_frame").drop_duplicates("device").sort_values("device")
    rows = fastest.rename(columns={"num_threads": "threads"}).assign(reference_macs=REFERENCE_MACS)
    header = "".join(f"# {key}: {text}\n" for key, text in HEADER.items()).replace("{n}", str(len(rows)))
    table = rows[["device", "ms_per_frame", "reference_macs", "threads"]].to_csv(index=False)
    (HERE / "devices" / "edge_boards.csv").write_text(header + table, encoding="utf-8")
    print(header + table)


if __name__ == "__main__":
    main()
