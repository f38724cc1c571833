"""A third clock, written from docs/methods alone: one heap, no SimPy, nothing fast and nothing shared with the others.

Devices and links serve one operation at a time as requested, the server as docs/methods/orders.md says. It knows
constant rates, clients that are always there, and the orders below. Rows are those of a run: (node, kind, round, step,
client, requested, started, ended, MACs, bytes).
"""

import heapq
from itertools import count
from math import inf

from sfl_sim.ops import AGGREGATOR, SERVER, Expect, Occur, On, Par, Present, Read, Send, Start, Value, Wait

END_OF_INSTANT = 1


def turns(order, jobs, burst):
    """The sequence of clients of a strict order: the pseudo-code of docs/methods/orders.md#the-cyclic-list."""
    queue, left, forwards, visits = [c for c in jobs if jobs[c]], dict(jobs), True, 0
    clients = len(queue)
    while queue:
        c = queue.pop(0 if forwards else -1)
        for _ in range(min(burst, left[c])):
            left[c] -= 1
            yield c
        if left[c]:
            queue.insert(len(queue) if forwards else 0, c)
        visits += 1
        if order == "cyclic_reverse" and visits % clients == 0:
            forwards = not forwards


def is_client(node):
    return node not in (SERVER, AGGREGATOR)


class NaiveClock:
    """Runs the flows of rounds; `macs_per_s`, `up_bps` and `down_bps` are lists, one number a client."""

    def __init__(
        self, macs_per_s, up_bps, down_bps, server_macs_per_s, latency_s=0.0, order="fcfs", workers=1, burst=1
    ):
        self.macs_per_s, self.server_macs_per_s, self.latency_s = macs_per_s, server_macs_per_s, latency_s
        self.bps = {"up": up_bps, "down": down_bps}
        self.order, self.workers, self.burst = order, workers, burst
        self.now_s, self.rows, self.heap, self.number = 0.0, [], [], count()
        self.free_s = {}  # of devices and links
        self.jobs, self.busy, self.announced = [], {}, {}
        self.waits = []

    def at(self, time_s, act, *args, priority=0):
        heapq.heappush(self.heap, (time_s, priority, next(self.number), act, args))

    def run(self, flow, round):
        self.round, ended = round, []
        self.at(self.now_s, self.go, flow, None, ended.append)
        while not ended:
            self.now_s, _, _, act, args = heapq.heappop(self.heap)
            act(*args)

    def go(self, flow, result, then):
        try:
            op = flow.send(result)
        except StopIteration as stop:
            then(stop.value)
            return
        getattr(self, type(op).__name__.lower())(op, lambda result: self.go(flow, result, then))

    def record(self, row, size, result, then):
        node, kind, step, client, requested_s, started_s = row
        macs, size_bytes = (0.0, size) if node in ("uplink", "downlink", "peer") else (size, 0)
        self.rows.append((node, kind, self.round, step, client, requested_s, started_s, self.now_s, macs, size_bytes))
        then(result)

    def on(self, op: On, then):
        macs, result = op.step.work(op.state, *op.args).macs, op.step.out(op.state, *op.args)
        result.maker = op.node
        if is_client(op.node):
            start_s = max(self.now_s, self.free_s.get(op.node, 0.0))
            self.free_s[op.node] = start_s + macs / self.macs_per_s[op.node]
            row = ("client", op.step.name, result.step, op.node, self.now_s, start_s)
            if self.free_s[op.node] == self.now_s:  # without work, and not in turn
                self.record(row, macs, result, then)
            else:
                self.at(self.free_s[op.node], self.record, row, macs, result, then)
        else:
            made = [value.maker for value in op.args if isinstance(value, Value)][:1]
            client = made[0] if made and made[0] is not None and is_client(made[0]) else -1
            node, state, self_s = "server" if op.node == SERVER else "aggregator", op.state.guard, self.now_s
            self.jobs.append((self_s, client, next(self.number), node, state, op.step.name, macs, result, then))
            self.at(self.now_s, self.decide, priority=END_OF_INSTANT)

    def decide(self):
        """Serve, for each node, the state whose oldest job came first, while a worker is free."""
        for node, workers in (("server", self.workers), ("aggregator", inf)):
            for oldest in sorted(job for job in self.jobs if job[3] == node):
                state = oldest[4]
                taken = sum(node == one for one in self.busy.values())
                if taken < workers and (node, state) not in self.busy and (job := self.choice(node, state)):
                    self.jobs.remove(job)
                    self.busy[node, state] = node
                    self.at(self.now_s + job[6] / self.server_macs_per_s, self.served, job, self.now_s)

    def choice(self, node, state):
        """The job of a state that is next: one that was not announced, or the one that the order says."""
        mine = sorted(job for job in self.jobs if job[3] == node and job[4] is state)
        left, sequence, turn = self.announced.get(state, ({}, None, 1))
        ranked = [job for job in mine if left.get(job[1])]
        if not mine or len(ranked) < len(mine):
            return next((job for job in mine if not left.get(job[1])), None)
        begun = [c for c, n in left.items() if n % turn]
        if begun:  # a row of jobs, of which the next must come before any other
            chosen = next((job for job in ranked if job[1] == begun[0]), None)
            if self.order not in ("fcfs", "shortest_job"):
                del sequence[: bool(chosen)]
        elif self.order == "fcfs":
            chosen = ranked[0]
        elif self.order == "shortest_job":
            chosen = min(ranked, key=lambda job: job[6])
        else:
            chosen = next((job for job in ranked if job[1] == sequence[0]), None)
            del sequence[: bool(chosen)]
        if chosen:
            left[chosen[1]] -= 1
        return chosen

    def served(self, job, start_s):
        arrived_s, client, _, node, state, kind, macs, result, then = job
        del self.busy[node, state]
        self.at(self.now_s, self.decide, priority=END_OF_INSTANT)
        self.record((node, kind, result.step, client, arrived_s, start_s), macs, result, then)

    def send(self, op: Send, then):
        payload, src, dst = op.payload.snapshot(), op.src, op.dst
        if src == dst or not (is_client(src) or is_client(dst)):
            then(payload)
            return
        links = [(way, client) for way, client in (("up", src), ("down", dst)) if is_client(client)]
        start_s = max([self.now_s, *(self.free_s.get(link, 0.0) for link in links)])
        until_s = start_s + 8 * payload.size_bytes / min(self.bps[way][client] for way, client in links)
        self.free_s.update(dict.fromkeys(links, until_s))
        node = "downlink" if not is_client(src) else "peer" if is_client(dst) else "uplink"
        row = (node, payload.kind, payload.step, src if is_client(src) else dst, self.now_s, start_s)
        self.at(until_s + len(links) * self.latency_s, self.record, row, payload.size_bytes, payload, then)

    def par(self, op: Par, then):
        values, missing = [None] * len(op.flows), set(range(len(op.flows)))

        def ended(number, value):
            values[number] = value
            missing.discard(number)
            if not missing:
                self.at(self.now_s, then, values if op.names is None else dict(zip(op.names, values, strict=True)))

        for number, flow in enumerate(op.flows):
            self.at(self.now_s, self.go, flow, None, lambda value, number=number: ended(number, value))
        if not op.flows:
            self.at(self.now_s, then, [] if op.names is None else {})

    def start(self, op: Start, then):
        self.at(self.now_s, self.go, op.flow, None, lambda value: None)
        then(None)

    def wait(self, op: Wait, then):
        self.waits.append((op.events, then))
        if op.at_most_s < inf:
            self.at(self.now_s + op.at_most_s, self.wake, self.waits[-1])
        self.at(self.now_s, self.look)

    def look(self):
        for one in [one for one in self.waits if all(event.occurred for event in one[0])]:
            self.wake(one)

    def wake(self, one):
        if one in self.waits:
            self.waits.remove(one)
            one[1](all(event.occurred for event in one[0]))

    def occur(self, op: Occur, then):
        op.event.occurred = True
        self.at(self.now_s, self.look)
        then(None)

    def expect(self, op: Expect, then):
        rows = {c: n // op.turn for c, n in op.jobs.items()}
        sequence = [c for c in turns(self.order, rows, self.burst) for _ in range(op.turn)]
        self.announced[op.state.guard] = dict(op.jobs), sequence, op.turn
        then(None)

    def present(self, op: Present, then):
        then(list(op.nodes))

    def read(self, op: Read, then):
        then(None)
