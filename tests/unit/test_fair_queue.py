"""Whose turn it is."""

from __future__ import annotations

from spec2seq.serving.fair_queue import FairQueue


def drain(queue: FairQueue[str, int], count: int) -> list[tuple[str, int]]:
    """Take the next items one after another."""
    taken = []
    for _ in range(count):
        owner, item = queue.heads()[0]
        assert queue.take(owner) == item
        taken.append((owner, item))
    return taken


def test_equal_owners_take_turns_in_the_order_in_which_they_came() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.add("a", [(1, 10), (2, 10)])
    queue.add("b", [(1, 10), (2, 10)])
    assert drain(queue, 4) == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert len(queue) == 0


def test_a_small_owner_does_not_wait_for_a_large_one_that_came_before() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.add("large", [(i, 50) for i in range(100)])
    assert drain(queue, 10) == [("large", i) for i in range(10)]
    queue.add("small", [(0, 5)])
    assert drain(queue, 2) == [("small", 0), ("large", 10)]


def test_shares_are_measured_in_work_and_not_in_items() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.add("long", [(i, 40) for i in range(10)])
    queue.add("short", [(i, 10) for i in range(40)])
    owners = [owner for owner, _ in drain(queue, 25)]
    assert owners.count("long") == 5
    assert owners.count("short") == 20


def test_a_large_owner_is_not_overtaken_for_ever_by_small_ones_that_keep_coming() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.add("large", [(0, 50), (1, 50)])
    order = []
    for i in range(20):
        queue.add(f"small {i}", [(0, 10)])
        order += [owner for owner, _ in drain(queue, 1)]
    assert order.count("large") == 2
    assert order.index("large", 1) <= 10


def test_who_comes_late_has_no_claim_on_the_past() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.add("early", [(i, 10) for i in range(20)])
    drain(queue, 10)
    queue.add("late", [(i, 10) for i in range(20)])
    owners = [owner for owner, _ in drain(queue, 10)]
    assert owners.count("late") in (5, 6)


def test_more_of_an_owner_goes_behind_what_it_has_and_nothing_is_left_of_one_that_goes() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.add("a", [(1, 1)])
    queue.add("a", [(2, 1)])
    queue.add("b", [(1, 1)])
    queue.add("nothing", [])
    assert len(queue) == 2
    queue.remove("b")
    queue.remove("stranger")
    assert drain(queue, 2) == [("a", 1), ("a", 2)]
    assert queue.heads() == []
