"""A server with a queue for tests: what its clients see of it."""

import simpy

from sfl_sim.sim.station import Job, Station


class Server:
    """A station and what its clients saw: (client, arrived, started, ended), in order of the end."""

    def __init__(self, workers=1):
        self.env = simpy.Environment()
        self.station = Station(self.env, workers)
        self.seen = []

    def visit(self, client, arrivals_s, services_s, state="w2"):
        """A client that comes at each of `arrivals_s`, but never before its last job is done."""
        for arrives_s, service_s in zip(arrivals_s, services_s, strict=True):
            if arrives_s > self.env.now:
                yield self.env.timeout(arrives_s - self.env.now)
            yield from self._bring(client, service_s, state)

    def tour(self, client, jobs):
        """A client that comes `away_s` after its last job was done, for each (away_s, service_s) of its `jobs`."""
        for away_s, service_s in jobs:
            yield self.env.timeout(away_s)
            yield from self._bring(client, service_s, "w2")

    def _bring(self, client, service_s, state):
        job = Job(client, state, self.env.now, service_s, customer=self, branch=self.env.event())
        self.station.serve(job)
        yield job.branch
        self.seen.append((client, job.arrived_s, job.started_s, self.env.now))

    def begin(self, job):
        """As a customer of the station: nothing to do."""

    def served(self, job):
        """Let the client go on."""
        job.branch.succeed()

    def run(self, *flows):
        for flow in flows:
            self.env.process(flow)
        self.env.run()
        return self.seen
