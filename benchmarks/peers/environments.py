"""Environments of the peers, one each, since they ask for different versions of the same packages.

    python -m benchmarks.peers.environments [NAME ...]

Each takes torch, and what else fits, from the environment that runs this, and gets the rest by pip.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.child import ROOT

FOLDER = Path(os.environ.get("PEERS", ROOT / "build" / "peers")).absolute()
PINNED = {
    "pfl-research": ["pfl[pytorch]==0.6.0"],
    "Flower": ["flwr[simulation]==1.41.0"],
    "fluke": ["fluke-fl==0.8.1"],
    "APPFL": ["appfl==1.12.0"],
    "queues": ["ciw==3.2.7", "salabim==26.0.9"],
}


def python(name: str) -> Path:
    """Give the interpreter of an environment; there is no such file where it has not been made."""
    return FOLDER / name / "bin" / "python"


def versions(name: str) -> str:
    """Name the versions of an environment's pinned packages."""
    ask = "import sys; from importlib.metadata import version as v; print(*[f'{p} {v(p)}' for p in sys.argv[1:]])"
    pinned = [given.split("==")[0].split("[")[0] for given in PINNED[name]]
    return subprocess.check_output([python(name), "-c", ask, *pinned], text=True).strip()


def main() -> None:
    for name in sys.argv[1:] or PINNED:
        print(f"{name}: {', '.join(PINNED[name])}")
        venv.create(FOLDER / name)
        (ours,) = (path for path in sys.path if path.endswith("site-packages"))
        (theirs,) = (FOLDER / name / "lib").glob("python*/site-packages")
        (theirs / "shared.pth").write_text(f"{ours}\n")
        subprocess.run([python(name), "-m", "pip", "install", "-q", *PINNED[name]], check=True)


if __name__ == "__main__":
    main()
