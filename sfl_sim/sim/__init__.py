"""The clock: runs flows in simulated time over devices, links and a queueing server."""
