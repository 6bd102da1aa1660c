"""What a row was measured on: the GPU, its driver, clocks and throttling, and the versions of the software."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from typing import Any

_QUERY = ("clocks.sm", "clocks.mem", "clocks_throttle_reasons.active", "temperature.gpu", "power.draw")
_IDLE = 0x1
_REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
_PACKAGES = ("torch", "triton", "tilelang", "nvidia-cutlass-dsl", "numpy")


def read_clocks() -> dict[str, Any]:
    """The GPU's state at this moment: clocks in MHz, temperature in C, power in W, what holds the clocks down.

    Empty where neither the management library nor nvidia-smi answers.
    """
    return _from_library() or _from_program()


def _from_library() -> dict[str, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(_index())
        return _state(
            pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        )
    except Exception:  # the library's errors have no common base when it is only half there
        return {}


def _from_program() -> dict[str, Any]:
    command = ["nvidia-smi", f"--id={_index()}", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        sm, memory, reasons, temperature, power = (part.strip() for part in answer.strip().split(","))
        return _state(int(sm), int(memory), int(reasons, 16), int(temperature), float(power))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def _state(sm: int, memory: int, reasons: int, temperature: int, power: float) -> dict[str, Any]:
    held = [name for bit, name in _REASONS.items() if reasons & bit & ~_IDLE]
    return {"sm_mhz": sm, "memory_mhz": memory, "throttle": held, "celsius": temperature, "watts": round(power)}


def _index() -> int:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return int(first) if first.isdigit() else 0


def describe_environment(implementations: Mapping[str, str]) -> dict[str, Any]:
    """The record of where rows come from, named by its field `environment`; `implementations` gives their versions."""
    import torch

    import qlagen

    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "l2_mib": round(properties.L2_cache_size / 2**20, 1),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "qlagen": qlagen.__version__,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "implementations": dict(implementations),
    }
    return {"kind": "environment", "environment": identify(found), **found}


def identify(found: Mapping[str, Any]) -> str:
    """A short name for an environment, the same wherever it is the same."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:10]


def measure_ceilings() -> dict[str, float]:
    """What this GPU reaches in practice: a device-to-device copy (bytes read and written) and a bf16 matrix product."""
    import torch

    from qlagen.bench.timing import CudaTimer, interleave, summarise

    timer = CudaTimer(torch.cuda.current_stream())
    with torch.no_grad():
        source = torch.empty(2**31, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        left = torch.randn(8192, 8192, device="cuda").bfloat16()
        right = torch.randn(8192, 8192, device="cuda").bfloat16()
        replays = {
            "copy": timer.prepare([lambda: target.copy_(source)]),
            "product": timer.prepare([lambda: left @ right]),
        }
        medians = {name: summarise(found).median for name, found in interleave(replays, timer, 0.1).items()}
    return {
        "copy_tb_per_s": round(2 * source.numel() / medians["copy"] / 1e12, 3),
        "product_tflop_per_s": round(2 * 8192**3 / medians["product"] / 1e12, 1),
    }


def gpu_name() -> str:
    """The first GPU's name; empty when nvidia-smi finds none."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return answer.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def slug(gpu: str) -> str:
    """``NVIDIA H200`` -> ``nvidia-h200``, for file names."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.strip().splitlines()[0] if answer.strip() else "unknown"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
