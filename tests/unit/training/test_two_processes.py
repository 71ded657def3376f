"""Two processes that share a state write one resume point, and stop after the same step."""

import os
import signal
import socket
import subprocess
import sys

from marin_dagster.training import points

CHILD = """
import os, sys, time
rank, port, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
from jax.sharding import NamedSharding, PartitionSpec as P
from marin_dagster.recipe import StageError
from marin_dagster.training.checkpoint import Saver
from marin_dagster.training.preemption import Preemption
mesh = jax.make_mesh((2,), ("data",))
full = np.arange(8, dtype=np.float32)
def placed(value, spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
class Work:
    step, state = 0, {"w": placed(full, P("data")), "b": placed(full, P())}
    def save_now(self):
        saver.save(self.step, self.state, {"step": self.step})
        saver.wait()
    def said(self, event, message, **facts):
        print(rank, message, flush=True)
add = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + leaf.sum() * 0 + 1, state))
with Saver([root], "x", print) as saver:
    work = Work()
    preemption = Preemption(work, 10.0)
    found = saver.restore(work.state)
    if found is not None:
        local = np.asarray(found.state["w"].addressable_shards[0].data)
        whole = np.asarray(found.state["b"].addressable_shards[0].data)
        assert (whole == full + found.step).all()
        assert (local == whole[4 * rank : 4 * rank + 4]).all()
        print("restored", found.step, flush=True)
        sys.exit(0)
    print("ready", flush=True)
    try:
        while work.step < 2000:
            work.state = jax.block_until_ready(add(work.state))
            work.step += 1
            time.sleep(0.02)
            preemption.agree()
    except StageError as error:
        print(error.reason, work.step, flush=True)
"""


def start(root) -> list[subprocess.Popen]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    return [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(rank), port, str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": ""},
        )
        for rank in range(2)
    ]


def test_one_told_process_makes_both_save_after_the_same_step(tmp_path):
    both = start(tmp_path)
    for process in both:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and line != "ready\n":
            pass
        assert line, process.communicate()[1]
    both[1].send_signal(signal.SIGTERM)
    ended = [process.communicate(timeout=300)[0].splitlines()[-1] for process in both]
    assert ended[0] == ended[1]
    reason, step = ended[0].split()
    assert reason == "preempted"
    assert [place.step for place in points.places([str(tmp_path)])] == [int(step)]
    again = [process.communicate(timeout=300) for process in start(tmp_path)]
    assert [out.splitlines()[-1] for out, _ in again] == [f"restored {step}"] * 2, again
