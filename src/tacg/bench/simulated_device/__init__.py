"""A simulated CUDA device: its tensors say `cuda` but compute on the CPU, and their operations are counted.

    with SimulatedDevice() as device:
        llm = tacg.load("pocket", device="cuda")
        llm.generate("…")
    device.tally.total("read"), device.tally.by("line")

What a step costs on a GPU beyond arithmetic can be counted without one:

kernel  an operation on the device that is not a view. A real GPU may launch several kernels for it, never fewer
read    the host waits for the device: `item`, `tolist`, `nonzero`, a boolean index, a copy to the CPU, …
upload  the device gets something from the host: `torch.tensor(…, device=…)`, `.to(device)`, `x[i] = 1`, …

Tensors of two devices in one operation raise an error, as with CUDA. Where PyTorch chooses code by the device's name
(how to index, which scan to take), the choice is that for CUDA. Where its CUDA code reads or uploads inside an
operation, the tables below say so. Streams, graphs, memory and times are not simulated.
"""

from tacg.bench.simulated_device.device import SimulatedDevice
from tacg.bench.simulated_device.tally import Site, Tally
from tacg.bench.simulated_device.tensor import DeviceTensor, MixedDevicesError

__all__ = ["DeviceTensor", "MixedDevicesError", "SimulatedDevice", "Site", "Tally"]
