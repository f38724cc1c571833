"""How many threads one step is worth."""

SMALL_BATCH_MACS = 20e6
"""Forward MACs of a mini-batch below which a second thread costs more than it gives.

A second thread speeds lenet5 at batch 64 (27 M) up 1.4 to 1.7 times. On cnn_small and 8x8 digits at batch 16 (10 M) it
gives nothing, and on a busy machine its spinning makes a step eight times slower. One thread also gives the same bits
whatever the number of cores.
"""


def threads_for(batch_macs: float, available: int) -> int:
    """Intra-op threads for steps whose mini-batch costs `batch_macs` forward, where `available` may be used."""
    return 1 if batch_macs < SMALL_BATCH_MACS else available
