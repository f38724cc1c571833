"""Stands for SLURM's `sbatch`: runs a job at once on this machine, an array one after another, and prints its number.

Output goes to slurm-JOB_TASK.out, as SLURM's does. A job that depends on another has it behind it.
"""

import argparse
import itertools
import os
import re
import subprocess
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--parsable", action="store_true")
parser.add_argument("--dependency")
parser.add_argument("--wrap")
parser.add_argument("script", nargs="?", type=Path)
given = parser.parse_args()

text = f"#!/bin/sh\n{given.wrap}\n" if given.wrap else given.script.read_text()
told = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, flags=re.MULTILINE))
job = next(n for n in itertools.count(1) if not list(Path().glob(f"slurm-{n}[_.]*")))
first, last = map(int, told["array"].split("-")) if "array" in told else (0, 0)
Path("job").write_text(text)
Path("job").chmod(0o755)
for task in range(first, last + 1):
    name, more = (f"{job}_{task}", {"SLURM_ARRAY_TASK_ID": str(task)}) if "array" in told else (f"{job}", {})
    with open(f"slurm-{name}.out", "w") as out:
        subprocess.run(
            ["./job"], env=os.environ | more | {"SLURM_JOB_ID": str(job)}, stdout=out, stderr=out, check=True
        )
print(job if given.parsable else f"Submitted batch job {job}")
