"""GPUs as NVIDIA's management library tells of them; nothing where there is none.

Units: bytes, bytes a second, and shares from 0 to 1.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment."""

    index: int
    used_bytes: int
    total_bytes: int
    utilization: float


class Gpus:
    """The GPUs of this machine. `library` is pynvml's interface."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlInit()
        self._handles = [
            library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())
        ]

    @classmethod
    def find(cls) -> "Gpus | None":
        """Open the library; None where it or a GPU is missing."""
        try:
            from vllm.third_party import pynvml
        except ImportError:
            return None
        try:
            gpus = cls(pynvml)
        except pynvml.NVMLError:
            return None
        return gpus if gpus._handles else None

    def read(self) -> list[Gpu]:
        """Look at each."""
        found: list[Gpu] = []
        for index, handle in enumerate(self._handles):
            memory = self._library.nvmlDeviceGetMemoryInfo(handle)
            rates = self._library.nvmlDeviceGetUtilizationRates(handle)
            found.append(Gpu(index, int(memory.used), int(memory.total), rates.gpu / 100))
        return found

    def bandwidth(self) -> float:
        """Bytes a second of the first one's memory: two transfers a clock over the width of its bus."""
        handle = self._handles[0]
        mhz = self._library.nvmlDeviceGetMaxClockInfo(handle, self._library.NVML_CLOCK_MEM)
        bits = self._library.nvmlDeviceGetMemoryBusWidth(handle)
        transfers_s = 2.0 * mhz * 1e6
        return float(transfers_s * bits / 8)
