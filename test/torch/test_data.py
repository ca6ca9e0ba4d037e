"""What the model is given: the witness, loop variables, the place in a loader, and loaders without one. No job runs
here."""
import collections
import contextlib
import copy
import functools
import io
import itertools
import os
import pickle
import random
import subprocess
import sys
import types
import unittest
import unittest.mock
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")
EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples", "minimal")
sys.path[:0] = [HERE, os.path.dirname(HERE), PACKAGE]

import harness  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import pawl  # noqa: E402
from pawl import (  # noqa: E402
    data_position,
    loader_parts,
    loaders,
    protect,
    sampler_state,
    script_exit,
    script_frames,
    tagged_values,
    unprotected_state,
    volatile_state,
    witness,
)

# As a package that draws for the loop, with variables of its own.
library = {}
exec(compile("""
class Bar:
    def __init__(self, drawn):
        self.drawn = drawn

    def __iter__(self):
        drawn, x, n = self.drawn, None, 0
        for each in drawn:
            yield each
            n += 1

def progress(drawn):
    return iter(Bar(drawn))
""", os.path.join("lib", "site-packages", "bar.py"), "exec"), library)
Bar, progress = library["Bar"], library["progress"]


class Doubled(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, inputs):
        return 2 * super().forward(inputs)


class WitnessTest(unittest.TestCase):
    def setUp(self):
        self.model, self.settled, self.said = nn.Linear(4, 2), True, []
        self.witness = self.make()

    def make(self, warn=None):
        made = witness.Witness(lambda: self.settled, warn)
        made.watch([self.model])
        return made

    def step(self, number, *inputs):
        self.witness.begin(number)
        try:
            for each in inputs:
                self.model(each)
        finally:
            self.witness.end()

    def test_other_inputs_in_a_step_that_is_done_again(self):
        batches = [torch.randn(3, 4) for _ in range(4)]
        for number in (1, 2, 3):
            self.step(number, batches[number])
        self.step(2, batches[2].clone())
        with self.assertRaisesRegex(pawl.Refused, r"argument 1 of Linear \(.*test_data.py:\d+\) is not what it was "
                                                  r"when step 3 was done before the loss"):
            self.witness.begin(3)
            self.model(batches[1] + 0)

    def test_the_variable_is_named(self):
        self.step(1, torch.ones(3, 4))
        points = torch.zeros(3, 4)
        with self.assertRaisesRegex(pawl.Refused, r'points, which Linear is given .*protect\(state={"points": points}'):
            self.witness.begin(1)
            self.model(points)

    def test_a_try_that_was_cut_short_counts_and_loses_nothing(self):
        first, second = torch.ones(3, 4), torch.zeros(3, 4)
        self.step(5, first, second)
        self.step(5, first)
        with self.assertRaises(pawl.Refused):
            self.step(5, first, first)

    def test_what_a_lost_step_computes_does_not_count(self):
        self.settled = False
        self.step(5, torch.ones(3, 4))
        self.settled = True
        self.step(5, torch.zeros(3, 4))

    def test_another_process_knows_the_last_two_steps(self):
        for number in (1, 2, 3):
            self.step(number, torch.full((3, 4), float(number)))
        saved = self.witness.part().save()
        self.assertEqual(["2", "3"], list(saved["steps"]))
        self.witness = self.make()
        self.witness.part().load(saved)
        self.step(2, torch.full((3, 4), 2.0))
        with self.assertRaises(pawl.Refused):
            self.step(3, torch.full((3, 4), 2.0))

    def test_by_consent_it_is_only_said(self):
        self.witness = self.make(self.said.append)
        self.step(1, torch.ones(3, 4), torch.ones(3, 4))
        self.step(1, torch.zeros(3, 4), torch.zeros(3, 4))
        self.assertEqual(1, len(self.said))

    def test_outside_of_blocks_and_without_gradients_nothing_counts(self):
        self.model(torch.ones(3, 4))
        self.witness.begin(1)
        with torch.no_grad():
            self.model(torch.ones(3, 4))
        self.witness.end()
        self.assertEqual({}, self.witness.part().save()["steps"])

    def test_a_copy_of_the_module_has_none(self):
        self.witness.begin(1)
        for each in (copy.deepcopy(self.model), pickle.loads(pickle.dumps(self.model))):
            each(torch.ones(3, 4))
        self.witness.end()
        self.assertEqual({}, self.witness.part().save()["steps"])

    def test_a_module_that_is_compiled_in_place(self):
        graphs, self.model = [], Doubled()
        self.witness.watch([self.model])
        self.model.compile(backend=lambda graph, _: (graphs.append(graph), graph.forward)[1])
        for number in range(1, 6):
            self.step(number, torch.ones(3, 4))
        self.assertEqual((1, ["4", "5"]), (len(graphs), list(self.witness.part().save()["steps"])))
        with self.assertRaises(pawl.Refused):
            self.step(4, torch.zeros(3, 4))

    def test_a_module_that_becomes_a_script(self):
        script = torch.jit.script(self.model)
        self.assertEqual(self.model(torch.ones(3, 4)).tolist(), script(torch.ones(3, 4)).tolist())
        self.model = script
        self.witness.watch([script])
        self.step(1, torch.ones(3, 4))
        self.assertEqual(["1"], list(self.witness.part().save()["steps"]))

    def taken_over(self, before, after):
        """What the seat was given in the steps before, and what another process gives it after those."""
        self.witness = self.make()
        for number, value in enumerate(before):
            self.step(number + 1, torch.full((3, 4), float(value)))
        saved = tagged_values.loads(tagged_values.dumps("", self.witness.part().save()))
        self.witness = self.make()
        self.witness.part().load(saved)
        for number, value in enumerate(after):
            self.step(len(before) + number + 1, torch.full((3, 4), float(value)))

    def test_data_that_begins_anew_in_a_new_process(self):
        for begin in (1, 2):
            with self.assertRaisesRegex(pawl.Refused, f"taken over its seat at step 9, .* in step {begin + 1} and"):
                self.taken_over(range(9), range(begin, 9))
        self.taken_over(range(9), range(9, 18))
        for period in (1, 3, 4, 9):  # the same few batches again and again
            for length in range(5, 20):
                values = [each % period for each in range(30)]
                self.taken_over(values[:length], values[length:])

    def test_digests(self):
        large = torch.arange(100000.0).reshape(100, 1000)
        other = large.clone()
        other[:, 500:] += 1
        self.assertNotEqual(witness.digest(large), witness.digest(other))
        self.assertEqual(witness.digest(large), witness.digest(large.t().contiguous().t()))
        self.assertNotEqual(witness.digest(torch.zeros(4)), witness.digest(torch.zeros(2, 2)))
        self.assertNotEqual(witness.digest(torch.zeros(4)), witness.digest(torch.zeros(4, dtype=torch.int32)))
        for kind in (torch.bool, torch.bfloat16, torch.complex64, torch.uint16):
            self.assertNotEqual(witness.digest(torch.zeros(4, dtype=kind)), witness.digest(torch.ones(4, dtype=kind)))
        followed = [torch.full((3,), value, requires_grad=True) for value in (1.0, 2.0)]
        self.assertEqual(*map(witness.digest, followed))
        self.assertNotEqual(witness.digest(0.5), witness.digest(0.25))
        self.assertEqual(witness.digest(object()), witness.digest(object()))


class CarriedTest(unittest.TestCase):
    def found(self, change, protected=()):
        """What is named when step 3 gives `batch` to the model; `change` makes the next one before it begins."""
        carried, batch, data = witness.Carried(), torch.zeros(3, 4), torch.arange(40.0).reshape(10, 4)
        held, loss = [torch.zeros(2)], torch.zeros(())
        carried.look(sys._getframe(), False, list)
        batch, given = change(batch, data)
        loss = loss + 1
        carried.look(sys._getframe(), True, lambda: [batch] if protected else [])
        del held
        return carried.name_of(given() if callable(given) else given)

    def test_a_batch_that_is_fetched_ahead(self):
        new = torch.ones(3, 4)
        self.assertEqual("batch", self.found(lambda _batch, _data: (new, new)))
        self.assertEqual("batch", self.found(lambda _batch, _data: (new, lambda: new[1:].view(-1))))
        self.assertIsNone(self.found(lambda _batch, _data: (new, new), protected=True))

    def test_what_was_there_or_is_made_in_the_step(self):
        self.assertIsNone(self.found(lambda batch, _data: (batch, batch)))
        self.assertIsNone(self.found(lambda batch, data: (batch, data[2:5])))
        self.assertIsNone(self.found(lambda batch, _data: (batch, lambda: torch.ones(3, 4))))

    def drawn(self, *, twice=False):
        """The same, where the script draws steps by something of its own that a package's iterator draws from."""
        carried = witness.Carried()

        def steps():
            yield
            carried.look(sys._getframe(1), False, list)
            yield
            carried.look(sys._getframe(1), True, list)
            yield

        def own(drawn):
            yield from drawn
        batch = torch.zeros(3)
        for number, _ in enumerate(own(progress(steps()))):
            if number == 2:
                return carried.name_of(batch)
            batch = torch.full((3,), float(number))
            if twice and number == 1:
                carried.given(batch[1:])
        return "no third step"

    def test_behind_other_iterators(self):
        self.assertEqual("batch", self.drawn())

    def test_what_reached_the_model_in_the_step_before(self):
        self.assertIsNone(self.drawn(twice=True))

    def test_in_a_generator(self):
        def ahead():
            following = torch.zeros(3)
            while True:
                batch, following = following, torch.zeros(3)
                yield batch
        batches, carried = ahead(), witness.Carried()
        next(batches)
        carried.look(sys._getframe(), False, list)
        next(batches)
        carried.look(sys._getframe(), True, list)
        self.assertEqual("following in the generator batches", carried.name_of(next(batches)))


class LoopVariablesTest(unittest.TestCase):
    def test_variables_that_get_other_values_are_put_back(self):
        first, count, state = torch.zeros(2), 0, {}
        state.update(first=first, count=count)
        part = volatile_state.object_part("state0", state)
        part.bind(sys._getframe())
        first, count = torch.ones(2), 1
        with script_frames.loop_waiting(sys._getframe()):
            saved = part.save()
        kept = first
        first, count = torch.full((2,), 2.0), 2
        alias = first
        with script_frames.loop_waiting(sys._getframe()):
            part.load(saved)
        self.assertEqual(([1.0, 1.0], 1), (first.tolist(), count))
        self.assertIs(first, alias)
        self.assertEqual(([1.0, 1.0], 1), (kept.tolist(), state["count"]))
        self.assertIs(first, state["first"], "the entry holds no batch of long ago")
        state["count"], count = 7, 3
        with script_frames.loop_waiting(sys._getframe()):
            self.assertEqual({"value": 7}, part.save()["whole"]["dict"]["count"], "the script's own")
            part.load(saved)
        self.assertEqual((1, 1), (count, state["count"]))
        with script_frames.loop_waiting(sys._getframe()):
            self.assertEqual(saved["variables"]["count"], part.save()["variables"]["count"])

    def test_variables_behind_other_iterators(self):
        """`x` and `n` are names in the package's frame, too; `far` is this frame's, and train() gives it away."""
        far, part, seen = torch.zeros(1), None, []
        distant = {"far": far}

        def steps():
            part.bind(sys._getframe(1))
            yield 0
            with script_frames.loop_waiting(sys._getframe(1)):
                saved = part.save()
            yield 1
            with script_frames.loop_waiting(sys._getframe(1)):
                part.load(saved)
            yield 2

        def own(drawn):
            yield from drawn

        def train():
            nonlocal part
            x, n = torch.zeros(2), 0
            part = volatile_state.object_part("state0", {"x": x, "n": n, **distant})
            for number in own(progress(steps())):
                seen.append((x.tolist(), n, far_now()))
                x, n = torch.full((2,), 1.0 + number), n + 1
                change(2.0 + number)

        def far_now():
            return far.item()

        def change(value):
            nonlocal far
            far = torch.full((1,), value)
        train()
        self.assertEqual([([0.0, 0.0], 0, 0.0), ([1.0, 1.0], 1, 2.0), ([1.0, 1.0], 1, 2.0)], seen)

    def test_an_entry_that_is_no_variable_stays_an_entry(self):
        count = 5
        part = volatile_state.object_part("state0", {"count": 1000, "other": count})
        part.bind(sys._getframe())
        self.assertNotIn("variables", part.save())

    def test_the_data_is_not_written(self):
        data = torch.arange(8.0).reshape(4, 2)
        state = {"batch": data[0:1]}
        part = volatile_state.object_part("state0", state)
        saved = part.save()
        state["batch"] = data[1:2]
        part.load(saved)
        self.assertEqual([[0.0, 1.0]], state["batch"].tolist())
        self.assertEqual(list(range(8)), data.flatten().tolist())


class LoaderWatchTest(unittest.TestCase):
    def setUp(self):
        self.protected, self.step = protect.Protected(0, 1), 0
        self.watch = data_position.LoaderWatch(self.protected, lambda: self.step)
        self.addCleanup(self.watch.close)
        self.data = TensorDataset(torch.arange(40.0))

    def test_a_loader_that_feeds_two_steps_is_named(self):
        train_loader = DataLoader(self.data, batch_size=4)
        batches = iter(train_loader)
        next(batches)
        next(batches)
        self.step = 1
        with self.assertRaisesRegex(pawl.Refused, r"batches gives batches to one step after the other, .*job.batches"):
            next(batches)
        with self.assertRaisesRegex(pawl.Refused, r"train_loader gives .*job.batches\(\(other, train_loader\), "):
            for self.step, _ in enumerate(train_loader):
                pass

    def test_evaluations_and_single_batches(self):
        for self.step in range(3):
            self.assertEqual(10, len(list(DataLoader(self.data, batch_size=4))))
            next(iter(DataLoader(self.data, batch_size=4, shuffle=True)))
        staying = DataLoader(self.data, batch_size=4, num_workers=1, persistent_workers=True)
        self.addCleanup(loaders._end, staying)
        for self.step in range(3):
            self.assertEqual(10, len(list(staying)))
        rolling = iter(DataLoader(self.data, batch_size=4))
        for self.step in (None, None):
            next(rolling)

    def test_a_protected_sampler(self):
        sampler = pawl.ElasticSampler(40, 4, rank=0, world=1)
        self.protected.add([sampler], None)
        batches = iter(DataLoader(self.data, batch_sampler=sampler))
        for self.step in range(5):
            next(batches)

    def test_drawn_before_the_first_step(self):
        sampler = pawl.ElasticSampler(40, 4, rank=0, world=1)
        self.protected.add([sampler], None)
        data_position.refuse_ahead(self.protected)
        batch = next(iter(DataLoader(self.data, batch_sampler=sampler)))
        with self.assertRaisesRegex(pawl.Refused, "1 batch was drawn from the ElasticSampler before step 1"):
            data_position.refuse_ahead(self.protected)
        self.protected.add([], {"batch": batch})
        data_position.refuse_ahead(self.protected)


class LateChance:
    """As of some libraries: it has a generator once it has made a batch."""

    chance = None

    def __call__(self, samples):
        if self.chance is None:
            self.chance = random.Random(7)
        return torch.utils.data.default_collate(samples)


class Blurred(Dataset):
    """Its samples have random noise of all three kinds."""

    def __len__(self):
        return 21

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item(), random.random()])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(21.0))


class StatefulStream(IterableDataset):
    def __init__(self):
        self.place, self.resumed = 0, False

    def __iter__(self):
        self.place, self.resumed = self.place if self.resumed else 0, False
        while self.place < 21:
            self.place += 1
            yield torch.tensor(float(self.place - 1))

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place, self.resumed = state["place"], True


class ShuffledStream(StatefulStream):
    """Its order is that of the epoch that it was told, and who tells it one sets it to its begin."""

    def __init__(self):
        super().__init__()
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.place, self.resumed = 0, False
        self.order = torch.randperm(21, generator=torch.Generator().manual_seed(epoch)).tolist()

    def __iter__(self):
        return (torch.tensor(self.order[int(place)]) for place in super().__iter__())


class Resumed(DataLoader):
    """Knows its place by the batches that it has given."""

    given = begin = 0

    def __iter__(self):
        batches, self.begin, self.given = super().__iter__(), 0, self.begin
        for _ in range(self.given):
            next(batches)
        return self.counted(batches)

    def counted(self, batches):
        for batch in batches:
            self.given += 1
            yield batch

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.begin = state["given"]


class ResumedByOrder(DataLoader):
    """As torchdata's: makes its order again from the generator's state. After a state of an epoch's end it gives
    nothing twice, and draws each time."""

    through, given, state = 0, 0, None

    def __iter__(self):
        if self.through:
            self.through -= 1
            torch.randperm(3, generator=self.generator)
            return iter(())
        self.given = 0
        if self.state is not None:
            self.generator.set_state(torch.tensor(self.state["begin"], dtype=torch.uint8))
            self.given, self.state = self.state["given"], None
            torch.randperm(3)
        self.begin = self.generator.get_state().tolist()
        return self.counted(torch.randperm(21, generator=self.generator).split(4)[self.given:])

    def counted(self, batches):
        for batch in batches:
            self.given += 1
            torch.rand((), generator=self.generator)
            yield batch

    def state_dict(self):
        return {"given": self.given, "begin": self.begin} if self.given or self.state is None else self.state

    def load_state_dict(self, state):
        self.state, self.through = (None, 2) if state["given"] == 6 else (state, 0)


class Moody(Sampler):
    """Asks everybody's random numbers at every index."""

    def __iter__(self):
        for _ in range(21):
            yield int(torch.randint(21, ()))

    def __len__(self):
        return 21


class Buckets(Sampler):
    """Shuffles its own list in place."""

    def __init__(self, size=21, anew=False):
        self.indices, self.generator, self.anew = list(range(size)), torch.Generator().manual_seed(3), anew

    def __iter__(self):
        if self.anew:
            self.indices = list(range(len(self.indices)))
        order = torch.randperm(len(self.indices), generator=self.generator).tolist()
        self.indices[:] = [self.indices[each] for each in order]
        return iter(list(self.indices))

    def __len__(self):
        return len(self.indices)


class Epochs:
    """A batch sampler whose epochs are shorter and shorter: it makes the list of one when it is told its number."""

    def __init__(self, size):
        self.size = size
        self.set_epoch(0)

    def set_epoch(self, epoch):
        generator = torch.Generator().manual_seed(epoch)
        batches = torch.randperm(self.size, generator=generator)[:self.size - epoch].split(4)
        self.batches = [each.tolist() for each in batches]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class Estimated(Sampler):
    """Of ten batches in each epoch, whatever its length says."""

    def __init__(self, says):
        self.says, self.epoch = says, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.says

    def __iter__(self):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(self.epoch))
        return iter([each.tolist() for each in order.split(2)])


class Anew(Sampler):
    """Makes its generator for each epoch, and a list of more values than are kept, which it uses up."""

    def __init__(self):
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.chance = random.Random(epoch)
        self.bases = list(range(4200))

    def __iter__(self):
        order = self.chance.sample(range(21), 21)
        return (each - self.bases.pop() % 1 for each in order)

    def __len__(self):
        return 21


class Later(Sampler):
    """Makes its generator when its __iter__ begins: `make` makes it of the epoch, and is told what there is."""

    def __init__(self, make):
        self.make, self.epoch, self.generator = make, 0, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.generator = self.make(self.epoch, self.generator)
        return iter(torch.randperm(21, generator=self.generator).tolist()
                    if isinstance(self.generator, torch.Generator) else self.generator.permutation(21).tolist())

    def __len__(self):
        return 21


class Heard(Sampler):
    """Of long lists, with a note of what it was told."""

    def __init__(self, shuffle, size=10000):
        self.shuffle, self.notes, self.order = shuffle, types.SimpleNamespace(told=[]), list(range(size))

    @property
    def told(self):
        return self.notes.told

    def set_epoch(self, epoch):
        self.told.append(epoch)
        self.order = self.shuffle(self.order, epoch)

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return 10000


def shuffled_further(order, epoch):
    random.Random(epoch).shuffle(order)
    return order


def shuffled_anew(_order, epoch):
    return random.Random(epoch).sample(range(10000), 10000)


def shuffled_to_be_used_up(order, epoch):
    return iter(shuffled_anew(order, epoch))


class Scheduled(Heard):
    """Epochs of these lengths, and no others."""

    def __init__(self, schedule):
        super().__init__(lambda order, epoch: list(range(schedule[epoch])), schedule[0])

    def __len__(self):
        return len(self.order)


class Around(Sampler):
    """Has another one, and doesn't call it sampler."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


class Reseeded(Dataset):
    """The script gives it a generator for each epoch."""

    def __init__(self):
        self.inside = [types.SimpleNamespace(chance=numpy.random.default_rng(0))]

    def __len__(self):
        return 21

    def __getitem__(self, index):
        return index + self.inside[0].chance.random()


class Crowd(Dataset):
    """Of many parts, each with a generator of its own."""

    def __init__(self):
        self.parts = [Noise() for _ in range(80)]

    def __len__(self):
        return 21

    def __getitem__(self, index):
        return index + torch.tensor(self.parts[-1 - index % 2].generator.random())


class Hidden(Sampler):
    """Its generator is where nobody looks."""

    def __init__(self):
        generator = random.Random(4)
        self.draw = lambda: generator.sample(range(21), 21)

    def __iter__(self):
        return iter(self.draw())

    def __len__(self):
        return 21


class Noise:
    def __init__(self):
        self.generator = random.Random(8)


class Noisy(Dataset):
    """With generators of its own, and one that may be made late."""

    def __init__(self, late=False):
        self.generator, self.inside, self.late = torch.Generator().manual_seed(7), [Noise()], late

    def __len__(self):
        return 21

    def __getitem__(self, index):
        if self.late:
            self.later = random.Random(1)
        return torch.tensor([index, torch.rand((), generator=self.generator).item(),
                             self.inside[0].generator.random()])


CHANCE = random.Random(5)


def shaken(values):
    return values + CHANCE.random()


def turning(seed):
    dice = random.Random(seed)

    def turn(values):
        return -values if dice.random() < 0.5 else values
    return turn


class NoisyOutside(Dataset):
    """With generators of the script's and of functions' own."""

    def __init__(self):
        self.transforms = [turning(6), turning(9)]

    def __len__(self):
        return 21

    def __getitem__(self, index):
        first, second = self.transforms
        return shaken(first(torch.tensor([index + 1.0]))) + second(torch.tensor([100.0]))


def faded(values, chance=random.Random(10), *, later=random.Random(11)):  # noqa: B008 - what the test is about
    return values * chance.random() + later.random()


def strewn(chance, values):
    return values + chance.random()


class NoisyBehind(Dataset):
    """Of a class, of a partial, and of defaults."""

    chance = random.Random(7)

    def __init__(self):
        self.strewn = functools.partial(strewn, random.Random(8))

    def __len__(self):
        return 21

    @staticmethod
    def turned(values):
        return values + CHANCE.random()

    def __getitem__(self, index):
        return faded(self.strewn(self.turned(torch.tensor([index + self.chance.random()]))))


def collated(chance):
    def collate(rows):
        return torch.stack(rows) + chance.random()
    return collate


class Shaken(Dataset):
    """Draws from what it is given."""

    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 21

    def __getitem__(self, index):
        return index + torch.rand(1, generator=self.generator)


def mark_dataset(worker):
    info = torch.utils.data.get_worker_info()
    info.dataset.mark = 40.0 + worker
    assert type(info.dataset) is Marked


class Marked(Dataset):
    mark = 0.0

    def __len__(self):
        return 21

    def __getitem__(self, index):
        return torch.tensor(self.mark)


class PlaceTest(unittest.TestCase):
    """A loop of two epochs and more that draws random numbers itself, as a model with dropout does."""

    STEPS = 13

    def vanilla(self, make, epochs=3):
        torch.manual_seed(1)
        random.seed(1)
        loader, seen = make(), []
        for epoch in range(epochs):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                seen.append((batch.tolist(), torch.rand(()).item()))
        return seen[:self.STEPS]

    def ours(self, make, losses=(), anew=False):
        """`losses`: at the begin of this step, back to the window of that one; `anew`: in another process."""
        torch.manual_seed(1)
        random.seed(1)
        losses, place = dict(losses), loaders.place_in(make())
        step, seen, windows = 0, {}, {}
        while step < self.STEPS:
            windows[step] = tagged_values.dumps("", [place.part("").save(), volatile_state.save_random()])
            if step in losses:
                step = losses.pop(step)
                if anew:
                    place.close()
                    torch.manual_seed(99)
                    place = loaders.place_in(make())
                    place.next()
                    place.next()
                kept = tagged_values.loads(windows[step])
                volatile_state.load_random(kept[1])
                place.part("").load(kept[0])
            batch = place.next()
            seen[step] = (batch.tolist(), torch.rand(()).item())
            step += 1
        place.close()
        return list(seen.values()), place

    def same(self, make, vanilla=True):
        plain, place = self.ours(make)
        self.assertEqual((self.STEPS - 1) // 6, place.epoch)
        if vanilla:
            self.assertEqual(self.vanilla(make), plain)
        for anew in (False, True):
            self.assertEqual(plain, self.ours(make, {3: 1, 8: 5, 12: 12}, anew)[0])
            self.assertEqual(plain, self.ours(make, {6: 6, 7: 6, 9: 7}, anew)[0])
        return plain

    def test_samplers(self):
        data = Blurred()
        self.same(lambda: DataLoader(data, batch_size=4, shuffle=True))
        self.same(lambda: DataLoader(data, batch_size=4))
        self.same(lambda: DataLoader(data, sampler=SubsetRandomSampler(range(21)), batch_size=4))
        self.same(lambda: DataLoader(data, sampler=WeightedRandomSampler([0.1 + i for i in range(21)], 21),
                                     batch_size=4))
        self.same(lambda: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data, replacement=True), 4, False)))
        one = DataLoader(data, sampler=RandomSampler(data, num_samples=6), batch_size=None)
        self.assertEqual(6, len(one))
        self.same(lambda: DataLoader(data, sampler=RandomSampler(data, num_samples=6), batch_size=None))

    def test_a_distributed_sampler_is_told_the_epoch(self):
        data = TensorDataset(torch.arange(42.0))
        plain = self.same(lambda: DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, 1),
                                             collate_fn=lambda rows: torch.stack([row[0] for row in rows])))
        self.assertNotEqual(plain[0][0], plain[6][0])

    def test_a_generator_of_its_own(self):
        data = Blurred()

        def make():
            generator = torch.Generator().manual_seed(5)
            return DataLoader(data, batch_size=4, shuffle=True, generator=generator)
        self.same(make)
        self.same(lambda: DataLoader(data, batch_size=4, sampler=RandomSampler(
            data, replacement=True, generator=torch.Generator().manual_seed(5))))

    def test_workers(self):
        data = Blurred()
        plain = self.same(lambda: DataLoader(data, batch_size=4, shuffle=True, num_workers=2), vanilla=False)
        self.assertEqual([[row[0] for row in batch] for batch, _ in self.vanilla(
            lambda: DataLoader(data, batch_size=4, shuffle=True, num_workers=2))],
            [[row[0] for row in batch] for batch, _ in plain])
        self.assertEqual(self.STEPS * 4 - 6, len({row[1] for batch, _ in plain for row in batch}))

    def test_persistent_workers(self):
        data = Blurred()
        self.same(lambda: DataLoader(data, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True), False)

    def test_a_sampler_that_shuffles_its_list_in_place(self):
        data = Blurred()
        self.same(lambda: DataLoader(data, batch_size=4, sampler=Buckets()))
        self.same(lambda: DataLoader(data, batch_size=4, sampler=Buckets(), num_workers=1), vanilla=False)
        loaders.place_in(DataLoader(range(5000), batch_size=4, sampler=Buckets(5000, anew=True))).next()
        with self.assertRaisesRegex(pawl.Refused, "Buckets shuffles a list of its own in place"):
            loaders.place_in(DataLoader(range(5000), batch_size=4, sampler=Buckets(5000))).next()

    def test_a_batch_sampler_whose_epochs_are_of_other_lengths(self):
        """In the second case their lists are too long to be kept."""
        def given(size, steps, loss, anew):
            place, found = loaders.place_in(DataLoader(range(5000), batch_sampler=Epochs(size))), []
            for step in range(steps):
                if step == loss:
                    saved = tagged_values.dumps("", place.part("").save())
                    if anew:
                        place = loaders.place_in(DataLoader(range(5000), batch_sampler=Epochs(size)))
                    place.next()
                    place.part("").load(tagged_values.loads(saved))
                found.append(place.next().tolist())
            return found
        for size, steps, losses in ((9, 9, (0, 2, 3, 4, 5, 8)), (4801, 1203, (1202,))):
            plain = given(size, steps, None, False)
            for loss in losses:
                for anew in (False, True):
                    with self.subTest(size=size, loss=loss, anew=anew):
                        self.assertEqual(plain, given(size, steps, loss, anew))

    def test_from_a_checkpoint_in_epochs_of_other_lengths(self):
        def make():
            return DataLoader(range(5000), batch_sampler=Epochs(13))
        plain = loaders.place_in(make())
        batches = [plain.next().tolist() for _ in range(12)]
        self.assertEqual(3, plain.epoch)
        for done in range(12):
            place = loaders.place_in(make())
            place.seek(done)
            self.assertEqual(batches[done:], [place.next().tolist() for _ in range(12 - done)], done)
            self.assertEqual((plain.epoch, plain.total, plain.samples()), (place.epoch, place.total, place.samples()))

    def test_from_a_checkpoint_of_an_epoch_that_len_does_not_say(self):
        class Lazily(Estimated):
            def __iter__(self):
                yield from super().__iter__()

        class Endless(Estimated):
            def __iter__(self):
                return ([each] for each in itertools.cycle(range(20)))

        def refused(order, done, what):
            place = loaders.place_in(DataLoader(range(20), batch_sampler=order))
            with self.assertRaisesRegex(pawl.Refused, what):
                place.seek(done)
                for step in range(20):
                    windows = tagged_values.dumps("", place.part("").save())
                    place.next()
                    if step == 1:
                        place.part("").load(tagged_values.loads(windows))
            return place.total - done
        self.assertEqual(0, refused(Estimated(12), 11, "epoch 0 .* gives 10 batches, so what comes after 11 of it"))
        self.assertEqual(0, refused(Estimated(12), 16, "epoch 1 gives 10 batches or more where the DataLoader says 12"))
        self.assertEqual(0, refused(Estimated(8), 12, "epoch 1 gives 10 batches or more where the DataLoader says 8"))

        def told(order, done, what):
            """Batches were trained on by then: it is said, once, and the job goes on."""
            place = loaders.place_in(DataLoader(range(20), batch_sampler=order))
            place.seek(done)
            for step in range(25):
                windows = tagged_values.dumps("", place.part("").save())
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    place.next()
                if said.getvalue():
                    self.assertRegex(said.getvalue(), what)
                    for _ in range(25):
                        with contextlib.redirect_stderr(io.StringIO()) as again:
                            place.next()
                        self.assertEqual("", again.getvalue())
                    return step
                if step == 1:
                    place.part("").load(tagged_values.loads(windows))
            raise AssertionError("nothing is said")
        self.assertEqual(7, told(Lazily(12), 16, "epoch 1 gives 10 batches or more where the DataLoader says 12"))
        self.assertEqual(5, told(Lazily(8), 12, "epoch 1 gives 9 batches or more where the DataLoader says 8"))
        self.assertEqual(8, told(Endless(10), 13, "epoch 1 gives 11 batches or more"))
        place = loaders.place_in(DataLoader(range(20), batch_size=None,
                                            sampler=pawl.ElasticSampler(20, 2, rank=0, world=1)))
        with self.assertRaisesRegex(pawl.Refused, "done=3 can't be found .* give it as batch_sampler="):
            place.seek(3)

    def test_from_a_checkpoint_with_an_order_that_comes_of_what_came_before(self):
        class Advancing(Sampler):
            def __init__(self):
                self.number = self.begun = 0

            def __len__(self):
                return 20

            def __iter__(self):
                self.begun += 1
                generator = torch.Generator().manual_seed(self.number)
                self.number += self.advances
                return iter(torch.randperm(20, generator=generator).tolist())

        def told(make, done):
            place, said = loaders.place_in(make()), io.StringIO()
            with contextlib.redirect_stderr(said):
                place.seek(done)
                place.next()
            return said.getvalue()

        def own():
            return DataLoader(range(20), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))

        def everybodys():
            return DataLoader(range(20), batch_size=4, shuffle=True)

        def advancing():
            return DataLoader(range(20), batch_size=4, sampler=Advancing())
        Advancing.advances = 1
        self.assertRegex(told(advancing, 10), "done=10 is at the begin of epoch 2, and Advancing makes its order from "
                                              "begun, number: unless .*, it has the order of another")
        self.assertIn("done=8 is in the middle of epoch 1, and Advancing makes", told(advancing, 8))
        self.assertEqual("", told(advancing, 3))
        Advancing.advances = 0
        self.assertEqual("", told(advancing, 10))
        self.assertIn("at the begin of epoch 2, and RandomSampler makes its order from random", told(own, 10))
        self.assertIn("in the middle of epoch 2", told(own, 11))
        self.assertEqual("", told(everybodys, 10))
        self.assertIn("in the middle of epoch 2", told(everybodys, 11))

    def test_from_a_checkpoint_where_an_epoch_seeds_everybodys_random_numbers(self):
        class Seeding(Sampler):
            def set_epoch(self, epoch):
                random.seed(epoch)

            def __iter__(self):
                order = list(range(20))
                random.shuffle(order)
                return iter(order)

            def __len__(self):
                return 20
        first = []
        for seed in (7, 8):
            random.seed(seed)
            place = loaders.place_in(DataLoader(range(20), batch_size=5, sampler=Seeding()))
            place.seek(9)
            first.append(place.next().tolist())
        self.assertEqual(first[0], first[1], "ranks have other seeds, and one order")

    def test_who_is_told_epochs_to_find_the_place_of_a_checkpoint(self):
        def told(schedule, done, give=True, size=1):
            order = Scheduled(schedule)
            place = loaders.place_in(DataLoader(range(10000), batch_size=size, sampler=order))
            place.seek(done)
            batch = place.next().tolist() if give else None
            return batch, place.epoch, order.told
        self.assertEqual(([1], 50, [*range(51), 50]), told([4] * 51, 201))
        self.assertEqual(([3], 0, [0, 0]), told([4], 3))
        self.assertEqual(([0], 1, [0, 1, 1]), told([4, 4], 4))
        self.assertEqual((None, 2, []), told([4, 4], 8, give=False))
        self.assertEqual(([1], 2, [0, 1, 2, 2]), told([4, 3, 4], 8))
        self.assertEqual(([0], 2, [0, 1, 2, 2]), told([2, 2, 2], 4))
        shards = DistributedSampler(range(40), num_replicas=2, rank=0)
        heard = []
        shards.set_epoch = lambda epoch: heard.append(epoch) or DistributedSampler.set_epoch(shards, epoch)
        place = loaders.place_in(DataLoader(range(40), batch_size=5, sampler=shards))
        place.seek(401)
        place.next()
        self.assertEqual([0, 100, 100], heard)
        order = Scheduled([4, 3, 4])
        order.set_epoch(2)
        place = loaders.place_in(DataLoader(range(10000), batch_size=1, sampler=order))
        place.seek(5)
        saved = place.part("").save()
        for _ in range(2):
            self.assertEqual(([1], [2]), (place.next().tolist(), place.next().tolist()))
            place.part("").load(saved)

    def test_epochs_of_other_lengths_are_told_where_the_loop_counts_epochs(self):
        place = types.SimpleNamespace(epoch=0, length=lambda: 3 if place.epoch < 2 else 2, ended=lambda: None)
        lengths, told = loaders.Lengths(place), []
        for place.epoch in (0, 0, 1, 1, 2, 3):
            told.append(lengths.change())
        self.assertEqual([None] * 4, told[:4])
        self.assertIn("epoch 2 has 2 batches where the first one had 3", told[4])
        self.assertIsNone(told[5])

    def looped(self, loader, epochs, done=0):
        """The epoch of each step, and what was said."""
        job, said, found = pawl.Job(0, 1, 0, torch.device("cpu")), io.StringIO(), []
        with contextlib.redirect_stderr(said):
            for step, _ in job.batches(loader, epochs=epochs, done=done):
                with step:
                    found.append(job.epoch)
        return found, said.getvalue()

    def test_a_length_that_is_an_estimate_is_told(self):
        def loader(says, workers=0):
            return DataLoader(range(20), batch_sampler=Estimated(says), num_workers=workers)
        for workers in (0, 1):
            found, said = self.looped(loader(8, workers), 2)
            self.assertEqual([0] * 10 + [1] * 6, found)
            self.assertIn("epoch 0 gave 10 batches, and a loop over epochs= counts 8 for each, as len() of the loader",
                          said)
            self.assertEqual(1, said.count("pawl:"))
            found, said = self.looped(loader(8, workers), 1)
            self.assertEqual(8, len(found))
            self.assertIn("epoch 0 has more than the 8 batches that len() of the loader says", said)
        self.assertIn("epoch 0 gave 10 batches, and a loop over epochs= counts 12 for each",
                      self.looped(loader(12), 1)[1])
        self.assertEqual(([0] * 10 + [1] * 10, ""), self.looped(loader(10), 2))
        self.assertIn("epoch 0 gave 10 batches", self.looped((loader(8), loader(10)), 2)[1])
        self.assertEqual("", self.looped((loader(10), loader(8)), 2)[1])
        stream = StatefulStream()
        type(stream).__len__ = lambda _: 16
        self.addCleanup(delattr, type(stream), "__len__")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertIn("epoch 0 gave 6 batches, and a loop over epochs= counts 4 for each",
                          self.looped(DataLoader(stream, batch_size=4), 2)[1])

    def test_batches_of_indices_of_any_kind(self):
        """A dataset in a worker is asked for what it is asked for without pawl."""
        def batches(kind, size=3):
            return [kind([*range(begin, begin + 4)]) for begin in range(0, 4 * size, 4)]

        class Given(Dataset):
            def __len__(self):
                return 40

            def __getitem__(self, index):
                return torch.tensor([type(index) is int, type(index) is tuple, float(torch.as_tensor(index).sum())])

        class AllAtOnce(Given):
            def __getitems__(self, indices):
                return [self[indices]] * len(indices)

        ways = [{"batch_sampler": batches(kind)} for kind in (
            list, tuple, torch.tensor, numpy.array, lambda each: range(each[0], each[-1] + 1))]
        ways += [{"batch_size": None, "sampler": each} for each in (batches(tuple), batches(list), [1, 2, 3])]
        for data, way in itertools.product((Given(), AllAtOnce()), ways):
            with self.subTest(data=type(data).__name__, way=way):
                place = loaders.place_in(DataLoader(data, num_workers=1, **way))
                self.addCleanup(place.close)
                self.assertEqual([each.tolist() for each in DataLoader(data, **way)],
                                 [place.next().tolist() for _ in range(3)])

    def test_long_batches_of_indices_are_told_apart(self):
        for kind in (list, torch.tensor, numpy.array):
            one, other = list(range(3000)), list(range(3000))
            other[1500] = 7
            self.assertNotEqual(loaders._with_indices(0, kind(one)), loaders._with_indices(0, kind(other)))

    def test_a_sampler_that_gives_other_indices_again(self):
        place = loaders.place_in(DataLoader(Blurred(), batch_size=4, sampler=Hidden()))
        for _ in range(8):
            place.next()
        saved = place.part("").save()
        place.part("").load(saved)
        with self.assertRaisesRegex(pawl.Refused, "Hidden doesn't give the indices again"):
            place.next()

    def test_a_dataset_with_generators_of_its_own(self):
        def make(workers):
            return lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers)
        self.same(make(0))
        plain = self.same(make(2), vanilla=False)
        for column in (1, 2):
            self.assertEqual(self.STEPS * 4 - 6, len({row[column] for batch, _ in plain for row in batch}))
        for workers in (0, 1):
            place = loaders.place_in(DataLoader(Noisy(late=True), batch_size=4, num_workers=workers))
            self.addCleanup(place.close)
            with self.assertRaisesRegex(pawl.Refused, r"dataset.later is a random number generator that was made"):
                place.next()
                place.part("").save()

    def test_generators_outside_of_the_dataset(self):
        self.assertEqual(["CHANCE", "dice", "dice"], sorted(each.rpartition(": ")[2]
                                                    for each in loader_parts.generators_of(NoisyOutside())))

        def make(workers):
            def made():
                CHANCE.seed(5)
                return DataLoader(NoisyOutside(), batch_size=4, shuffle=True, num_workers=workers)
            return made
        self.same(make(0))
        self.same(make(2), vanilla=False)

    def test_generators_of_classes_partials_defaults_and_of_what_makes_batches(self):
        found = [each.rpartition(": ")[2]
                 for each in loader_parts.generators_of(NoisyBehind(), collated(random.Random()))]
        self.assertEqual(["CHANCE", "chance", "chance", "chance", "dataset.strewn[0]", "later"], sorted(found))
        first = [NoisyBehind.chance.getstate(), *(each.getstate() for each in faded.__defaults__),
                 faded.__kwdefaults__["later"].getstate()]

        def make(workers):
            def made():
                CHANCE.seed(5)
                chances = NoisyBehind.chance, *faded.__defaults__, faded.__kwdefaults__["later"]
                for chance, state in zip(chances, first, strict=True):
                    chance.setstate(state)
                return DataLoader(NoisyBehind(), batch_size=4, shuffle=True, num_workers=workers,
                                  collate_fn=collated(random.Random(12)))
            return made
        self.same(make(0))
        self.same(make(2), vanilla=False)

    def test_a_generator_that_dataset_and_loader_share(self):
        def make():
            generator = torch.Generator().manual_seed(3)
            return DataLoader(Shaken(generator), batch_size=4, shuffle=True, generator=generator)
        self.same(make)

    def test_generators_of_one_name_are_kept_apart_and_a_class_hides_its_bases(self):
        class Base:
            chance = random.Random(1)

            def one(self, own=random.Random(2)):  # noqa: B008 - what the test is about
                return own

        class Data(Base):
            chance = random.Random(3)

            def other(self, own=random.Random(4)):  # noqa: B008
                return own
        data = Data()
        found = [id(each) for each in loader_parts.generators_of(data).values()]
        self.assertEqual(sorted(map(id, [Data.chance, data.one(), data.other()])), sorted(found))

    def test_a_collate_fn_that_makes_its_generator_with_the_first_batch_is_told_of(self):
        for workers in (0, 1):
            collate = LateChance()
            place = loaders.place_in(DataLoader(Blurred(), batch_size=4, num_workers=workers, collate_fn=collate))
            self.addCleanup(place.close)
            with contextlib.redirect_stderr(io.StringIO()) as told:
                for _ in range(3):
                    place.next()
                    place.part("").save()
            if not workers:  # a worker's own output is another process's
                self.assertIn("collate_fn.chance is a random number generator that was made with the first batch",
                              told.getvalue())

    def test_a_dataset_that_holds_much(self):
        data = Noisy()
        data.inside[:0] = [[Noise() for _ in range(60)] for _ in range(60)]
        found = loader_parts.generators_of(data)
        self.assertEqual(["dataset.generator", "dataset.inside[60].generator"], list(found)[:2])
        self.assertLess(len(found), loader_parts.VISITED_MAX)
        for workers in (0, 1):
            with self.assertRaisesRegex(pawl.Refused, r"dataset.inside\[\d+\].* is beyond the 4096 objects"):
                loaders.place_in(DataLoader(data, batch_size=4, num_workers=workers))

    def test_a_dataset_of_many_parts(self):
        def parts(make, count=200):
            data = Noisy()
            data.inside += [make(number) for number in range(count)]
            return data
        shared = Noise()
        for make, count in ((lambda _: Noise(), 202), (lambda _: {"chance": random.Random()}, 202),
                            (lambda _: (1, "a.png"), 2), (lambda number: (number, Noise()) if number else 1, 201),
                            (lambda number: Noise() if number == 150 else [], 3), (lambda _: shared, 3)):
            data = parts(make)
            loaders.place_in(DataLoader(data, batch_size=4))
            found = loader_parts.generators_of(data)
            self.assertEqual(count, len(found))
            data.more = [0.0] * 100 + [Noise()]
            self.assertEqual(count + 1, len(loader_parts.generators_of(data)))
        data = parts(lambda _: types.SimpleNamespace(chance=shared.generator), 5000)
        loaders.place_in(DataLoader(data, batch_size=4))
        few = [random.Random(seed) for seed in range(3)]
        data = parts(lambda number: types.SimpleNamespace(chance=few[number % 3], files=["a.png"] * 100), 5000)
        loaders.place_in(DataLoader(data, batch_size=4))
        self.assertEqual(5, len(loader_parts.generators_of(data)))
        with unittest.mock.patch.object(loader_parts, "_used_by", side_effect=loader_parts._used_by) as looked:
            loader_parts.generators_of(data)
            self.assertLess(looked.call_count, 1000, "parts that share generators are not looked at each")
        data = parts(lambda _: Noise(), 5000)
        with self.assertRaisesRegex(pawl.Refused, r"dataset.inside\[\d+\].* Let the parts of the dataset share"):
            loaders.place_in(DataLoader(data, batch_size=4))

    def test_many_parts_that_are_opened_when_they_are_used(self):
        class Opened(Noisy):
            def __getitem__(self, index):
                if index < 2:
                    self.inside[50 * index + 50] = Noise()
                return super().__getitem__(index)

        data = Opened()
        data.inside = [Noise() if number < 40 else types.SimpleNamespace() for number in range(200)]

        def give(first):
            place = loaders.place_in(DataLoader(data, batch_size=1, sampler=[first, 5]))
            place.next()
            place.part("").save()
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            give(1)
        self.assertIn("dataset.inside[100].generator is a random number generator that was made with the first batches",
                      told.getvalue())
        with self.assertRaisesRegex(pawl.Refused, r"inside\[50\].generator .*made after the loader was protected"):
            give(0)

    def test_the_last_of_many_parts_has_its_numbers_again(self):
        self.same(lambda: DataLoader(Crowd(), batch_size=4))

    def test_a_worker_that_marks_its_dataset(self):
        place = loaders.place_in(DataLoader(Marked(), batch_size=4, num_workers=1, worker_init_fn=mark_dataset))
        self.addCleanup(place.close)
        self.assertEqual([40.0] * 4, place.next().tolist())

    def test_a_loader_with_persistent_workers_that_was_looked_at_before(self):
        data = Blurred()

        def make(look=True):
            loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True,
                                generator=torch.Generator().manual_seed(2))
            if look:
                self.addCleanup(loaders._end, loader)
                next(iter(loader))
                loader.generator.manual_seed(2)
            return loader
        self.assertEqual(self.ours(lambda: make(look=False))[0], self.ours(make)[0])

    def test_several_loaders(self):
        def make():
            return (DataLoader(Blurred(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(2)),
                    DataLoader(range(10), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3)))
        place = loaders.place_in(make())
        seen, windows = [], []
        for _ in range(9):
            windows.append(tagged_values.dumps("", [place.part("").save(), volatile_state.save_random()]))
            seen.append([each.tolist() for each in place.next()])
        self.assertEqual((1, 9, 6), (place.epoch, place.total, place.length()))
        self.assertEqual(set(range(10)), {*seen[6][1], *seen[7][1]})
        loaders.refuse_elsewhere(place, 10)
        place = loaders.place_in(make())
        kept = tagged_values.loads(windows[5])
        volatile_state.load_random(kept[1])
        place.part("").load(kept[0])
        self.assertEqual(seen[5:], [[each.tolist() for each in place.next()] for _ in range(4)])
        place.places[1].next()
        with self.assertRaisesRegex(pawl.Refused, "has given 10 batches where step 10 is next"):
            loaders.refuse_elsewhere(place, 10)

    def test_several_loaders_that_share_a_generator_or_a_sampler(self):
        def generator(size, workers=0):
            chance = torch.Generator().manual_seed(5)
            return [DataLoader(range(each), batch_size=2, shuffle=True, generator=chance, num_workers=workers)
                    for each in (12, size)]

        def sampler():
            order = RandomSampler(range(12), generator=torch.Generator().manual_seed(0))
            return [DataLoader(range(each, each + 12), batch_size=2, sampler=order) for each in (0, 100)]

        def run(make, loss=None, anew=False):
            torch.manual_seed(1)
            place, found, windows = loaders.place_in(make()), {}, {}
            step = 0
            while step < 14:
                windows[step] = tagged_values.dumps("", [place.part("").save(), volatile_state.save_random()])
                if step == loss:
                    step, loss = step - 1, None
                    if anew:
                        place.close()
                        place = loaders.place_in(make())
                        place.next()
                    saved = tagged_values.loads(windows[step])
                    volatile_state.load_random(saved[1])
                    place.part("").load(saved[0])
                found[step] = [each.tolist() for each in place.next()]
                step += 1
            place.close()
            return list(found.values())
        for name, make in {"12": lambda: generator(12), "8": lambda: generator(8), "sampler": sampler,
                           "workers": lambda: generator(12, 1)}.items():
            plain = run(make)
            for loss, anew in itertools.product((5, 6, 7) if name == "workers" else range(1, 14), (False, True)):
                with self.subTest(name, loss=loss, anew=anew):
                    self.assertEqual(plain, run(make, loss, anew))

    def test_several_loaders_are_protected_each(self):
        protected, loader = protect.Protected(0, 1), [DataLoader(Blurred(), batch_size=each) for each in (4, 5)]
        protected.add([loader[1]], None)
        place = protected.place_in(tuple(loader))
        self.assertEqual((2, 2), (len(protected.places), len(protected.parts)))
        self.assertEqual(place.places, protected.place_in(loader).places)
        place.next()
        self.assertEqual(9, protected.samples())

    def test_an_elastic_sampler_with_workers(self):
        sampler = pawl.ElasticSampler(21, 4, rank=0, world=1)
        place = loaders.place_in(DataLoader(Blurred(), batch_sampler=sampler, num_workers=1))
        batches = [place.next()[:, 0].tolist() for _ in range(4)]
        other = pawl.ElasticSampler(21, 4, rank=0, world=1)
        self.assertEqual([other.batch(step) for step in range(1, 5)], batches)
        self.assertEqual((other.state_dict(), 4, 4), (sampler.state_dict(), sampler.drawn, place.total))
        sampler.load_state_dict({**sampler.state_dict(), "position": 8})
        place.part("").load(place.part("").save())
        self.assertEqual(batches[2], place.next()[:, 0].tolist())
        place.close()

    def test_a_sampler_that_makes_its_generator_for_each_epoch(self):
        self.same(lambda: DataLoader(Blurred(), batch_size=4, sampler=Anew()))
        self.same(lambda: DataLoader(Blurred(), batch_size=4, sampler=Anew(), num_workers=1), vanilla=False)

    def test_a_sampler_that_makes_its_generator_when_its_order_begins(self):
        def seeded_later(epoch, generator):
            return (generator or torch.Generator()).manual_seed(epoch + 5)
        for make in (lambda epoch, _: torch.Generator().manual_seed(epoch),
                     lambda epoch, _: numpy.random.default_rng(epoch), seeded_later):
            def again(make=make):
                return loaders.place_in(DataLoader(range(21), batch_size=4, sampler=Later(make)))
            place, found, saved = again(), [], []
            for _ in range(self.STEPS):
                saved.append(tagged_values.dumps("", place.part("").save()))
                found.append(place.next().tolist())
            for step in range(self.STEPS):
                place = again()
                place.part("").load(tagged_values.loads(saved[step]))
                self.assertEqual(found[step:], [place.next().tolist() for _ in range(step, self.STEPS)])

    def test_who_was_told_the_epoch_is_not_told_again(self):
        for shuffle, epochs in ((shuffled_further, 1), (shuffled_anew, 2), (shuffled_to_be_used_up, 2)):
            def make(shuffle=shuffle):
                order = Heard(shuffle)
                return order, loaders.place_in(DataLoader(range(10000), batch_size=2500, sampler=order))
            (order, place), (_, plain) = make(), make()
            found, saved = [plain.next().tolist() for _ in range(4 * epochs)], []
            for step in range(4 * epochs):
                saved.append(tagged_values.dumps("", place.part("").save()))
                self.assertEqual(found[step], place.next().tolist())
            for step in range(1, 4 * epochs):
                with self.subTest(shuffle=shuffle, step=step):
                    before = len(order.told)
                    place.part("").load(tagged_values.loads(saved[step]))
                    self.assertEqual(found[step], place.next().tolist())
                    if shuffle is shuffled_further:
                        self.assertEqual(before, len(order.told))
                    other, again = make()
                    again.part("").load(tagged_values.loads(saved[step]))
                    self.assertEqual(found[step], again.next().tolist())
                    self.assertLessEqual(len(other.told), 1 + (step == 4))

    def test_a_sampler_in_another_under_any_name(self):
        def make(wrap=lambda inner: inner):
            inner = RandomSampler(range(21), generator=torch.Generator().manual_seed(5))
            return DataLoader(Blurred(), batch_size=4, sampler=Around(wrap(inner)))
        self.same(make)
        self.same(lambda: make(Around))

    def test_a_generator_that_the_script_makes_for_each_epoch(self):
        def given(loss=None, anew=False):
            data, found, windows, epoch, step = Reseeded(), {}, [], 0, 0
            place = loaders.place_in(DataLoader(data, batch_size=4))
            while step < 13:
                windows[step:] = [(tagged_values.dumps("", place.part("").save()), epoch)]
                if step == loss:
                    step, loss = step - 2, None
                    if anew:
                        data = Reseeded()
                        place = loaders.place_in(DataLoader(data, batch_size=4))
                    place.part("").load(tagged_values.loads(windows[step][0]))
                    epoch = windows[step][1]
                found[step] = place.next().tolist()
                if place.epoch != epoch:
                    epoch = place.epoch
                    data.inside = [types.SimpleNamespace(chance=numpy.random.default_rng(epoch))]
                step += 1
            return found
        for loss, anew in itertools.product((4, 7, 8, 9, 12), (False, True)):
            with self.subTest(loss=loss, anew=anew):
                self.assertEqual(given(), given(loss, anew))

    def test_a_sampler_whose_lists_get_other_lengths(self):
        class Shorter(Sampler):
            def __init__(self, make):
                self.make, self.order = make, make(range(21))

            def set_epoch(self, epoch):
                self.order = self.make(random.Random(epoch).sample(range(21), 21 - epoch))

            def __iter__(self):
                return iter(list(map(int, self.order)))

            def __len__(self):
                return len(self.order)
        for make in (torch.tensor, numpy.array):
            self.same(lambda make=make: DataLoader(Blurred(), batch_size=4, sampler=Shorter(make)))
        for one, other in ((torch.ones(1), torch.ones(4)), (numpy.ones(3), numpy.ones((2, 3))),
                           (torch.ones(2), torch.ones(2, dtype=torch.int64)), (torch.ones(2), "1")):
            self.assertFalse(loader_parts.same(one, other))
            self.assertFalse(loader_parts.same(other, one))
            self.assertTrue(loader_parts.same([one], [one]))

    def test_long_lists_are_not_copied_to_be_counted(self):
        with unittest.mock.patch.object(sampler_state, "_count", side_effect=sampler_state._count) as counted:
            rows = [[1, 2, 3, 4]] * 4000
            self.assertIs(sampler_state._UNKEPT, sampler_state.kept(rows))
            self.assertLess(counted.call_count, 1100, "it ends where there are too many")
        for most in ([0] * 4096, {number: 0 for number in range(2048)}, [[0] * 2048] * 2, torch.ones(4096)):
            self.assertIsNot(sampler_state._UNKEPT, sampler_state.kept(most))
        for more in ([0] * 4097, {number: 0 for number in range(2049)}, [[0] * 2049] * 2, torch.ones(4097)):
            self.assertIs(sampler_state._UNKEPT, sampler_state.kept(more))
        itself = []
        itself.append(itself)
        self.assertIs(sampler_state._UNKEPT, sampler_state.kept(itself))

    def test_a_generator_that_another_process_does_not_have(self):
        place = loaders.place_in(DataLoader(Noisy(), batch_size=4, sampler=Buckets()))
        place.next()
        saved = place.part("").save()
        for lose, words in ((lambda data, _: setattr(data, "generator", None), "dataset.generator was a random"),
                            (lambda _, order: setattr(order, "generator", None), "Buckets doesn't give the")):
            data, order = Noisy(), Buckets()
            place = loaders.place_in(DataLoader(data, batch_size=4, sampler=order))
            lose(data, order)
            with self.assertRaisesRegex(pawl.Refused, words):
                place.part("").load(saved)
                place.next()
        place = loaders.place_in(DataLoader(Noisy(), batch_size=4, sampler=Buckets()))
        saved, order = place.part("").save(), Buckets()
        order.generator = None
        with self.assertRaisesRegex(pawl.Refused, "Buckets.generator was a random"):
            loaders.place_in(DataLoader(Noisy(), batch_size=4, sampler=order)).part("").load(saved)

    def test_what_knows_its_own_place(self):
        self.same(lambda: DataLoader(StatefulStream(), batch_size=4))

    def test_what_knows_its_own_place_and_draws_from_a_generator(self):
        self.same(lambda: ResumedByOrder(range(21), batch_size=4, generator=torch.Generator().manual_seed(4)), False)

    def test_what_knows_its_own_place_and_what_is_beside_it(self):
        class Noted(StatefulStream):
            strength = 1.0

            def __len__(self):
                return 21

            def __iter__(self):
                return (each * self.strength for each in super().__iter__())

        def act(loader, step, _):
            if step == 2:
                loader.dataset.strength, loader.collate_fn.chance = 0.5, random.Random(9)

        class Faded:
            def __init__(self):
                self.chance = random.Random(8)

            def __call__(self, rows):
                return torch.stack(rows) + self.chance.random()
        place = ScriptsTest()
        place.same(lambda: DataLoader(Noted(), batch_size=4, collate_fn=Faded()), 13, (2, 4, 6, 7, 12), act=act)

    def test_what_knows_its_own_place_is_told_the_epoch(self):
        class Told(TensorDataset):
            told = None

            def set_epoch(self, epoch):
                self.told = epoch

        data = Told(torch.arange(42.0))

        def rows(rows):
            return torch.stack([row[0] for row in rows])

        def by_batch_sampler():
            order = BatchSampler(DistributedSampler(data, 2, 1), 4, False)
            return Resumed(data, batch_sampler=order, collate_fn=rows)
        for make in (lambda: DataLoader(ShuffledStream(), batch_size=4), by_batch_sampler,
                     lambda: Resumed(data, batch_size=4, sampler=DistributedSampler(data, 2, 1), collate_fn=rows)):
            plain = self.same(make, vanilla=False)
            self.assertNotEqual(plain[0][0], plain[6][0])
        self.assertEqual(2, data.told)

    def test_what_knows_its_own_place_from_a_checkpoint_of_the_scripts(self):
        """Who is told an epoch begins anew, and the script has told it."""
        def tell(loader, epoch):
            (loader.sampler if hasattr(loader.sampler, "set_epoch") else loader.dataset).set_epoch(epoch)

        def make(kind, resumed=False):
            loader = kind()
            if resumed:
                tell(loader, 1)
                what = loader if isinstance(loader, Resumed) else loader.dataset
                what.load_state_dict({"given": 2} if what is loader else states[8])
            place = loaders.place_in(loader)
            place.seek(8 if resumed else 0)
            return place

        def told_stream():
            data = ShuffledStream()
            data.epoch, set_epoch = 0, data.set_epoch

            def tell_it(epoch):
                data.epoch = epoch
                set_epoch(epoch)
            data.set_epoch = tell_it
            return DataLoader(data, batch_size=4)
        for kind in (told_stream, lambda: Resumed(range(21), batch_size=4,
                                                  sampler=DistributedSampler(range(21), 1, 0))):
            place, found, states = make(kind), [], []
            for _ in range(15):
                states.append(getattr(place.loader.dataset, "state_dict", lambda: None)())
                found.append(place.next().tolist())
            place, saved = make(kind, resumed=True), {}
            self.assertEqual(1, place.epoch)
            for step in range(8, 15):
                saved[step] = tagged_values.dumps("", place.part("").save())
                self.assertEqual(found[step], place.next().tolist())
            for step in (9, 11, 12, 14):
                for each in (place, make(kind, resumed=True)):
                    each.part("").load(tagged_values.loads(saved[step]))
                    self.assertEqual(found[step:], [each.next().tolist() for _ in range(step, 15)])

    def test_what_knows_its_own_place_from_a_checkpoint_of_an_epochs_end(self):
        plain = loaders.place_in(DataLoader(ShuffledStream(), batch_size=4))
        found = [plain.next().tolist() for _ in range(6)]
        state = plain.loader.dataset.state_dict()
        found += [plain.next().tolist() for _ in range(6)]
        data = ShuffledStream()
        data.set_epoch(0)
        data.load_state_dict(state)
        place = loaders.place_in(DataLoader(data, batch_size=4))
        place.seek(6)
        self.assertEqual(found[6:], [place.next().tolist() for _ in range(6)])
        self.assertEqual(plain.epoch, place.epoch)

    def test_a_sampler_that_the_script_has_set_elsewhere(self):
        sampler = pawl.ElasticSampler(21, 4, rank=0, world=1)
        sampler.load_state_dict({**sampler.state_dict(), "position": 8})
        place = loaders.place_in(DataLoader(Blurred(), batch_sampler=sampler))
        place.seek(0)
        self.assertEqual((0, sampler.at(8)), (place.total, place.next()[:, 0].tolist()))
        loaders.refuse_elsewhere(place, 2)

    def test_from_a_checkpoint(self):
        def make():
            return DataLoader(TensorDataset(torch.arange(21.0)), batch_size=4, sampler=DistributedSampler(
                range(21), 1, 0), collate_fn=lambda rows: torch.stack([row[0] for row in rows]))
        place = loaders.place_in(make())
        place.seek(8)
        self.assertEqual(32, place.samples())
        found = [place.next().tolist() for _ in range(5)]
        self.assertEqual([batch for batch, _ in self.vanilla(make)[8:]], found)

    def test_another_place_than_the_steps_and_other_data(self):
        place = loaders.place_in(DataLoader(Blurred(), batch_size=4))
        place.next()
        loaders.refuse_elsewhere(place, 2)
        with self.assertRaisesRegex(pawl.Refused, "has given 1 batches where step 3 is next"):
            loaders.refuse_elsewhere(place, 3)
        saved = place.part("").save()
        other = loaders.place_in(DataLoader(torch.utils.data.Subset(Blurred(), range(20)), batch_size=4))
        with self.assertRaisesRegex(pawl.Refused, "gave 6 batches in epoch 0, and in this process gives 5"):
            other.part("").load(saved)
            other.next()

    def test_a_list_that_is_short_at_first_and_long_when_the_order_is_made(self):
        class Buckets(torch.utils.data.Sampler):
            def __init__(self, empty, in_epoch, by_place):
                self.batches, self.in_epoch, self.by_place = empty, in_epoch, by_place

            def __len__(self):
                return 6

            def make(self):
                order = torch.randperm(21, generator=torch.Generator().manual_seed(4)).tolist()
                self.batches = [[each] * 1000 for each in order[:6]]
                if type(self.empty) is dict:
                    self.batches = dict(enumerate(self.batches))

            def set_epoch(self, epoch):
                if self.in_epoch:
                    self.make()

            def __iter__(self):
                if not self.in_epoch:
                    self.make()
                each = self.batches.values() if isinstance(self.batches, dict) else self.batches
                return (self.batches[i] for i in range(6)) if self.by_place else iter(each)

            empty = None
        for empty, in_epoch, by_place in itertools.product((list, dict, lambda: None), (False, True), (False, True)):
            with self.subTest(empty=empty, in_epoch=in_epoch, by_place=by_place):
                def make(empty=empty, in_epoch=in_epoch, by_place=by_place):
                    sampler = Buckets(empty(), in_epoch, by_place)
                    sampler.empty = empty()
                    return DataLoader(range(21), batch_sampler=sampler)
                plain = self.same(make, vanilla=False)
                self.assertEqual([1000] * self.STEPS, [len(batch) for batch, _ in plain])

    def test_a_record_of_a_sampler_that_has_grown_long_is_not_emptied(self):
        class Recorder(RandomSampler):
            def __init__(self):
                super().__init__(range(21))
                self.losses = []

        sampler = Recorder()
        place = loaders.place_in(DataLoader(range(21), batch_size=4, sampler=sampler))
        place.next()
        saved = place.part("").save()
        sampler.losses.extend([0.5] * 5000)
        place.part("").load(saved)
        place.next()
        self.assertEqual(5000, len(sampler.losses))

    def test_what_the_script_changes_in_a_sampler_within_an_epoch_stays(self):
        for workers in (0, 2):
            generator = torch.Generator().manual_seed(3)

            def make(workers=workers, generator=generator):
                generator.manual_seed(3)
                sampler = RandomSampler(range(21), generator=generator)
                sampler.temperature = 1.0
                return DataLoader(range(21), batch_size=4, sampler=sampler, generator=generator, num_workers=workers)
            for anew in (False, True):
                with self.subTest(workers=workers, anew=anew):
                    place = loaders.place_in(make())
                    place.next()
                    place.loader.sampler.temperature = 8.0
                    torch.rand(5, generator=generator)  # as another loader with the same generator does
                    saved, following = place.part("").save(), [place.next().tolist()]
                    drawn = generator.get_state()
                    following += [place.next().tolist() for _ in range(8)]
                    if anew:
                        place.close()
                        place = loaders.place_in(make())
                    place.part("").load(saved)
                    self.assertEqual(following[0], place.next().tolist())
                    self.assertEqual(8.0, place.loader.sampler.temperature)
                    self.assertTrue(torch.equal(drawn, generator.get_state()))
                    self.assertEqual(following[1:], [place.next().tolist() for _ in range(8)], "the next epoch's order")
                    place.close()

    def test_an_elastic_sampler_draws_from_nobodys_generator_when_it_goes_on(self):
        def make(rank=0, workers=0):
            torch.manual_seed(7)
            sampler = pawl.ElasticSampler(21, 8, rank=rank, world=2)
            return loaders.place_in(DataLoader(Blurred(), batch_sampler=sampler, num_workers=workers))
        for workers in (0, 1):
            place = make(workers=workers)
            place.next()
            sampler, kept = place._sampler, place.part("").save()
            position, now = sampler.state_dict(), volatile_state.save_random()
            first = place.next().tolist(), torch.rand(2).tolist()
            sampler.load_state_dict(position)
            volatile_state.load_random(now)
            place.part("").load(kept)
            self.assertEqual(first, (place.next().tolist(), torch.rand(2).tolist()))
            place.close()
        of_ranks = [make(rank, workers=1) for rank in range(2)]
        self.assertNotEqual(*(place.next()[:, 1:].tolist() for place in of_ranks), "ranks draw other numbers")
        for place in of_ranks:
            place.close()

    def test_what_lies_in_a_loader_of_the_scripts_is_pawls_too(self):
        class OnDevice:
            def __init__(self):
                self.loader, self.given = DataLoader(range(21), batch_size=4), 0

            def __iter__(self):
                for batch in self.loader:
                    self.given += 1
                    yield batch

            def state_dict(self):
                return {"given": self.given}

            def load_state_dict(self, state):
                self.given = state["given"]

        class Wrapped(DataLoader):
            def _get_iterator(self):
                return map(torch.clone, super()._get_iterator())

        protected = types.SimpleNamespace(samplers=[], stateful=[])
        for make in (OnDevice, lambda: Wrapped(range(21), batch_size=4)):
            steps = itertools.count()
            watch = data_position.LoaderWatch(protected, lambda steps=steps: next(steps))
            try:
                place = loaders.place_in(make())
                for _ in range(3):
                    place.next()
                seen = iter(DataLoader(range(21), batch_size=4))
                next(seen)
                with self.assertRaisesRegex(pawl.Refused, "gives batches to one step after the other"):
                    next(seen)
            finally:
                watch.close()

    def test_persistent_workers_are_not_the_scripts(self):
        """It evaluates on the training loader when an epoch has ended."""
        loader = DataLoader(range(21), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
        place, seen = loaders.place_in(loader), []
        for step in range(1, 19):
            place.next()
            if step % 6 == 0:
                seen.append(len(list(loader)))
        self.assertEqual(([6, 6, 6], 2), (seen, place.epoch))
        place.close()

    def test_persistent_workers_that_the_script_wants_anew(self):
        """As to switch an augmentation off, in the copies that the workers have of the dataset."""
        class Offset(torch.utils.data.Dataset):
            offset = 100

            def __len__(self):
                return 8

            def __getitem__(self, index):
                return index + self.offset

        loader = DataLoader(Offset(), batch_size=4, num_workers=1, persistent_workers=True)
        place, seen = loaders.place_in(loader), []
        for step in range(6):
            seen.append(int(place.next()[0]))
            if step == 1:
                loader.dataset.offset, loader._iterator = 0, None
        place.close()
        self.assertEqual([100, 104, 0, 4, 0, 4], seen)

    def test_persistent_workers_hear_of_the_epoch_as_new_ones_do(self):
        class OfEpoch(torch.utils.data.Dataset):
            epoch = 0

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __len__(self):
                return 21

            def __getitem__(self, index):
                return index + 100 * self.epoch
        plain = self.same(lambda: DataLoader(OfEpoch(), batch_size=4, num_workers=1, persistent_workers=True), False)
        self.assertEqual([0] * 6 + [1] * 6 + [2], [batch[0] // 100 for batch, _ in plain])

    def test_a_dataset_whose_set_epoch_is_another(self):
        class Phases(torch.utils.data.Dataset):
            def set_epoch(self, epoch, of):
                raise AssertionError

            def __len__(self):
                return 21

            def __getitem__(self, index):
                return index
        self.same(lambda: DataLoader(Phases(), batch_size=4))

    def test_a_length_that_is_counted_by_making_the_order(self):
        class Counted(torch.utils.data.Sampler):
            def __init__(self):
                self.generator = torch.Generator().manual_seed(3)

            def make(self):
                return torch.randperm(21, generator=self.generator).split(4)

            def __len__(self):
                return len(self.make())

            def __iter__(self):
                return iter([each.tolist() for each in self.make()])
        self.same(lambda: DataLoader(range(21), batch_sampler=Counted()))

    def test_long_batches_whose_number_differs_by_epoch(self):
        class Budget(torch.utils.data.Sampler):
            def __init__(self):
                self.batches, self.epoch = None, 0

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __len__(self):
                return len(self.batches)

            def __iter__(self):
                self.batches = [[number] * 1000 for number in range(6 - self.epoch % 2)]
                return iter(self.batches)
        plain, _ = self.ours(lambda: DataLoader(range(21), batch_sampler=Budget()))
        for anew in (False, True):
            self.assertEqual(plain, self.ours(lambda: DataLoader(range(21), batch_sampler=Budget()),
                                              {3: 1, 8: 7, 12: 12}, anew)[0])

    def test_a_batch_that_fails_costs_no_other(self):
        class Flaky(torch.utils.data.Dataset):
            def __init__(self):
                self.fail = False

            def __len__(self):
                return 21

            def __getitem__(self, index):
                if self.fail:
                    raise OSError("away")
                return index

        def batches(fail):
            data = Flaky()
            generator = torch.Generator().manual_seed(3)
            sampler = RandomSampler(data, replacement=True, generator=generator)
            place = loaders.place_in(DataLoader(data, batch_size=4, sampler=sampler))
            found = [place.next().tolist()]
            if fail:
                data.fail = True
                with self.assertRaises(OSError):
                    place.next()
                place.close()
                data.fail = False
            saved = place.part("").save()
            found.append(place.next().tolist())
            place.part("").load(saved)
            return [*found, *(place.next().tolist() for _ in range(9))]
        self.assertEqual(batches(False), batches(True))

    def test_a_list_that_script_and_sampler_share_stays_shared(self):
        class Active(torch.utils.data.Sampler):
            def __init__(self, active):
                self.active = active

            def __len__(self):
                return 6

            def __iter__(self):
                return iter([[each] for each in range(6 - len(self.active))] + [[9]] * len(self.active))
        active = []
        sampler = Active(active)
        place = loaders.place_in(DataLoader(range(21), batch_sampler=sampler))
        place.next()
        saved = place.part("").save()
        active.append(7)
        place.part("").load(saved)
        self.assertEqual(([], True), (active, sampler.active is active))
        active.append(7)
        grown = place.part("").save()
        active[:] = range(4200)
        place.part("").load(grown)
        self.assertEqual([7], active)

    def test_what_a_dataset_draws_from_another_loader_is_refused(self):
        class Mixed(torch.utils.data.Dataset):
            def __init__(self):
                self.other = iter(DataLoader(range(21), shuffle=True))

            def __len__(self):
                return 21

            def __getitem__(self, index):
                return index + next(self.other)
        steps = itertools.count()
        watch = data_position.LoaderWatch(types.SimpleNamespace(samplers=[], stateful=[]), lambda: next(steps))
        try:
            place = loaders.place_in(DataLoader(Mixed()))
            with self.assertRaisesRegex(pawl.Refused, "gives batches to one step after the other"):
                for _ in range(3):
                    place.next()
        finally:
            watch.close()

    def test_a_length_that_is_what_is_left(self):
        class Left(torch.utils.data.Sampler):
            def __init__(self):
                self.done = 0

            def __iter__(self):
                while self.done < 6:
                    self.done += 1
                    yield [self.done]
                self.done = 0

            def __len__(self):
                return 6 - self.done

        self.same(lambda: DataLoader(range(21), batch_sampler=Left()), vanilla=False)

    def test_a_length_that_nobody_knows(self):
        for error in (TypeError, NotImplementedError, ValueError):
            class Endless(torch.utils.data.Sampler):
                def __iter__(self):
                    return itertools.repeat([1, 2])

                def __len__(self, error=error):
                    raise error("it has none")
            place = loaders.place_in(DataLoader(range(21), batch_sampler=Endless()))
            self.assertEqual(10, loaders.steps_in(place, None, 10))
            self.assertEqual([1, 2], place.next().tolist())
            place.part("").load(place.part("").save())
            self.assertEqual([1, 2], place.next().tolist())

    def test_a_dataset_that_wants_to_know_the_epoch(self):
        class OfEpoch(torch.utils.data.Dataset):
            epoch = -1

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __len__(self):
                return 21

            def __getitem__(self, index):
                return index + 100 * self.epoch

        for workers in (0, 1):
            place = loaders.place_in(DataLoader(OfEpoch(), batch_size=4, num_workers=workers))
            self.assertEqual([0] * 6 + [1] * 6, [int(place.next()[0]) // 100 for _ in range(12)])
            place.close()

    def test_one_loader_twice(self):
        loader = DataLoader(range(21))
        with self.assertRaisesRegex(pawl.Refused, "one loader twice"):
            loaders.place_in((loader, loader))

    def test_a_stream_whose_last_batch_is_not_full_and_that_begins_anew_by_itself(self):
        class Endless(IterableDataset):
            def __init__(self):
                self.place, self.epoch = 0, 0

            def __iter__(self):
                while self.place < 21:
                    self.place += 1
                    yield self.place + 100 * self.epoch
                self.place, self.epoch = 0, self.epoch + 1

            def state_dict(self):
                return {"place": self.place, "epoch": self.epoch}

            def load_state_dict(self, state):
                self.place, self.epoch = state["place"], state["epoch"]
        self.same(lambda: DataLoader(Endless(), batch_size=4))

    def test_how_many_steps(self):
        place = loaders.place_in(DataLoader(Blurred(), batch_size=4))
        self.assertEqual([6, 18, 4, 40, 6], [loaders.steps_in(place, *each) for each in (
            (None, None), (3, None), (None, 4), (None, 40), (1, 40))])
        with self.assertRaisesRegex(pawl.Refused, "steps=N"):
            loaders.steps_in(loaders.place_in(DataLoader(StatefulStream(), batch_size=4)), 3, None)

    def test_what_has_no_place(self):
        for words, thing in (("Stream, an IterableDataset, can't be set to a place.*StatefulDataLoader",
                              DataLoader(Stream(), batch_size=4)),
                             ("2 workers.*num_workers=0", DataLoader(StatefulStream(), num_workers=2)),
                             ("a generator has no place", (each for each in range(3)))):
            with self.assertRaisesRegex(pawl.Refused, words):
                loaders.place_in(thing)
        place = loaders.place_in(DataLoader(Blurred(), sampler=Moody(), batch_size=4))
        with self.assertRaisesRegex(pawl.Refused, "Moody draws from everybody's random numbers"):
            place.next()
            place.next()

    def test_batches_in_no_order(self):
        sampler = pawl.ElasticSampler(21, 4, rank=0, world=1)
        for way in ({"batch_size": 4}, {"batch_sampler": sampler}):
            loader = DataLoader(Blurred(), num_workers=2, **way)
            loader.in_order = False  # the argument came with torch 2.6
            with self.assertRaisesRegex(pawl.Refused, "in_order=False.* come twice .*: leave in_order=True"):
                loaders.place_in(loader)
            loader.num_workers = 0
            loaders.place_in(loader)

    def test_an_empty_loader(self):
        with self.assertRaisesRegex(pawl.Refused, "gives no batches"):
            loaders.place_in(DataLoader(TensorDataset(torch.zeros(3)), batch_size=4, drop_last=True)).next()


class Drawing(Dataset):
    """Of random numbers of all kinds, and of a generator of its own if it has one."""

    def __init__(self, size=24, chance=None):
        self.size, self.chance = size, chance

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        own = 0.0 if self.chance is None else self.chance.random()
        return torch.tensor([random.random(), torch.rand(()).item(), numpy.random.random(), own])


class KeptBatches(Sampler):
    """Makes its batches in __len__ or __iter__, whichever comes first."""

    def __init__(self, chance, size=21):
        self.chance, self.size, self.batches = chance, size, None

    def prepare(self):
        if self.batches is None:
            order = list(range(self.size))
            self.chance.shuffle(order)
            self.batches = [order[begin:begin + 4] for begin in range(0, self.size, 4)]

    def __len__(self):
        self.prepare()
        return len(self.batches)

    def __iter__(self):
        self.prepare()
        batches, self.batches = self.batches, None
        yield from batches


class OfBase(Sampler):
    """A batch sampler that calls what it has `base`, or is told its epochs beside it."""

    def __init__(self, base, name="base"):
        setattr(self, name, base)
        self.name, self.told = name, []

    def __len__(self):
        return len(getattr(self, self.name)) // 4

    def __iter__(self):
        order = list(getattr(self, self.name))
        return iter([order[begin:begin + 4] for begin in range(0, len(order) - 3, 4)])


class OfBaseAndTold(OfBase):
    def set_epoch(self, epoch):
        self.told.append(epoch)


class ToldData(Dataset):
    def __init__(self, size=16, grows=0):
        self.size, self.grows, self.epoch, self.told = size, grows, 0, []

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.told.append(epoch)

    def __len__(self):
        return self.size + self.grows * self.epoch

    def __getitem__(self, index):
        return index + 100 * self.epoch


class HardFirst(Sampler):
    """By losses that the script notes."""

    def __init__(self, losses):
        self.losses = losses

    def __len__(self):
        return 12

    def __iter__(self):
        return iter(sorted(range(12), key=lambda each: (-self.loss(each), each)))

    def loss(self, each):
        if isinstance(self.losses, (set, frozenset)):
            return float(each in self.losses)
        return self.losses.get(each, 0.0) if isinstance(self.losses, dict) else self.losses[each]

    def note(self, each, loss):
        if isinstance(self.losses, set):
            (self.losses.add if loss > 2 else self.losses.discard)(each)
        else:
            self.losses[each] = type(self.losses[each])(loss) if isinstance(self.losses, list) else loss


class Nearest(Sampler):
    """Takes what is left, nearest to what the script wants of each: when a batch is asked for."""

    def __init__(self, wanted):
        self.wanted = wanted

    def __len__(self):
        return 12

    def __iter__(self):
        left = set(range(24))
        for _ in range(12):
            pick = sorted(left, key=lambda each: (self.far(each), each))[:2]
            left -= set(pick)
            yield pick

    def far(self, each):
        return -self.wanted[each] if isinstance(self.wanted, dict) else abs(each - float(self.wanted))


class Switched(BatchSampler):
    """Its batches have what the script has switched on, as in augmentations that end early."""

    def __init__(self, size=24):
        super().__init__(torch.utils.data.SequentialSampler(range(size)), 2, False)
        self.switch = 0

    def __iter__(self):
        return ([each + 100 * self.switch for each in batch] for batch in super().__iter__())


class Many(Dataset):
    def __len__(self):
        return 10000

    def __getitem__(self, index):
        return index


class Windows(Sampler):
    """Shuffles each window with everybody's random numbers when it comes to it."""

    def __init__(self, size, window):
        self.size, self.window = size, window

    def __len__(self):
        return self.size

    def __iter__(self):
        for begin in range(0, self.size, self.window):
            order = list(range(begin, min(begin + self.window, self.size)))
            random.shuffle(order)
            yield from order


class Phased(Dataset):
    """The script changes its phase, of which workers have copies."""

    def __init__(self):
        self.phase = 0

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index + 100 * self.phase


class ScriptsTest(unittest.TestCase):
    """What scripts do between the batches, and what a loss makes of it."""

    def run_it(self, make, steps, loss=None, anew=False, act=lambda loader, step, batch: None, state=None):
        """The batches of so many steps. `loss`: at this step's begin, back to the one before; `anew`: in another
        process. `state`: what the script protects itself, of the loader: saved and put back."""
        torch.manual_seed(1)
        random.seed(1)
        numpy.random.seed(1)
        place, found, windows, step = loaders.place_in(make()), {}, {}, 0
        loaders.steps_in(place, 3, None)
        lengths = loaders.Lengths(place)
        try:
            while step < steps:
                mine = state(place.loader).save() if state else None
                windows[step] = tagged_values.dumps("", [place.part("").save(), volatile_state.save_random(), mine])
                if step == loss:
                    step, loss = max(step - 1, 0), None
                    if anew:
                        place.close()
                        torch.manual_seed(99)
                        place = loaders.place_in(make())
                        lengths = loaders.Lengths(place)
                        place.next()
                    saved = tagged_values.loads(windows[step])
                    volatile_state.load_random(saved[1])
                    if state:
                        state(place.loader).load(saved[2])
                    place.part("").load(saved[0])
                batch = place.next()
                lengths.change()
                found[step] = batch.tolist()
                act(place.loader, step, batch)
                random.random()
                step += 1
        finally:
            place.close()
        return [found[each] for each in range(steps)], place.loader

    def same(self, make, steps, losses, **more):
        plain, _ = self.run_it(make, steps, **more)
        for loss, anew in itertools.product(losses, (False, True)):
            with self.subTest(loss=loss, anew=anew):
                self.assertEqual(plain, self.run_it(make, steps, loss, anew, **more)[0])
        return plain

    def drawn(self, make, steps=2):
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        place = loaders.place_in(make())
        try:
            return [tagged_values.dumps("", place.next()) for _ in range(steps)]
        finally:
            place.close()

    def test_ranks_draw_other_numbers_in_workers(self):
        def of_own(rank):
            return DataLoader(Drawing(chance=numpy.random.default_rng(rank)), batch_size=4, num_workers=1)

        def of_loader(rank):
            generator = torch.Generator().manual_seed(100 + rank)
            return DataLoader(Drawing(), batch_size=4, num_workers=1, generator=generator)

        def of_sampler(rank):
            return DataLoader(Drawing(), batch_size=4, num_workers=1, sampler=DistributedSampler(range(24), 2, rank))

        def of_inner(rank):
            order = OfBase(DistributedSampler(range(24), 2, rank))
            return DataLoader(Drawing(), batch_sampler=order, num_workers=1)
        for make in (of_own, of_loader, of_sampler, of_inner):
            with self.subTest(make=make):
                zero, one = (self.drawn(lambda rank=rank, make=make: make(rank)) for rank in (0, 1))
                self.assertTrue(all(a != b for a, b in zip(zero, one, strict=True)))
                self.assertEqual(zero, self.drawn(lambda make=make: make(0)), "who shares samples shares numbers")
        for make in (of_own, of_loader, of_sampler):
            self.same(lambda make=make: make(1), 9, (2, 7))

    def test_seeds_of_ranks_and_loaders_are_all_different(self):
        seeds = {loaders._mixed_in(7, 0, 0, rank, number) for rank in range(100) for number in range(10)}
        self.assertEqual(1000, len(seeds))

    def test_the_rank_is_that_of_the_samples(self):
        order = OfBase(DistributedSampler(range(24), 2, 1))
        order.rank = 3  # its process's
        both = []
        for order.rank in (3, 2):
            both.append(self.drawn(lambda: DataLoader(Drawing(), batch_sampler=order, num_workers=1)))
        self.assertEqual(*both)

    def test_loaders_of_one_job_draw_other_numbers_in_workers(self):
        def pair(kind):
            return tuple(DataLoader(Drawing(), num_workers=1, **kind()) for _ in range(2))
        for kind in (lambda: {"batch_size": 4},
                     lambda: {"batch_sampler": pawl.ElasticSampler(24, 4, rank=0, world=1)}):
            torch.manual_seed(0)
            place = loaders.place_in(pair(kind))
            one, other = place.next()
            place.close()
            self.assertFalse(torch.equal(one, other))

    def test_a_length_that_makes_and_keeps_the_batches(self):
        for own, size in itertools.product((True, False), (21, 5000)):
            def make(own=own, size=size):
                return DataLoader(range(size), batch_sampler=KeptBatches(random.Random(3) if own else random, size))
            length = -(-size // 4)
            random.seed(1)
            loader, plain = make(), []
            for _ in range(3):
                plain.append(next(iter(loader)).tolist())
                if not own:
                    for _ in range(length):
                        random.random()  # as the loop does
            steps, losses = (18, (1, 3, 6, 7, 14)) if size == 21 else (1255, (1250, 1252))
            found = self.same(make, steps, losses)
            self.assertEqual(plain[:2], [found[0], found[length]])
            self.assertNotEqual(found[0], found[length])

    def test_a_length_that_draws_is_as_if_nobody_had_asked(self):
        for chance in (random, random.Random(3)):
            order = KeptBatches(chance)
            place = loaders.place_in(DataLoader(range(21), batch_sampler=order))
            before = chance.getstate()
            self.assertEqual((6, 6), (place.length(), loaders.steps_in(place, 1, None)))
            self.assertEqual((before, None), (chance.getstate(), order.batches))

    def test_who_is_told_the_epoch(self):
        def shards():
            return DistributedSampler(range(16), num_replicas=2, rank=0, seed=5)
        plain = shards()
        expected = []
        for epoch in range(3):
            plain.set_epoch(epoch)
            expected += [list(plain)[:4], list(plain)[4:]]
        for make in (lambda: OfBase(shards()), lambda: OfBaseAndTold(shards()),
                     lambda: OfBaseAndTold(shards(), "sampler")):
            found = self.same(lambda make=make: DataLoader(range(16), batch_sampler=make()), 6, (1, 2, 3, 5))
            self.assertEqual(expected, found)
        class Slotted:
            __slots__ = ("epoch",)

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __len__(self):
                return 8

            def __iter__(self):
                return iter(range(self.epoch, self.epoch + 8))
        found = self.same(lambda: DataLoader(range(16), batch_size=4, sampler=Slotted()), 6, (3,))
        self.assertEqual([0, 1, 2], [batch[0] for batch in found[::2]])
        order = OfBaseAndTold(shards(), "sampler")
        place = loaders.place_in(DataLoader(range(16), batch_sampler=order))
        for _ in range(6):
            place.next()
        self.assertEqual([0, 1, 2], order.told)

    def test_datasets_in_datasets_are_told_the_epoch_once(self):
        def wrapped(data):
            return (torch.utils.data.Subset(data, range(8)), torch.utils.data.ConcatDataset([data, data]),
                    torch.utils.data.Subset(torch.utils.data.ConcatDataset([range(3), data]), range(3, 11)))
        for number, workers in itertools.product(range(3), (0, 1)):
            if workers and number:
                continue
            found = self.same(lambda number=number, workers=workers: DataLoader(
                wrapped(ToldData(8))[number], batch_size=4, num_workers=workers), 8, (3,))
            length = 4 if number == 1 else 2
            self.assertEqual([step // length for step in range(8)], [batch[0] // 100 for batch in found])
            data = ToldData(8)
            place = loaders.place_in(DataLoader(wrapped(data)[number], batch_size=8))
            for _ in range(2):
                place.next()
            self.assertEqual([0, 1][:1 + (number != 1)], data.told)

    def test_a_dataset_under_an_elastic_sampler_is_told_the_epoch(self):
        for workers in (0, 1):
            def make(workers=workers):
                order = pawl.ElasticSampler(16, 4, rank=0, world=1)
                return DataLoader(ToldData(), batch_sampler=order, num_workers=workers)

            def state(loader):
                order = loader.batch_sampler
                return volatile_state.Part("", order.state_dict, order.load_state_dict)
            found = self.same(make, 10, (2, 4, 5, 9), state=state)
            self.assertEqual([0] * 4 + [1] * 4 + [2] * 2, [batch[0] // 100 for batch in found])
            place = loaders.place_in(make())
            with unittest.mock.patch.object(place._sampler, "take_next"):  # as in a rehearsal
                self.assertEqual([0] * 9, [int(place.next()[0]) // 100 for _ in range(9)])
            place.close()

    def test_what_sampler_and_script_share_stays_shared(self):
        def act(loader, step, batch):
            for each in batch.tolist():
                loader.shared[each] = each * 7 % 5 + step * 0.1

        for first in ({}, {each: 0.0 for each in range(12)}, [0.0] * 12, collections.defaultdict(float),
                      collections.OrderedDict(), numpy.zeros(12), torch.zeros(12)):
            def make(first=first):
                shared = copy.deepcopy(first)
                loader = DataLoader(range(12), batch_size=4, sampler=HardFirst(shared))
                loader.shared = shared
                return loader

            def state(loader):
                def load(saved):
                    if isinstance(loader.shared, dict):
                        loader.shared.clear()
                        loader.shared.update(saved)
                    else:
                        loader.shared[:] = saved
                return volatile_state.Part("", lambda: dict(loader.shared) if isinstance(loader.shared, dict)
                                           else loader.shared, load)
            self.same(make, 9, (1, 2, 3, 4, 8), act=act, state=state)
            for anew in (False, True):
                _, loader = self.run_it(make, 5, 4, anew, act, state)
                self.assertIs(loader.shared, loader.sampler.losses)

    def test_a_list_that_grows_stays_shared(self):
        def state(loader):
            def load(saved):
                loader.shared[:] = saved
            return volatile_state.Part("", lambda: list(loader.shared), load)

        class Marked(Sampler):
            def __init__(self, marked):
                self.marked = marked

            def __len__(self):
                return 12

            def __iter__(self):
                return iter([*self.marked, *(each for each in range(12) if each not in self.marked)])

        def make():
            shared = []
            loader = DataLoader(range(12), batch_size=4, sampler=Marked(shared))
            loader.shared = shared
            return loader

        def act(loader, _, batch):
            loader.shared += [each for each in batch.tolist() if each % 3 == 0 and each not in loader.shared]
        self.same(make, 9, (1, 2, 3, 8), act=act, state=state)
        for anew in (False, True):
            _, loader = self.run_it(make, 5, 2, anew, act, state)
            self.assertIs(loader.shared, loader.sampler.marked)

    def test_a_list_that_the_script_replaces_is_for_the_next_epoch(self):
        class Listed(Sampler):
            def __init__(self):
                self.order = list(range(12))

            def __len__(self):
                return 12

            def __iter__(self):
                return iter(self.order)

        def replace(loader, step, _):
            if step % 3 == 1:
                loader.sampler.order = [(each * 5 + step) % 12 for each in range(12)]

        def change(loader, step, _):
            if step % 3 == 1:
                loader.sampler.order[8:] = loader.sampler.order[:3:-1][:4]
        for act in (replace, change):
            self.same(lambda: DataLoader(range(12), batch_size=4, sampler=Listed()), 9, (1, 2, 3, 5, 8), act=act)

    def test_an_attribute_that_comes_with_the_first_order(self):
        class Once(Sampler):
            def __len__(self):
                return 12

            def __iter__(self):
                order = range(11, -1, -1) if hasattr(self, "begun") else range(12)
                self.begun = True
                return iter(order)
        found = self.same(lambda: DataLoader(range(12), batch_size=4, sampler=Once()), 7, (1, 2, 3, 4, 6))
        self.assertEqual([0, 11, 11], [batch[0] for batch in found[::3]])

    def test_containers_of_many_kinds_are_kept(self):
        def act(loader, step, batch):
            for each in batch.tolist():
                loader.sampler.note(each, float(each * 7 % 5) + each % 2 + step)
        for first in ([float("inf")] * 12, [float("nan")] * 12, [numpy.float64(0)] * 12, set(),
                      collections.deque([0.0] * 12, 12), collections.defaultdict(float), collections.Counter()):
            with self.subTest(first=first):
                self.same(lambda first=first: DataLoader(range(12), batch_size=4, sampler=HardFirst(copy.copy(first))),
                          9, (3, 5), act=act)

    def test_generators_in_containers_of_a_sampler(self):
        class Many(Sampler):
            def __init__(self):
                self.chances, self.inside = {0: random.Random(1)}, [random.Random(2)]

            def __len__(self):
                return 12

            def __iter__(self):
                order = [list(range(6)), list(range(6, 12))]
                self.chances[0].shuffle(order[0])
                self.inside[0].shuffle(order[1])
                return iter(order[0] + order[1])
        found = self.same(lambda: DataLoader(range(12), batch_size=4, sampler=Many()), 9, (2, 4, 7))
        self.assertNotEqual(found[0], found[3])

    def test_numbers_of_numpys_that_are_shuffled_in_place(self):
        class InPlace(Sampler):
            def __init__(self, size):
                self.order, self.chance = list(numpy.arange(size)), random.Random(0)

            def __len__(self):
                return len(self.order)

            def __iter__(self):
                self.chance.shuffle(self.order)
                return iter(list(self.order))
        self.same(lambda: DataLoader(range(12), batch_size=4, sampler=InPlace(12)), 9, (2, 5))
        with self.assertRaisesRegex(pawl.Refused, "InPlace shuffles a list of its own in place"):
            loaders.place_in(DataLoader(range(5000), batch_size=4, sampler=InPlace(5000))).next()

    def test_a_setting_that_is_read_while_the_epoch_runs(self):
        def act(loader, step, _):
            if step in (2, 3, 15):
                loader.batch_sampler.switch = step
        for workers in (0, 2):
            found = self.same(lambda workers=workers: DataLoader(Many(), batch_sampler=Switched(), num_workers=workers),
                              22, (3, 4, 5, 9, 11, 12, 14, 21), act=act)
            self.assertEqual({0, 3, 15}, {batch[0] // 100 for batch in found} - {2})

        def often(loader, step, _):
            loader.batch_sampler.noted = step
        self.same(lambda: DataLoader(range(400), batch_sampler=Switched(400)), 150, (70, 140), act=often)

    def test_a_number_of_numpys_that_is_read_while_the_epoch_runs(self):
        wanted = numpy.array([each * 7 % 23 for each in range(40)], dtype=numpy.float64)

        def act(loader, step, _):
            loader.batch_sampler.wanted = wanted[step]
        for workers in (0, 2):
            self.same(lambda workers=workers: DataLoader(Many(), batch_sampler=Nearest(wanted[0]), num_workers=workers),
                      16, (2, 5, 8, 11, 13), act=act)

    def test_values_that_are_read_while_workers_fetch_ahead_are_right_or_refused(self):
        def make():
            return DataLoader(Many(), batch_sampler=Nearest(dict.fromkeys(range(24), 0)), num_workers=1)

        def act(loader, step, _):
            if step == 1:
                for each in range(24):
                    loader.batch_sampler.wanted[each] = each * 7 % 13
        self.same(make, 10, (1, 3), act=act)
        for anew in (False, True):
            with self.assertRaisesRegex(pawl.Refused, r"Nearest doesn't give .* changed since it began \(wanted\)"):
                self.run_it(make, 10, 5, anew, act)

    def test_a_setting_that_changed_too_often_is_named(self):
        place = loaders.place_in(DataLoader(Many(), batch_sampler=Switched(400)))
        for step in range(80):
            place.loader.batch_sampler.switch = step
            place.next()
        place.part("").load(tagged_values.loads(tagged_values.dumps("", place.part("").save())))
        with self.assertRaisesRegex(pawl.Refused, r"Switched doesn't give .* changed since it began \(switch\)"):
            place.next()

    def test_random_numbers_that_are_drawn_late(self):
        loaders._tell_late_draws.cache_clear()
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            self.same(lambda: DataLoader(range(160), batch_size=1, sampler=Windows(160, 64)), 67, (3, 8, 60))
            self.assertIn("pawl: Windows draws from everybody's random numbers", told.getvalue())
            for workers, loss, window, why in ((0, 66, 64, "draws from everybody's random numbers while"),
                                               (2, 62, 64, "draws from everybody's random numbers while"),
                                               (0, 50, 48, "doesn't give the indices again")):
                with self.assertRaisesRegex(pawl.Refused, "Windows " + why):
                    self.run_it(lambda workers=workers, window=window: DataLoader(
                        range(160), batch_size=1, num_workers=workers, sampler=Windows(160, window)), 67, loss)
        self.assertEqual(1, told.getvalue().count("pawl: "))

    def test_a_place_amid_an_epoch_whose_order_is_of_random_numbers(self):
        def told(done, **kinds):
            place = loaders.place_in(DataLoader(range(12), batch_size=4, **kinds))
            place.seek(done)
            with contextlib.redirect_stderr(io.StringIO()) as said:
                for _ in range(4):
                    place.next()
            return said.getvalue()

        class Seeding(RandomSampler):
            def set_epoch(self, epoch):
                torch.manual_seed(epoch)
        generator = torch.Generator()
        for kinds in ({"shuffle": True}, {"shuffle": True, "generator": generator},
                      {"sampler": RandomSampler(range(12), generator=generator)}):
            self.assertIn("pawl: done=4 is in the middle of epoch 1, and RandomSampler makes its order from random",
                          told(4, **kinds))
            self.assertEqual(len(kinds) > 1 or "sampler" in kinds, "at the begin of epoch 1" in told(3, **kinds))
        for kinds in ({}, {"sampler": DistributedSampler(range(12), 1, 0)}, {"sampler": Seeding(range(12))}):
            self.assertEqual("", told(4, **kinds))

    def test_from_a_checkpoint_with_a_dataset_whose_epochs_grow(self):
        def make():
            return loaders.place_in(DataLoader(ToldData(4, 4), batch_size=4))
        plain = make()
        found = [plain.next().tolist() for _ in range(10)]
        for done in range(10):
            place = make()
            place.seek(done)
            self.assertEqual(found[done:], [place.next().tolist() for _ in range(done, 10)])

    def test_workers_made_anew_see_the_dataset_as_the_others_did(self):
        def act(loader, _, __):
            getattr(loader.dataset, "dataset", loader.dataset).phase += 1

        def state(loader):
            data = getattr(loader.dataset, "dataset", loader.dataset)
            return volatile_state.Part("", lambda: data.phase, lambda saved: setattr(data, "phase", saved))
        kinds = Phased, lambda: torch.utils.data.Subset(Phased(), range(24))
        for stay, make in itertools.product((False, True), kinds):
            found = self.same(lambda stay=stay, make=make: DataLoader(make(), batch_size=4, num_workers=1,
                                                                      persistent_workers=stay),
                              14, (3, 7), act=act, state=state)
            self.assertEqual([0] * 6 + [0 if stay else 6] * 6 + [0 if stay else 12] * 2,
                             [batch[0] // 100 for batch in found])

        def elastic():
            return DataLoader(Phased(), batch_sampler=pawl.ElasticSampler(24, 4, rank=0, world=1), num_workers=1)

        def both(loader):
            parts = state(loader), volatile_state.Part("", loader.batch_sampler.state_dict,
                                                       loader.batch_sampler.load_state_dict)
            return volatile_state.Part("", lambda: [each.save() for each in parts],
                                       lambda saved: [each.load(one) for each, one in zip(parts, saved, strict=True)])
        self.same(elastic, 9, (3, 8), act=act, state=both)

    def test_workers_made_anew_have_the_seeds_that_others_had(self):
        def mark(_):
            info = torch.utils.data.get_worker_info()
            info.dataset.marks = [torch.initial_seed(), random.randrange(1 << 40), numpy.random.randint(1 << 30)]

        class Seeded(Phased):
            def __getitem__(self, index):
                return torch.tensor([index, torch.utils.data.get_worker_info().seed, *self.marks], dtype=torch.int64)

        def elastic():
            return DataLoader(Seeded(), batch_sampler=pawl.ElasticSampler(24, 4, rank=0, world=1), num_workers=2,
                              worker_init_fn=mark)

        def position(loader):
            return volatile_state.Part("", loader.batch_sampler.state_dict, loader.batch_sampler.load_state_dict)
        for stay in (False, True):
            found = self.same(lambda stay=stay: DataLoader(
                Seeded(), batch_size=4, num_workers=2, shuffle=True, worker_init_fn=mark, persistent_workers=stay),
                14, (3, 6, 8), act=lambda *_: None)
            self.assertEqual(2 if stay else 6, len({row[1] for batch in found for row in batch}))
        self.same(elastic, 9, (3, 8), state=position)

    def test_a_length_is_asked_once_for_an_epoch_and_what_it_makes_stays(self):
        class Kept(Sampler):
            def __init__(self):
                self.epoch, self.batches, self.calls, self.builds, self.lengths = 0, None, types.SimpleNamespace(), 0, 0
                self.calls.lengths = 0

            def set_epoch(self, epoch):
                self.epoch, self.batches = epoch, None

            def prepare(self):
                if self.batches is None:
                    self.builds += 1
                    chance = torch.Generator().manual_seed(self.epoch)
                    self.batches = torch.randperm(12, generator=chance).view(-1, 4).tolist()

            def __len__(self):
                self.calls.lengths += 1
                self.prepare()
                return len(self.batches)

            def __iter__(self):
                self.prepare()
                yield from self.batches

        class Ready(Sampler):
            def __init__(self, data):
                self.data, self.ready = data, False

            @functools.cached_property
            def order(self):
                self.data.made += 1
                return list(range(12))

            def prepare(self):
                if not self.ready:
                    self.data.samples.extend(range(12))
                    self.ready = True
                return self.order

            def __len__(self):
                return len(self.prepare())

            def __iter__(self):
                return iter(self.prepare())
        order = Kept()
        _, loader = self.run_it(lambda: DataLoader(range(12), batch_sampler=order), 9)
        self.assertEqual((3 + 1, 3), (loader.batch_sampler.builds, order.calls.lengths), "once before epoch 0 is told")
        order = Kept()
        place = loaders.place_in(DataLoader(range(12), batch_sampler=order))
        loaders.steps_in(place, 4, None)
        place.seek(7)
        lengths = loaders.Lengths(place)
        with contextlib.redirect_stderr(io.StringIO()):
            place.next()
        self.assertEqual((None, 2, 1 + 3), (lengths.change(), place.epoch, order.calls.lengths))
        data = types.SimpleNamespace(samples=[], made=0)
        self.run_it(lambda: DataLoader(range(12), batch_size=4, sampler=Ready(data)), 9)
        self.assertEqual((12, 1), (len(data.samples), data.made))

    def test_a_record_that_a_sampler_keeps_is_no_reason_to_refuse(self):
        class Recorder(Sampler):
            def __init__(self, record):
                self.record = record

            def __len__(self):
                return 6000

            def __iter__(self):
                for each in torch.randperm(6000).tolist():
                    if hasattr(self.record, "append"):
                        self.record.append(each)
                    else:
                        self.record.update([each])
                    yield each
        for record in ([], collections.deque(maxlen=5000), collections.Counter(), set()):
            with self.subTest(record=type(record)):
                self.same(lambda record=record: DataLoader(range(6000), batch_size=2000, sampler=Recorder(
                    copy.copy(record))), 8, (4, 7))

    def test_a_list_that_each_order_makes_anew_is_made_once_for_an_epoch(self):
        class Anew(Sampler):
            def __init__(self):
                self.batches, self.made = [[0]] * 5000, types.SimpleNamespace(count=0)

            def __len__(self):
                return 2

            def __iter__(self):
                self.made.count += 1
                self.batches = torch.randperm(6000).view(2, 3000).tolist()
                return iter(self.batches)
        order = Anew()
        place = loaders.place_in(DataLoader(range(6000), batch_sampler=order))
        for _ in range(8):
            place.next()
        self.assertEqual(4 + 1, order.made.count, "and once to see that it comes of what is kept")

    def test_weights_that_the_script_replaces_at_an_epochs_end(self):
        def make():
            weights = torch.ones(6000, dtype=torch.float64)
            return DataLoader(range(6000), batch_size=10, sampler=WeightedRandomSampler(weights, 40))

        def act(loader, step, _):
            if step % 4 == 3:
                loader.sampler.weights = torch.rand(6000, generator=torch.Generator().manual_seed(step)).double()
        plain, _ = self.run_it(make, 12, act=act)
        self.assertEqual(plain, self.run_it(make, 12, 5, act=act)[0])
        sentence = r"WeightedRandomSampler.weights, .* isn't kept, was replaced .* other values are in this process"
        with self.assertRaisesRegex(pawl.Refused, sentence):
            self.run_it(make, 12, 5, True, act)

        def choosing():
            return DataLoader(range(6000), batch_size=10, sampler=SubsetRandomSampler(list(range(5000))))

        def choose(loader, step, _):
            if step % 500 == 499:
                loader.sampler.indices = list(range(500, 5500))
        with self.assertRaisesRegex(pawl.Refused, "SubsetRandomSampler.indices, .* other values are in this process"):
            self.run_it(choosing, 502, 501, True, choose)

        def amid(loader, step, _):
            if step == 1:
                loader.sampler.weights = torch.rand(6000, generator=torch.Generator().manual_seed(step)).double()
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.run_it(make, 4, 3, True, amid)
        self.assertRegex(said.getvalue(), sentence)

    def test_a_long_record_that_steers_no_order(self):
        class Counting(Sampler):
            def __init__(self):
                self.seen = torch.zeros(6000)

            def __len__(self):
                return 40

            def __iter__(self):
                return iter(torch.randperm(40).tolist())

        def make():
            return DataLoader(range(40), batch_size=10, sampler=Counting())

        def act(loader, step, _):
            loader.sampler.seen = loader.sampler.seen + 1
        plain, _ = self.run_it(make, 12, act=act)
        for anew in (False, True):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(plain, self.run_it(make, 12, 5, anew, act)[0])
            self.assertEqual(anew, "Counting.seen, " in said.getvalue(), said.getvalue())

    def test_a_dataset_of_two_loaders_is_told_by_the_first(self):
        class Passing(Dataset):
            def __init__(self, data):
                self.dataset = data

            def set_epoch(self, epoch):
                self.dataset.set_epoch(epoch)

            def __len__(self):
                return 8

            def __getitem__(self, index):
                return self.dataset[index]
        for wrap, workers in itertools.product((lambda data: torch.utils.data.Subset(data, range(8)), Passing), (0, 1)):
            data = ToldData(40)
            one = DataLoader(torch.utils.data.Subset(data, range(40)), batch_size=4)
            place = loaders.place_in((one, DataLoader(wrap(data), batch_size=4, num_workers=workers,
                                                      persistent_workers=workers > 0)))
            found = [place.next() for _ in range(12)]
            place.close()
            self.assertEqual([0] * 10 + [1] * 2, [int(batch[0]) // 100 for batch, _ in found])
            self.assertEqual([0, 1], data.told)
            self.assertEqual([0] * 10 + [1] * 2, [int(batch[0]) // 100 for _, batch in found])

    def test_who_passes_the_epoch_on_has_told_it(self):
        class Outer(BatchSampler):
            def set_epoch(self, epoch):
                self.sampler.set_epoch(epoch)

        class OuterData(Dataset):
            def __init__(self, data):
                self.dataset = data

            def set_epoch(self, epoch):
                self.dataset.set_epoch(epoch + 5)

            def __len__(self):
                return len(self.dataset)

            def __getitem__(self, index):
                return self.dataset[index]
        inner, data = Heard(lambda order, epoch: order, 8), ToldData(8)
        inner.__class__ = type("Short", (Heard,), {"__len__": lambda self: 8})
        place = loaders.place_in(DataLoader(OuterData(data), batch_sampler=Outer(inner, 4, False)))
        found = [int(place.next()[0]) // 100 for _ in range(6)]
        self.assertEqual([0, 1, 2], inner.told)
        self.assertEqual(([5, 6, 7], [5, 5, 6, 6, 7, 7]), (data.told, found))
        self.assertNotIn("set_epoch", {**vars(inner), **vars(data)})

    def test_an_epoch_that_could_not_be_told_is_told_again(self):
        class Failing(ToldData):
            def set_epoch(self, epoch):
                super().set_epoch(epoch)
                if len(self.told) == 1:
                    raise OSError("away")
        data = Failing()
        place = loaders.place_in(DataLoader(data, batch_size=4))
        with self.assertRaises(OSError):
            place.next()
        place.next()
        self.assertEqual([0, 0], data.told)

    def test_of_a_dataset_only_what_the_script_has_changed_is_kept(self):
        class Opening(Dataset):
            """Opens a file when its samples are asked for, and another one later."""

            offset = 0

            def __init__(self, directory):
                self.directory, self.handle, self.mosaic, self.file = directory, None, True, [directory, None]

            def __len__(self):
                return 8

            def __getitem__(self, index):
                if self.handle != index // 4:
                    self.handle, self.file = index // 4, [self.directory, index // 4]
                return [self.directory, self.file[0], self.file[1], self.mosaic, self.offset]
        for workers, anew in itertools.product((0, 1), (False, True)):
            def make(directory, workers=workers):
                return loaders.place_in(DataLoader(Opening(directory), batch_size=2, num_workers=workers,
                                                   collate_fn=lambda rows: rows[0]))
            with self.subTest(workers=workers, anew=anew):
                place, saved, found = make("dead"), [], []
                for step in range(16):
                    saved.append(tagged_values.dumps("", place.part("").save()))
                    if step == 8:
                        place.loader.dataset.mosaic, place.loader.dataset.offset = False, 7
                    found.append(place.next())
                self.assertEqual([[True, 0]] * 8 + [[False, 7]] * 8, [row[3:] for row in found])
                name = "spare" if anew else "dead"
                for loss in (2, 9, 11):
                    other = make(name) if anew else place
                    other.part("").load(tagged_values.loads(saved[loss]))
                    self.assertEqual(loss < 9, other.loader.dataset.mosaic)
                    again = [other.next() for _ in range(loss, 16 if loss > 8 else 8)]
                    self.assertEqual([[name, name, *row[2:]] for row in found[loss:loss + len(again)]], again)
                    other.close()
                place.close()

    def test_what_a_dataset_has_read_for_an_evaluation_is_its_own(self):
        class Sharded(Dataset):
            """Keeps the shard that it has read last."""

            def __init__(self):
                self.shard, self.values = -1, None

            def __len__(self):
                return 24

            def __getitem__(self, index):
                if index // 4 != self.shard:
                    self.shard, self.values = index // 4, [100 * (index // 4) + each for each in range(4)]
                return torch.tensor([index, self.values[index % 4]])
        watch = data_position.LoaderWatch(protect.Protected(0, 1), lambda: None)
        self.addCleanup(watch.close)

        def act(loader, step, _):
            if step % 3 == 2:
                next(iter(DataLoader(loader.dataset, batch_size=4, sampler=SubsetRandomSampler(
                    [23 - step], generator=torch.Generator()), generator=torch.Generator())))
        for workers in (0, 1):
            self.same(lambda workers=workers: DataLoader(Sharded(), batch_size=3, num_workers=workers), 18,
                      (4, 6, 7, 11, 13), act=act)

    def test_numbers_of_numpys_and_tuples_of_a_dataset_are_kept(self):
        class Sized(Phased):
            size, strength = (8, 8), 0.0

            def __getitem__(self, index):
                return torch.tensor([index, self.size[0], float(self.strength)])

        def act(loader, step, _):
            if step == 2:
                loader.dataset.size, loader.dataset.strength = (16, 16), numpy.float64(0.5)
        for workers in (0, 1):
            found = self.same(lambda workers=workers: DataLoader(Sized(), batch_size=4, num_workers=workers), 9,
                              (4, 6, 8), act=act)
            self.assertEqual([24, 16, 0.5], [found[-1][-1][0] + 13, *found[-1][-1][1:]])
        place = loaders.place_in(DataLoader(Sized(), batch_size=4))
        place.loader.dataset.size, place.loader.dataset.strength = ((1, 2), 3), "word" * 100
        self.assertEqual([{}], place.part("").save()["attributes"]["now"])

    def test_of_a_loader_only_what_is_not_kept_is_told(self):
        class Varied(Phased):
            strength, table = 0.0, None

            def __init__(self):
                super().__init__()
                self.chance = random.Random(1)

        class Faded:
            p = 1.0

            def __call__(self, rows):
                return torch.tensor(rows)

        class Level(StatefulStream):
            pass

        def told(loader, act):
            protected = protect.Protected(0, 1)
            place, finder = protected.place_in(loader), unprotected_state.Finder(unprotected_state.Known(protected))
            found = []
            for number in range(3):
                place.next()
                finder.is_known.refresh()
                found.append(finder.find(sys._getframe()))
                act(loader, number)
            return {path.removeprefix("loader.") for path, each in found[2].items()
                    if path.startswith("loader") and each != found[1].get(path)}

        def change(loader, number):
            loader.sampler.set_epoch(number)
            loader.sampler.factors = [float(number)]
            loader.dataset.strength, loader.dataset.table = 0.5 * number, list(range(number, 100))
            loader.collate_fn.p = 0.5 * number
            loader.dataset.chance.random()
        shards = DistributedSampler(range(24), num_replicas=1, rank=0)
        self.assertEqual({"dataset.table", "collate_fn.p"},
                         told(DataLoader(Varied(), batch_size=4, sampler=shards, collate_fn=Faded()), change))
        self.assertEqual(set(), told(DataLoader(Level(), batch_size=4), lambda *_: None))

    def test_marks_of_random_numbers_are_few(self):
        place = loaders.place_in(DataLoader(range(300), batch_size=1))
        with unittest.mock.patch.object(loader_parts, "random_mark", side_effect=loader_parts.random_mark) as marks:
            for _ in range(200):
                place.next()
        self.assertEqual(2 * (3 + 3), marks.call_count)

    def test_a_look_at_a_long_container_is_short(self):
        with unittest.mock.patch.object(sampler_state, "_some", side_effect=sampler_state._some) as looks:
            nested = [[list(range(100)) for _ in range(100)] for _ in range(100)]
            for value in (nested, dict(enumerate(nested)), collections.deque(range(10000)), set(range(10000)),
                          {each: [each] for each in range(10000)}):
                looks.reset_mock()
                sampler_state._some(value)
                self.assertLess(looks.call_count, 20000)
        self.assertNotEqual(sampler_state._some(nested), sampler_state._some(nested[1:]))
        for last in ([1, 2, 3], collections.deque(range(1000)), dict.fromkeys(range(1000))):
            before = sampler_state._some(last)
            last.pop() if not isinstance(last, dict) else last.popitem()
            self.assertNotEqual(before, sampler_state._some(last))

    def test_which_epochs_are_told_to_find_the_place_of_a_checkpoint(self):
        def told(grows, done):
            data = ToldData(4, grows)
            place = loaders.place_in(DataLoader(data, batch_size=4))
            place.seek(done)
            with contextlib.redirect_stderr(io.StringIO()) as said:
                place.next()
            return place.epoch, data.told, said.getvalue()
        self.assertEqual((100, [0, 100], ""), told(0, 100))
        epoch, heard, said = told(4, 7)
        self.assertEqual((3, [0, 7, 1, 2, 3]), (epoch, heard))
        self.assertIn("pawl: done=7 is in epoch 3: to find it, 4 epochs were told", said)

    def test_an_order_that_comes_of_the_epoch_is_not_taken_for_a_random_one(self):
        class Seeded(Sampler):
            def __init__(self, seed):
                self.epoch, self.seed, self.chance = 0, seed, None

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __len__(self):
                return 40

            def __iter__(self):
                self.chance = torch.Generator().manual_seed(self.seed(self.epoch))
                return iter(torch.randperm(40, generator=self.chance).tolist())

        class SeededAtFirst(Seeded):
            def __init__(self):
                super().__init__(None)
                self.chance = torch.Generator()

            def __iter__(self):
                self.chance.manual_seed(self.epoch)
                return iter(torch.randperm(40, generator=self.chance).tolist())
        for make, warns in ((lambda: Seeded(int), False), (SeededAtFirst, False),
                            (lambda: Seeded(lambda _: int(torch.randint(1 << 30, ()))), True)):
            place = loaders.place_in(DataLoader(range(40), batch_size=4, sampler=make()))
            place.seek(13)
            torch.manual_seed(3)
            before = volatile_state.save_random()
            with contextlib.redirect_stderr(io.StringIO()) as said:
                place.next()
            self.assertEqual(warns, "come twice" in said.getvalue())
            if not warns:
                moved = volatile_state.save_random()
                self.assertTrue(all(loader_parts.same(before[name], moved[name]) for name in ("python", "numpy")))

    def test_a_generator_without_a_state(self):
        loader_parts.tell_stateless.cache_clear()
        for workers in (0, 1):
            with contextlib.redirect_stderr(io.StringIO()) as told:
                place = loaders.place_in(DataLoader(Drawing(chance=random.SystemRandom()), num_workers=workers))
                place.part("").load(place.part("").save())
                place.next()
                place.close()
            self.assertEqual(not workers, "dataset.chance is a random.SystemRandom" in told.getvalue())


class LoopTest(unittest.TestCase):
    """Over the plain job."""

    def setUp(self):
        self.job = pawl.Job(0, 1, 0, torch.device("cpu"))
        self.loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=4)

    def test_steps_and_batches(self):
        seen = []
        for step, (x,) in self.job.batches(self.loader, epochs=2):
            with step:
                seen.append((int(step), self.job.epoch, x.tolist()[0]))
        self.assertEqual([(1, 0, 0.0), (2, 0, 4.0), (3, 0, 8.0), (4, 1, 0.0), (5, 1, 4.0), (6, 1, 8.0)], seen)

    def test_batches_of_two_loaders(self):
        seen = []
        for step, ((x,), y) in self.job.batches((self.loader, DataLoader(range(3), batch_size=2)), epochs=2):
            with step:
                seen.append((self.job.epoch, x.tolist()[0], y.tolist()))
        self.assertEqual([(0, 0.0, [0, 1]), (0, 4.0, [2]), (0, 8.0, [0, 1]), (1, 0.0, [2]), (1, 4.0, [0, 1]),
                          (1, 8.0, [2])], seen)

    def test_a_step_without_its_block(self):
        with self.assertRaisesRegex(pawl.PawlError, "has no block"):
            for _ in self.job.batches(self.loader):
                pass

    def test_a_loop_that_is_entered_again_does_as_many_steps(self):
        loader, found = DataLoader(range(20), batch_sampler=Epochs(17)), []
        job = pawl.Job(0, 1, 0, torch.device("cpu"))
        for ends in (7, 11, 99):
            for step, _ in job.batches(loader, epochs=3):
                with step:
                    found.append(int(step))
                if step == ends:
                    job._leave = lambda _: None  # as after a lost step, under @pawl.resilient
                    break
        self.assertEqual([*range(1, 16)], found, "the later epochs are shorter")

    def test_batches_alone(self):
        seen, committed = [], []
        for (x,) in self.job.loop(self.loader, steps=5):
            self.job.step.on_commit(lambda number=int(self.job.step): committed.append(number))
            seen.append((int(self.job.step), x.tolist()[0]))
            self.assertEqual(list(range(1, len(seen))), committed, "the block ends at the next batch")
        self.assertEqual([(1, 0.0), (2, 4.0), (3, 8.0), (4, 0.0), (5, 4.0)], seen)
        self.assertEqual([1, 2, 3, 4, 5], committed)
        self.assertIsNone(self.job.step)

    def test_break_ends_the_step_and_an_exception_does_not(self):
        for leave, done in ((True, 2), (False, 1)):
            job = pawl.Job(0, 1, 0, torch.device("cpu"))
            try:
                for _ in job.loop(self.loader):
                    if job.step == 2:
                        if leave:
                            break
                        raise ValueError
            except ValueError:
                pass
            self.assertEqual((done, None), (job._done, job.step))

    def test_a_second_loop_is_refused(self):
        for leave in (False, True):
            job = pawl.Job(0, 1, 0, torch.device("cpu"))
            with self.assertRaisesRegex(pawl.Refused, "one loop, and it has ended.* epochs="):
                for _ in range(3):
                    for step, _ in job.batches(self.loader):
                        with step:
                            pass
                        if leave:
                            break
            self.assertEqual(1 if leave else 3, job._done)

    def left(self, use):
        """Steps that are done when `use` is through with the iterator of a loop."""
        job = pawl.Job(0, 1, 0, torch.device("cpu"))
        with contextlib.suppress(ValueError):
            use(job.loop(self.loader, epochs=5), job)
        return job._done

    def test_a_loop_whose_iterator_is_held_ends_its_last_step(self):
        def named(batches, job):
            for _ in batches:
                if job.step == 2:
                    break

        def returning(batches, job):
            for _ in progress(batches):
                if job.step == 2:
                    return

        def held(batches, job):
            bar = Bar(batches)
            for _ in bar:
                if job.step == 2:
                    break
            self.assertEqual(1, job._done)

        def drawing(batches, job):
            for _ in range(2):
                next(batches)

        def replaced(batches, job):
            next(batches), next(batches)
            batches = None

        for use in (named, returning, held, drawing, replaced,
                    lambda batches, _: list(zip(range(2), batches, strict=False)),
                    lambda batches, _: list(itertools.islice(batches, 2)),
                    lambda batches, _: [None for _ in progress(itertools.islice(batches, 2))]):
            self.assertEqual(2, self.left(use), use)

    def test_a_loop_whose_iterator_is_held_and_an_exception(self):
        def fail():
            raise ValueError

        for wrap in (iter, progress, enumerate, Bar, lambda batches: zip(batches, range(9), strict=False)):
            def use(job, wrap=wrap):
                for _ in wrap(job.loop(self.loader)):
                    if job.step == 2:
                        fail()
            job = pawl.Job(0, 1, 0, torch.device("cpu"))
            with self.assertRaises(ValueError):
                use(job)
            self.assertEqual(1, job._done, wrap)

    def test_the_loops_frame_behind_other_iterators(self):
        seen = []
        pawl.job.observe_steps(types.SimpleNamespace(
            entering=lambda _job, _step, loop: seen.append(loop.f_code.co_name), finished=lambda *_: None))
        self.addCleanup(pawl.job.observe_steps, None)

        def own(drawn):
            yield from drawn
        for _ in own(progress(self.job.loop(self.loader))):
            pass

        def generated():
            for step, _ in progress(pawl.Job(0, 1, 0, torch.device("cpu")).batches(self.loader)):
                with step:
                    yield
        list(generated())
        self.assertEqual([self._testMethodName] * 3 + ["generated"] * 3, seen)

    def test_an_exit_in_the_body(self):
        for error, failed in ((SystemExit(0), False), (SystemExit(2), True), (ValueError(), True)):
            self.addCleanup(script_exit.note_failure, SystemExit(0))
            script_exit.note_failure(error)
            script_exit.note_failure(GeneratorExit())
            self.assertEqual(failed, script_exit._failed)

    def test_a_loop_whose_iterator_is_held_when_the_process_fails(self):
        held = []

        def train():
            held.append(self.job.loop(self.loader))
            for _ in held[0]:
                return
        train()
        self.addCleanup(script_exit.note_failure, SystemExit(0))
        script_exit.note_failure(ValueError())
        held.clear()
        self.assertEqual((0, None), (self.job._done, self.job.step))

    def test_a_loop_whose_iterator_is_held_until_the_script_ends(self):
        batches = self.job.loop(self.loader)
        next(batches)
        self.job.end_loop()
        self.assertEqual((1, None, []), (self.job._done, self.job.step, list(batches)))

    def test_from_a_checkpoint_and_a_stop(self):
        seen = []
        for (x,) in self.job.loop(self.loader, epochs=3, done=4):
            seen.append((int(self.job.step), self.job.epoch, x.tolist()[0]))
            if self.job.step == 6:
                self.job.stop()
        self.assertEqual([(5, 1, 4.0), (6, 1, 8.0)], seen[:2])
        self.assertLessEqual(len(seen), 3)


class ExamplesTest(unittest.TestCase):
    def test_both_forms_give_what_the_plain_loop_gives(self):
        """Each in one process, without pawl's daemon."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PAWL")}
        plain.update(PYTHONPATH=PACKAGE, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0",
                     GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        said = [subprocess.run([sys.executable, "-B", os.path.join(EXAMPLES, name + ".py")], env=plain, timeout=240,
                               capture_output=True, text=True, check=True).stdout
                for name in ("train", "protected", "protected_loop")]
        said = [[line for line in text.splitlines() if not line.startswith("[Gloo]")] for text in said]  # torch 2.8
        self.assertEqual(32, len(said[0]))
        self.assertEqual([said[0]] * 2, said[1:])


if __name__ == "__main__":
    harness.main()
