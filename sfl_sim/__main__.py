"""`python -m sfl_sim` is `sfl-sim`."""

from sfl_sim.cli import main

if __name__ == "__main__":
    main()
