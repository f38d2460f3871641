"""Calls of sizes that no program was made for: one program serves them, and answers are eager's."""

import copy
import multiprocessing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import autopar
from autopar.errors import DifferenceError
from autopar.ir.open_size import OpenSize

pytestmark = pytest.mark.slow

SIZES = [(3, 4), (4, 6), (5, 5), (3, 9), (7, 4), (2, 20), (6, 6), (4, 3), (8, 30)]


class Attention(nn.Module):
    """Sizes as arguments of views, masks, slices and new tensors, and one of them returned."""

    def __init__(self):
        super().__init__()
        self.packed, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.packed(x).view(rows, length, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, -1e9).softmax(-1)
        y = (scores @ v).transpose(1, 2).reshape(rows * length, 16)
        return (
            self.out(y).view(rows, length, 16)[:, length // 2 :],
            rows * length,
            x.new_ones(rows, length + 1),
        )


class Normed(nn.Module):
    """Buffers that each call updates, and dropout."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x):
        rows, length, _ = x.shape
        return self.drop(self.norm(self.body(x).view(rows * length, 8))).view(rows, length * 8)


def served(fast):
    """The graph with open sizes."""
    return fast._placement.session.graphs[-1]


def pair(model, devices, **options):
    torch.manual_seed(0)
    plain = model().double()
    return plain, autopar.compile(copy.deepcopy(plain), devices, **options)


def equal(found, expected):
    mine, theirs = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs):
        if isinstance(other, torch.Tensor):
            # Lanes with fewer threads add in another order.
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def alike(plain, fast, sizes, grad):
    """Assert that a call, its gradients and what it leaves in buffers are eager's."""
    x, seed = torch.randn(*sizes, 16, dtype=torch.double), torch.randint(1 << 30, ()).item()
    results = []
    for model in (plain, fast):
        model.zero_grad()
        torch.manual_seed(seed)
        with torch.set_grad_enabled(grad):
            results.append(model(x))
        if grad:
            pytree.tree_leaves(results[-1])[0].square().sum().backward()
    equal(*reversed(results))
    for one, other in zip(fast.parameters(), plain.parameters()):
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
    equal([*fast.buffers()], [*plain.buffers()])


@pytest.mark.parametrize(
    "model, devices, grad",
    [
        (Normed, ["cpu"], True),
        (Normed, ["cpu*2"], False),
    ],
)
def test_one_program_serves_all_sizes(model, devices, grad):
    plain, fast = pair(model, devices, split=None)
    for sizes in SIZES * 2:
        alike(plain, fast, sizes, grad)
    open_graph = served(fast)
    assert not open_graph.written and len(open_graph.programs) == 1
    assert "other sets of sizes share a program" in " ".join(fast.explain().split())
    # An explanation measures, and binds the program anew.
    for sizes in reversed(SIZES):
        alike(plain, fast, sizes, grad)


@pytest.mark.parametrize("first", [6, 4], ids=["", "as long as the batch"])
def test_a_split_batch_is_planned_for_each_length(first):
    plain, fast = pair(Attention, ["cpu", "emulated:0"], split=2)
    for rows, length in [(4, first), (4, 9), (4, 7), (5, 11), (1, 11), (4, first), (4, 9)]:
        alike(plain, fast, (rows, length), False)
        if rows > 1:
            assert fast.plan.costed.graph.split == ("2 parts: 2 + 2" if rows == 4 else "2 parts: 3 + 2")


def test_an_input_without_elements_is_not_split():
    fast = autopar.compile(nn.Linear(16, 4), ["cpu", "emulated:0"], split=2)
    for rows, length in ((4, 6), (4, 3), (4, 0), (0, 3), (1, 3)):
        assert fast(torch.randn(rows, length, 16)).shape == (rows, length, 4)


def test_an_axis_that_is_by_chance_as_long_as_the_batch():
    """Where splitting begins again, the batch is the first axis that is as long, here the halved length of 8."""
    plain, fast = pair(Rolled, ["cpu", "emulated:0"], split=2)
    for count, length in [(5, 12), (5, 8), (6, 8), (7, 12), (7, 10), (5, 20)]:
        alike(plain, fast, (4, count, length), False)


class Rolled(nn.Module):
    """An operator that no part can compute, behind which the batch is neither of the first two axes."""

    def __init__(self):
        super().__init__()
        self.wide, self.out = nn.Linear(16, 512), nn.Linear(512, 16)

    def forward(self, x):
        x = x[:, :, : x.shape[2] // 2].permute(2, 1, 0, 3)
        return self.out(self.wide(torch.renorm(x, 2, 3, 1.0)).relu())


class Blocks(nn.Module):
    """Length and batch in one axis, in this order."""

    def __init__(self):
        super().__init__()
        self.wide, self.out = nn.Linear(16, 512), nn.Linear(512, 16)

    def forward(self, x):
        rows, length, _ = x.shape
        y = self.wide(x.transpose(0, 1).reshape(length * rows, 16)).relu()
        return self.out(y)


@settings(max_examples=8, deadline=None)
@given(sizes=st.tuples(st.integers(2, 40), st.integers(2, 40)))
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_any_sizes_are_eagers(shared, grad, sizes):
    alike(*shared, sizes, grad)
    assert all(len(each.programs) <= 1 for each in shared[1]._placement.session.graphs if not each.written)


@pytest.fixture(scope="module")
def shared():
    # How sizes come to be open, other tests here show.
    plain, fast = pair(Attention, ["cpu", "emulated:0"], split=None, dynamic=True)
    for grad in (False, True):
        for sizes in SIZES[:2]:
            alike(plain, fast, sizes, grad)
    return plain, fast


def test_sizes_are_served_as_long_as_their_peaks_keep_the_caps():
    plain, fast = pair(Attention, ["cpu", "emulated:0"], memory={"cpu": "1MiB", "emulated:0": "1MiB"})
    with torch.no_grad():
        for sizes in [(2, 4), (3, 5), (2, 6), (4, 80)]:
            alike(plain, fast, sizes, False)
        programs = served(fast).programs
        assert (4, 80) not in programs and (2, 6) not in programs
        with pytest.raises(autopar.errors.MemoryCapError):
            fast(torch.randn(8, 400, 16, dtype=torch.double))


def test_the_first_few_sizes_have_kernels_of_their_own():
    plain, fast = pair(Blocks, ["cpu"], kernels="aot_eager")
    with torch.no_grad():
        for sizes in SIZES:
            alike(plain, fast, sizes, False)
        programs = served(fast).programs
        assert SIZES[-1] not in programs and len(programs) == 4
        assert {program.executor.serving for program in programs.values()} == {"aot_eager"}
    fast.close()


def test_a_recorded_call_is_planned_for_its_own_sizes():
    _, fast = pair(Blocks, ["cpu*2"], split=None)
    with torch.no_grad():
        for sizes in SIZES[:5]:
            fast(torch.randn(*sizes, 16, dtype=torch.double))
        assert SIZES[4] not in served(fast).programs
        with fast.record() as timeline:
            fast(torch.randn(*SIZES[4], 16, dtype=torch.double))
        assert SIZES[4] in served(fast).programs and timeline.last.makespan > 0


def test_a_wrong_answer_of_other_sizes_is_found(monkeypatch):
    """If a size were lost between capture and code, the first calls of other sizes would be refused."""
    plain, fast = pair(Blocks, ["cpu"])
    with torch.no_grad():
        for sizes in SIZES[:2]:
            fast(torch.randn(*sizes, 16, dtype=torch.double))
        (program,) = served(fast).programs.values()
        right = type(program).resized
        monkeypatch.setattr(
            type(program),
            "resized",
            lambda self, source: right(self, _with(source, source.sizes[:1] * len(source.sizes))),
        )
        with pytest.raises((DifferenceError, autopar.errors.RunError)):
            fast(torch.randn(3, 9, 16, dtype=torch.double))
        monkeypatch.undo()
        alike(plain, fast, (3, 9), False)


def _with(captured, sizes):
    return captured.__class__(**{**vars(captured), "sizes": sizes})


def test_a_forked_process_calls_with_other_sizes():
    plain, fast = pair(Blocks, ["cpu*2"])
    with torch.no_grad():
        for sizes in SIZES[:5]:
            fast(torch.randn(*sizes, 16, dtype=torch.double))
        x = torch.randn(5, 5, 16, dtype=torch.double)
        fast(x)
        context = multiprocessing.get_context("fork")
        ends, other = context.Pipe()
        process = context.Process(target=lambda: other.send([fast(x).tolist(), fast(x[:4]).tolist()]))
        process.start()
        assert ends.poll(60)
        for found, given in zip(ends.recv(), (x, x[:4])):
            equal(torch.tensor(found, dtype=torch.double), plain(given))
        process.join()


def test_an_open_size_is_its_number_everywhere_but_in_its_place():
    size = OpenSize(12, 3)
    assert size == 12 and size + 1 == 13 and f"{size}" == str(size) == "12"
    assert repr(size) != repr(OpenSize(12, 4)) != "12"
    assert copy.deepcopy(size).place == 3


class Scores(Attention):
    """A mean over the positions: its loss has the same form for all sizes. Its many parameters are updated together."""

    def __init__(self):
        super().__init__()
        self.norms = nn.Sequential(*(nn.LayerNorm(16) for _ in range(3)))

    def forward(self, x):
        return self.norms(super().forward(x)[0]).mean(1)


@pytest.mark.parametrize(
    "optimizer, devices",
    [
        (torch.optim.AdamW, ["cpu*2"]),
        (torch.optim.RMSprop, ["cpu"]),
    ],
)
def test_one_program_takes_steps_of_all_sizes(optimizer, devices):
    """RMSprop steps by itself, AdamW within the program."""
    torch.manual_seed(0)
    plain = Scores().double()
    model = copy.deepcopy(plain)
    ours, theirs = (optimizer(each.parameters(), 1e-3) for each in (model, plain))
    step = autopar.train_step(model, nn.CrossEntropyLoss(), ours, devices)
    for sizes in (*SIZES[:6], *SIZES[:3]):
        x, y = torch.randn(*sizes, 16, dtype=torch.double), torch.randint(16, sizes[:1])
        loss = nn.functional.cross_entropy(plain(x), y)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        torch.testing.assert_close(step(x, y), loss.detach())
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other)
    assert len(step._session.graphs[-1].programs) == 1
    step.prepare(torch.randn(3, 9, 16, dtype=torch.double), torch.randint(16, (3,)))
    assert len(step._session.graphs[-1].programs) == 2, "a plan that is asked for is one for its own sizes"
