"""Run by torchrun: what ranks do together, checked on every rank."""

import os

import torch
import torch.distributed as dist

import outsize
from outsize.errors import CheckpointError
from outsize.interrupts import StopRequested, check_stop, stopping_when
from outsize.metrics import ClickMetrics
from outsize.ranks import collectives, machines
from outsize.ranks.collectives import (
    ProcessRanks,
    any_rank,
    check_stop_together,
    first_rank_first,
    gather_rows,
    gather_values,
    mean_over_ranks_,
    process_group,
    rank,
    sum_over_ranks,
    value_of_first,
    world_size,
)
from outsize.ranks.failures import failing_together
from outsize.ranks.gloo_threads import gloo_loops
from outsize.training.build import data_parallel
from outsize.training.config import RunConfig


def check_uneven_rows_are_gathered_in_rank_order():
    mine = torch.full((rank() * 2, 3), float(rank()))
    parts = gather_rows(mine)
    assert [part.shape[0] for part in parts] == [2 * r for r in range(world_size())]
    assert all((part == r).all() for r, part in enumerate(parts))


def check_flags_and_sums():
    cpu = torch.device("cpu")
    assert any_rank(rank() == 1, cpu)
    assert not any_rank(False, cpu)
    assert sum_over_ranks(torch.tensor(rank())).item() == sum(range(world_size()))


def check_no_thread_of_gloo_preempts_what_it_waits_for():
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert ProcessRanks().own_group().size == world_size()
    policies = [os.sched_getscheduler(thread) for thread in gloo_loops()]
    assert policies == [os.SCHED_BATCH] * 2  # of the run's group, and of the other
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def check_messages_of_any_size_arrive_whole():
    """Larger ones in pieces, from each rank to each other another number of them, or none."""

    def content(sender, receiver):
        size = (0, 1, 700_001, 1 << 19, (1 << 20) + 3)[(3 * sender + receiver) % 5]
        draws = torch.Generator().manual_seed(10 * sender + receiver)
        return torch.randint(256, (size,), generator=draws, dtype=torch.uint8)

    os.environ["LOCAL_WORLD_SIZE"] = "1"  # as on several machines
    everyone = range(world_size())
    for ranks in (ProcessRanks(), ProcessRanks().own_group()):
        for _ in range(3):
            expected = [content(sender, rank()) for sender in everyone]
            sent = [content(rank(), receiver) for receiver in everyone]
            found = ranks.swap_bytes(sent, [len(message) for message in expected])
            assert all(map(torch.equal, found, expected))
    group = dist.new_group([0, world_size() - 1], backend="gloo")
    if rank() in (0, world_size() - 1):
        ranks, other = ProcessRanks(group), world_size() - 1 - rank()
        sent, expected = content(rank(), other), content(other, rank())
        messages, sizes = [sent[:0]] * 2, [0, 0]
        messages[1 - ranks.rank], sizes[1 - ranks.rank] = sent, len(expected)
        assert torch.equal(ranks.swap_bytes(messages, sizes)[1 - ranks.rank], expected)


def check_what_one_machine_sends_arrives_as_well():
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size())
    sent = [torch.full((300_000 + receiver,), rank(), dtype=torch.uint8)
            for receiver in range(world_size())]  # fmt: skip
    found = ProcessRanks().swap_bytes(sent, [300_000 + rank()] * world_size())
    assert all((part == sender).all() for sender, part in enumerate(found))


def check_ranks_without_a_launcher_tell_each_other_where_they_are():
    del os.environ["LOCAL_WORLD_SIZE"]
    sent = [torch.full((300_000,), rank(), dtype=torch.uint8)] * world_size()
    for number, cuts in ((rank(), True), (machines.machine_number(), False)):
        collectives.machine_number = lambda number=number: number
        ranks = ProcessRanks()
        found = ranks.swap_bytes(sent, [300_000] * world_size())
        assert all((part == sender).all() for sender, part in enumerate(found))
        assert ranks._cuts_messages == cuts
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size())


def check_a_mean_does_not_depend_on_the_place_of_a_value():
    mine = torch.randn(600_001, generator=torch.Generator().manual_seed(rank()))
    moved = mine.flip(0)
    everyone = gather_rows(mine)
    for values in (mine, moved):
        mean_over_ranks_(values)
    assert torch.equal(mine, moved.flip(0))
    torch.testing.assert_close(mine, torch.stack(everyone).mean(0))


def check_the_first_step_of_a_process_averages_as_later_ones_do():
    """A resumed run begins with the layout of gradients that DDP gives up after its first step."""
    draws = torch.Generator().manual_seed(rank())
    model = torch.nn.Sequential(*(torch.nn.Linear(7, 7) for _ in range(5)))
    wrapped = data_parallel(RunConfig(), model)
    inputs = torch.randn(32, 7, generator=draws)
    found = []
    for _ in range(3):
        model.zero_grad()
        wrapped(inputs).square().sum().backward()
        found.append([weight.grad.clone() for weight in model.parameters()])
    assert all(map(torch.equal, found[0], found[-1]))


def check_values_are_gathered_in_rank_order():
    mine = {"rank": rank(), "ü": ["x" * 1000 * rank(), None, 0.1]}
    assert gather_values(mine) == [
        {"rank": r, "ü": ["x" * 1000 * r, None, 0.1]} for r in range(world_size())
    ]
    assert value_of_first(rank() + 5) == 5


def check_an_error_of_one_rank_is_one_of_all():
    with failing_together(CheckpointError):
        pass
    met = None
    try:
        with failing_together(CheckpointError):
            if rank() == 1:
                raise KeyError("lost")
    except (KeyError, CheckpointError) as error:
        met = repr(error)
    expected = KeyError("lost") if rank() == 1 else CheckpointError("rank 1: 'lost'")
    assert met == repr(expected)
    assert sum_over_ranks(torch.ones(1)).item() == world_size()  # and all go on together


def check_a_stop_of_one_rank_is_one_of_all():
    def one_rank_works():
        with failing_together(CheckpointError):
            if rank() == 1:
                check_stop()

    check_stop_together(torch.device("cpu"))
    for work in (lambda: check_stop_together(torch.device("cpu")), one_rank_works):
        stopped = False
        try:
            with stopping_when(lambda: rank() == 1):
                work()
        except StopRequested:
            stopped = True
        assert stopped


def check_metrics_equal_those_of_one_process(exact_examples):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, generator=generator)
    labels = (torch.rand(1000, generator=generator) < torch.sigmoid(logits)).float()
    whole = ClickMetrics(exact_examples)
    whole.add(logits, labels)
    # Uneven on purpose: the first rank has most, the last none.
    bounds = [0, 900, *([1000] * (world_size() - 1))]
    mine = ClickMetrics(exact_examples)
    if rank() < world_size() - 1:
        mine.add(
            logits[bounds[rank()] : bounds[rank() + 1]], labels[bounds[rank()] : bounds[rank() + 1]]
        )
    gathered, expected = mine.gather().result(), whole.result()
    assert gathered.keys() == expected.keys()
    for name, value in expected.items():
        assert abs(gathered[name] - value) < 1e-9, name


def check_replicas_stay_equal_and_average():
    spec = outsize.TableSpec("rows", num_rows=10, dim=2)
    thin = outsize.TableSpec("thin", num_rows=4, dim=1)
    store = outsize.stores.replicated_local_store([spec, thin])
    rows = outsize.RowSGD(store, learning_rate=1.0)
    before = store.read(torch.arange(10), "rows")
    # Everyone touches row 0, rank r touches row r, the last rank nothing.
    ids = (
        torch.tensor([0, rank()])
        if rank() < world_size() - 1
        else torch.empty(0, dtype=torch.int64)
    )
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("rows")], store)
    embeddings({"rows": ids})["rows"].sum().backward()
    rows.step()
    moved = before - store.read(torch.arange(10), "rows")
    expected = torch.zeros(10, 2)
    for r in range(world_size() - 1):
        expected[0] += 1 / world_size()
        expected[r] += 1 / world_size()
    torch.testing.assert_close(moved, expected)
    everyone = gather_rows(store.read(torch.arange(10), "rows"))
    assert all(torch.equal(everyone[0], other) for other in everyone)
    assert store.exchange(None, torch.tensor([0])).clocks.item() == 1
    store.add(torch.tensor([rank()]), torch.ones(1, 1), "thin")
    everyone = gather_rows(store.read(torch.arange(4), "thin"))
    assert all(torch.equal(everyone[0], other) for other in everyone)


def check_one_rank_goes_first():
    store = dist.distributed_c10d._get_default_store()
    with first_rank_first():
        order = store.add("entered", 1)
    assert (order == 1) == (rank() == 0)


with process_group(torch.device("cpu")):
    check_uneven_rows_are_gathered_in_rank_order()
    check_flags_and_sums()
    check_no_thread_of_gloo_preempts_what_it_waits_for()
    check_messages_of_any_size_arrive_whole()
    check_a_mean_does_not_depend_on_the_place_of_a_value()
    check_what_one_machine_sends_arrives_as_well()
    check_a_mean_does_not_depend_on_the_place_of_a_value()
    check_ranks_without_a_launcher_tell_each_other_where_they_are()
    check_the_first_step_of_a_process_averages_as_later_ones_do()
    check_values_are_gathered_in_rank_order()
    check_an_error_of_one_rank_is_one_of_all()
    check_a_stop_of_one_rank_is_one_of_all()
    check_metrics_equal_those_of_one_process(exact_examples=10_000)
    check_metrics_equal_those_of_one_process(exact_examples=100)
    check_metrics_equal_those_of_one_process(exact_examples=950)
    check_replicas_stay_equal_and_average()
    check_one_rank_goes_first()
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)  # nothing is left to do, and a shutdown of threads is not what is tested
