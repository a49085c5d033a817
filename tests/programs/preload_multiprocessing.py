"""Squares in a pool, by the start method that is named: `python preload_multiprocessing.py fork|spawn|forkserver`."""

import multiprocessing
import sys


def square(number):
    return number * number


class Task:
    def __init__(self, queue):
        self.queue = queue

    def __call__(self):
        self.queue.put((multiprocessing.current_process().name, __name__))


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    child = context.Process(target=Task(queue), name="child")
    child.start()
    print(queue.get())
    child.join()
    print(child.exitcode, multiprocessing.parent_process(), multiprocessing.active_children())
    with context.Pool(2) as pool:
        print("sum", sum(pool.map(square, range(10))))
        pool.close()
        pool.join()
