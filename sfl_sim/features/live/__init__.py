"""Live runs: the flows of a method drive real processes, on this machine or on others, instead of simulated ones.

The driver stands beside the server. It runs the method's flows, serves the queue and writes the records; its values and
states are empty. What they stand for lives in the processes that made or received it (`machines.py` on the driver's
side, `agent.py` on theirs). The clock is the wall's (`clock.py`).
"""
