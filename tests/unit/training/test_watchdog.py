import queue
import threading

import pytest

from marin_dagster.training import watchdog
from marin_dagster.training.watchdog import Watchdog


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when it is told to."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(watchdog, "time", found)
    return found


class Ticks(threading.Event):
    """Ticks when asked to, and says when a tick was worked off."""

    def __init__(self):
        super().__init__()
        self.asked, self.waiting = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, timeout=None):
        self.waiting.release()
        self.asked.acquire()
        return self.is_set()

    def set(self):
        super().set()
        self.asked.release()


@pytest.fixture
def watched(clock):
    said = queue.SimpleQueue()
    dog = Watchdog(said.put)
    dog._done = ticks = Ticks()

    def passes(seconds: float) -> None:
        ticks.waiting.acquire()
        clock.now += seconds
        ticks.asked.release()

    with dog:
        yield dog, passes, said


def test_a_step_is_limited_by_twenty_medians_but_not_by_less_than_a_minute(clock):
    dog = Watchdog(lambda message: None)
    assert dog.step_seconds() == watchdog.FIRST_SECONDS
    for number in range(20):
        with dog.step(number):
            clock.now += 10.0 if number else 500.0  # the first one is an outlier
    assert dog.step_seconds() == 200.0
    for number in range(40):
        with dog.step(number):
            clock.now += 0.01
    assert dog.step_seconds() == watchdog.LEAST_SECONDS


def test_what_takes_too_long_is_said_once_with_its_name(watched):
    dog, passes, said = watched
    with dog.during("the evaluation", 12.0):
        for _ in range(2):
            passes(watchdog.MOST_TICK)
        assert said.empty()
        passes(watchdog.MOST_TICK)
        assert said.get() == "the evaluation has taken more than 12 s"


def test_the_time_in_which_the_whole_process_stood_still_does_not_count(watched):
    dog, passes, said = watched
    with dog.during("step 3", 12.0):
        passes(100_000.0)
        passes(1.0)
    passes(1.0)
    assert said.empty()
