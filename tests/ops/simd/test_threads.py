"""The thread pool: every task exactly once, from several threads, after a fork, and errors are not lost."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from ssmith.ops.simd.threads import share


@pytest.fixture(autouse=True)
def _restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def count_calls(tasks):
    counts = np.zeros(tasks, np.int64)

    def work(first, last):
        counts[first:last] += 1

    share(work, tasks)
    return counts


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 17, 1000])
def test_each_task_is_done_once(threads, tasks):
    torch.set_num_threads(threads)
    assert (count_calls(tasks) == 1).all()


def test_one_thread_or_one_task_stays_in_the_calling_thread():
    where = []
    torch.set_num_threads(1)
    share(lambda first, last: where.append((threading.get_ident(), first, last)), 7)
    torch.set_num_threads(4)
    share(lambda first, last: where.append((threading.get_ident(), first, last)), 1)
    assert where == [(threading.get_ident(), 0, 7), (threading.get_ident(), 0, 1)]


def test_work_runs_in_as_many_threads_as_torch_uses():
    torch.set_num_threads(3)
    together = threading.Barrier(3, timeout=30)
    share(lambda first, last: together.wait(), 3)


def test_an_error_is_raised_after_all_have_stopped():
    torch.set_num_threads(3)
    running = []

    def work(first, last):
        running.append(first)
        time.sleep(0.01)
        running.remove(first)
        if first == 2:
            raise ValueError("task 2")

    with pytest.raises(ValueError, match="task 2"):
        share(work, 6)
    assert running == []


def test_several_python_threads_at_once():
    torch.set_num_threads(4)
    with ThreadPoolExecutor(8) as pool:
        for counts in pool.map(count_calls, [50] * 100):
            assert (counts == 1).all()


def test_work_may_share_work():
    torch.set_num_threads(4)
    counts = np.zeros((40, 40), np.int64)

    def row(i):
        def work(first, last):
            counts[i, first:last] += 1

        share(work, 40)

    share(lambda first, last: [row(i) for i in range(first, last)], 40)
    assert (counts == 1).all()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own():
    torch.set_num_threads(3)
    assert (count_calls(30) == 1).all()

    def child():
        torch.set_num_threads(3)
        together = threading.Barrier(3, timeout=20)
        share(lambda first, last: together.wait(), 3)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert (count_calls(30) == 1).all()
