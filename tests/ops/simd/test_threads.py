"""The thread pool: every task exactly once, from several threads, after a fork, and errors are not lost."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from ssmith.ops.simd.kernel import kernel
from ssmith.ops.simd.threads import share
from ssmith.ops.simd.vectors import next_task


@kernel
def count_up(counts, tickets, tasks):
    task = next_task(tickets)
    while task < tasks:
        counts[task] += 1
        task = next_task(tickets)


@pytest.fixture(autouse=True)
def _restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def count_calls(tasks):
    counts = np.zeros(tasks, np.int64)

    used_up = np.full(1, tasks)
    count_up(counts, used_up.ctypes.data, tasks)  # compiled before any thread needs it
    share(lambda tickets: count_up(counts, tickets, tasks), tasks)
    return counts


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 17, 1000])
def test_each_task_is_done_once(threads, tasks):
    torch.set_num_threads(threads)
    assert (count_calls(tasks) == 1).all()


def test_one_thread_or_one_task_stays_in_the_calling_thread():
    where = []
    torch.set_num_threads(1)
    share(lambda tickets: where.append(threading.get_ident()), 7)
    torch.set_num_threads(4)
    share(lambda tickets: where.append(threading.get_ident()), 1)
    assert where == [threading.get_ident()] * 2


def test_no_task_is_no_call():
    share(lambda tickets: pytest.fail("called"), 0)


def test_work_runs_in_as_many_threads_as_torch_uses():
    torch.set_num_threads(3)
    together = threading.Barrier(3, timeout=30)
    share(lambda tickets: together.wait(), 3)


def test_an_error_is_raised_after_all_have_stopped():
    torch.set_num_threads(3)
    running, together = [], threading.Barrier(3, timeout=30)

    def work(tickets):
        me = together.wait()
        running.append(me)
        time.sleep(0.02 * me)
        running.remove(me)
        if me == 0:
            raise ValueError("thread 0")

    with pytest.raises(ValueError, match="thread 0"):
        share(work, 6)
    assert running == []


def test_several_python_threads_at_once():
    torch.set_num_threads(4)
    with ThreadPoolExecutor(8) as pool:
        for counts in pool.map(count_calls, [50] * 100):
            assert (counts == 1).all()


def test_work_may_share_work():
    torch.set_num_threads(4)
    inner = [count_calls(40)]
    share(lambda tickets: inner.append(count_calls(40)), 4)
    assert len(inner) >= 2
    assert all((counts == 1).all() for counts in inner)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own():
    torch.set_num_threads(3)
    assert (count_calls(30) == 1).all()

    def child():
        torch.set_num_threads(3)
        together = threading.Barrier(3, timeout=20)
        share(lambda tickets: together.wait(), 3)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert (count_calls(30) == 1).all()
