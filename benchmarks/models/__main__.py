"""Cut networks of public libraries, and hold their parts against the whole.

    python -m benchmarks.models [--fresh] [LIBRARY | NETWORK | OUTCOME ...]

Each network is tried in a process of its own. What `results/models.json` has is kept, unless it is named, or all of it
is to be measured again (`--fresh`). The libraries lie in an environment of their own: `make models-environment`.
"""

import contextlib
import json
import multiprocessing
import sys
import time
import warnings
from argparse import ArgumentParser
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.models.compare import compared
from benchmarks.models.networks import Known, networks
from benchmarks.pairs import RESULTS, machine

LIMIT_S = 300
TARGET = RESULTS / "models.json"


def tried(known: Known) -> dict[str, Any]:
    """Compare a network in a process of its own, which may fail, fill memory or last too long."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_try, args=(known, sender))
    began_s = time.perf_counter()
    process.start()
    sender.close()
    row = {"outcome": "too slow", "difference": "", "layers": "", "cut": "", "says": f"more than {LIMIT_S} s"}
    if receiver.poll(LIMIT_S):
        try:
            row = receiver.recv()
        except EOFError:
            row |= {"outcome": "fails", "says": "the process ended"}
    else:
        process.kill()
    process.join()
    names = {"library": known.library, "family": known.family, "network": known.name}
    return names | row | {"seconds": round(time.perf_counter() - began_s, 1)}


def _try(known: Known, sender: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            row = compared(known.make(), known.shape, known.tokens)
        except Exception as error:  # whatever a library, or the simulator, does with such a network
            says = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            row = {"outcome": "fails", "difference": "", "layers": "", "cut": "", "says": says}
    sender.send(row)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="measure all again")
    parser.add_argument("chosen", nargs="*", metavar="NAME", help="libraries, networks or outcomes to measure again")
    given = parser.parse_args()
    kept = {} if given.fresh or not TARGET.exists() else json.loads(TARGET.read_text())
    rows = {(row["library"], row["family"], row["network"]): row for row in kept.get("rows", [])}
    versions = kept.get("machine", {})
    known = {(network.library, network.family, network.name): network for network in networks()}
    wanted = set(given.chosen)
    for key, network in known.items():
        if not wanted & {*key, rows.get(key, {}).get("outcome")} if wanted else key in rows:
            continue
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            versions[network.library] = __import__(network.library).__version__  # once, and not in every process
        rows[key] = tried(network)
        print(*(rows[key][name] for name in ("library", "network", "outcome", "says")), file=sys.stderr, flush=True)
        content = {"machine": versions | machine(), "rows": [rows[key] for key in known if key in rows]}
        TARGET.write_text(json.dumps(content, indent=2) + "\n")
    for outcome, count in Counter(row["outcome"] for row in rows.values()).most_common():
        print(f"{count:4} {outcome}")


if __name__ == "__main__":
    main()
