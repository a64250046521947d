"""vLLM's plugin in each of its processes: they end when the process that started them does.

vLLM's core and worker processes outlive a parent that is killed, keeping gigabytes. vLLM runs the plugins of
the entry point group `vllm.general_plugins` in each of them, and this is one: a thread waits for the parent
to be gone, asks its own process to end, and ends it if that takes too long. Where the parent promises that
the thread that spawns outlives the engine (PARENT_DEATH_SIGNAL in the environment), the kernel's own signal
is used too: it reaches a process that never runs Python again, but it fires when that *thread* ends.

The guard does nothing in a process that multiprocessing didn't start. Repairs of vLLM itself (`vllm_cpu`) hang
on the same hook, because it is the one place that runs in each of its processes before a model is loaded.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.process import BaseProcess

PARENT_DEATH_SIGNAL = "HEADRACE_ENGINE_PARENT_DEATH_SIGNAL"
GRACE_S = 2.0  # for an orderly end, once the parent is gone
_PR_SET_PDEATHSIG = 1
_installed = False


def install() -> None:
    """Repair vLLM and guard this process; called by vLLM in every process it has."""
    global _installed
    from workers import vllm_cpu

    vllm_cpu.install()
    parent = multiprocessing.parent_process()
    if _installed or parent is None:
        return
    _installed = True
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent-guard").start()
    if os.environ.get(PARENT_DEATH_SIGNAL) and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it went before the kernel knew that we care
            os._exit(1)


def _watch(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)
