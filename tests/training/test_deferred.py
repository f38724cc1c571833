"""The order of operations: whatever waits, is merged or is read early, the numbers are as if all ran at once."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.models.replica import Joined, Replica
from sfl_sim.models.weights import Weights
from sfl_sim.ops import On, State, Value
from sfl_sim.training.batched import Batched
from sfl_sim.training.eager import Eager

PRIME = 2**31 - 1
PART = SimpleNamespace(size_bytes=0, buffer_views=lambda buffers: [])


def replica(number):
    """Make a replica that holds a whole number."""
    return Replica(PART, Weights(PART, torch.tensor([number]), torch.zeros(0)))


class Secret(State):
    """A state that is made of others and does not say so."""

    def __init__(self, hidden):
        super().__init__("secret")
        self.hidden = hidden

    def snapshot(self):
        return Secret(self.hidden.snapshot())


class Alone:
    """A step that cannot run for many, and that touches more than it names: its results depend on one another."""

    def __init__(self):
        self.calls = 0

    def run(self, state, *args):
        self.calls += 1
        return mix(state, self.calls, args)


@dataclass(frozen=True)
class Together:
    """A step that can, with others of its colour."""

    colour: int

    def run(self, state, *args):
        return mix(state, self.colour, args)

    def batch_key(self, state, *args):
        return self, len(args)

    def refusal(self, state, *args):
        return None

    def run_many(self, states, args):
        assert len(set(map(id, states))) == len(states) > 1
        return [self.run(state, *its) for state, its in zip(states, args, strict=True)]


def mix(state, salt, args):
    """Change a state so that everything that went in matters, and give a number that tells of it."""
    before, given = number(state) + salt, sum(map(number, args))
    for place, member in enumerate(state.members):
        member.content.flat.fill_((before * 31 + given + place) % PRIME)
    return (before * 7 + given) % PRIME


def number(arg):
    """Resolve an argument to its number."""
    if isinstance(arg, list):
        return sum(map(number, arg))
    if isinstance(arg, Joined):
        return sum(map(number, arg.members))
    return int(arg.content.flat.sum()) if isinstance(arg, Replica) else arg.load()


INDEX = st.integers(0, 30)
PROGRAM = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 2), INDEX, st.lists(INDEX, max_size=2), st.lists(INDEX, max_size=2)),
        st.tuples(st.just("step on two"), st.integers(0, 2), INDEX, INDEX),
        st.tuples(st.sampled_from(["copy", "copy two", "copy secret", "read"]), INDEX, INDEX),
        st.just(("finish",)),
    ),
    max_size=40,
)


def outcome(program, executor):
    """All numbers after a program whose indices count states and values modulo how many there are."""
    states = [replica(1000 + i) for i in range(3)]
    values = [Value("given", content=7)]
    steps = [Alone(), Together(1), Together(2)]
    read = []

    def state(index):
        return states[index % len(states)]

    for what, *how in program:
        if what == "step":
            kind, index, taken, looked_at = how
            args = [*(values[i % len(values)] for i in taken), [state(i) for i in looked_at]]
            result = Value("result")
            result.content = executor.run(On(0, steps[kind], state(index), *args))
            values.append(result)
        elif what == "step on two":
            kind, *both = how
            result = Value("result")
            result.content = executor.run(On(0, steps[kind], Joined(PART, list(map(state, both))), values[0]))
            values.append(result)
        elif what == "copy":
            states.append(executor.snapshot(state(how[0])))
        elif what == "copy two":
            states.append(executor.snapshot(Joined(PART, [state(how[0]), state(how[1])])))
        elif what == "copy secret":
            states.append(executor.snapshot(Secret(state(how[0]))).hidden)
        elif what == "read":
            read.append(executor.read(values[how[0] % len(values)]))
        elif isinstance(executor, Batched):
            executor.finish()
    if isinstance(executor, Batched):
        executor.finish()
    return [number(replica) for replica in states], [executor.read(value) for value in values], read


@settings(deadline=None, max_examples=200)
@given(PROGRAM, st.integers(2, 4), st.integers(2, 3))
def test_whatever_the_program_the_numbers_are_those_of_running_everything_at_once(program, max_group, min_group):
    assert outcome(program, Batched(max_group, min_group)) == outcome(program, Eager())
