"""The clock: an event loop and an array clock, the queue of the server, scheduling policies, prices."""
