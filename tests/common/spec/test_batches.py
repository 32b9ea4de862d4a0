import pytest

from common.spec.batches import Plan, shards


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 7])
@pytest.mark.parametrize(("num_examples", "batch_size"), [(10, 4), (12, 4), (1, 5), (100, 7)])
def test_shards_cut_every_batch_without_gap_or_overlap(num_examples, batch_size, num_replicas):
    bounds = shards(num_examples, batch_size, num_replicas)
    assert bounds.shape == (-(-num_examples // batch_size), num_replicas, 3)
    seen = []
    for batch in bounds:
        sizes = batch[:, 1] - batch[:, 0]
        full = -(-sizes.sum() // num_replicas)
        assert (sizes[: sizes.sum() // full] == full).all()  # the first shards are full; one more may be partly full
        assert (sizes[sizes.sum() // full + 1 :] == 0).all()
        assert (batch[:, 2] == sizes.sum()).all()
        seen += [index for start, stop, _ in batch for index in range(start, stop)]
    assert seen == list(range(num_examples))
    assert (bounds[:-1, 0, 2] == batch_size).all()


def test_plan_counts_steps_epochs_and_images():
    plan = Plan.make(train_size=10, batch_size=4, epochs=3, max_steps=-1)
    assert (plan.steps_per_epoch, plan.total_steps, plan.num_epochs) == (3, 9, 3)
    assert [plan.count(step) for step in range(1, 7)] == [4, 4, 2, 4, 4, 2]
    assert [plan.epoch_of(step) for step in (1, 3, 4, 9)] == [1, 1, 2, 3]
    for first in range(1, 10):
        for last in range(first - 1, 10):
            assert plan.images(first, last) == sum(plan.count(step) for step in range(first, last + 1))
    early = Plan.make(train_size=10, batch_size=4, epochs=9, max_steps=4)
    assert (early.total_steps, early.num_epochs) == (4, 2)
    assert [len(early.steps(epoch)) for epoch in (1, 2)] == [3, 1]


@pytest.mark.parametrize("verify_steps", [4, 5, 11, 29, 1000])
@pytest.mark.parametrize(("train_size", "batch_size", "epochs"), [(100, 7, 3), (100, 10, 1), (5, 8, 50)])
def test_a_proof_takes_first_batches_of_epochs_and_their_last(verify_steps, train_size, batch_size, epochs):
    whole = Plan.make(train_size, batch_size, epochs, -1)
    plan = Plan.make(train_size, batch_size, epochs, -1, verify_steps)
    assert plan.total_steps == min(verify_steps, whole.total_steps)
    assert plan.schedule_steps == whole.total_steps and plan.steps_per_epoch <= whole.steps_per_epoch
    rows = [plan.shards(epoch, 2) for epoch in range(1, plan.num_epochs + 1)]
    assert [len(row) for row in rows] == [len(plan.steps(epoch)) for epoch in range(1, plan.num_epochs + 1)]
    counts = [count for row in rows for count in row[:, 0, 2]]
    assert counts == [plan.count(step) for step in range(1, plan.total_steps + 1)]
    bounds = shards(train_size, batch_size, 2)
    assert (rows[0][:-1] == bounds[: len(rows[0]) - 1]).all()
    if epochs > 1:  # the run includes the end of an epoch and the order of a second one
        assert (rows[0][-1] == bounds[-1]).all() and len(rows) > 1
