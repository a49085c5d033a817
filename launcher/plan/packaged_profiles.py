"""Profiles of devices that ship with tlaunch. Every number comes from a data sheet, a fit or an assumption that is named.

Rates that a training reaches are lower than those of a data sheet. For A100 they are fitted to published layouts: 80 % of
the peak for large products, 78 % of the memory's bandwidth. For the other devices they are assumed to be 65 %.
`tlaunch plan fit` replaces them by measured ones.
"""

from __future__ import annotations

import re
from dataclasses import replace

from launcher.core.errors import UnreadableError
from launcher.plan.configuration import Software
from launcher.plan.device_profile import DeviceProfile, Numbers

_ASSUMED = "assumed: 65 % of the data sheet for products and memory, 30-60 % for links; other numbers as for A100"

A100_80 = DeviceProfile(
    name="A100-80",
    per_server=8,
    memory_bytes=80e9,
    peak_flops_per_s=312e12,
    numbers=Numbers(
        flops_per_s=250e12,
        memory_bytes_per_s=1.6e12,
        link_bytes_per_s=240e9,
        network_bytes_per_s=80e9,
        message_bytes_per_s=10e9,
        kept_factor=1.1,
    ),
    sources={
        "peak_flops_per_s": "NVIDIA A100 data sheet: 312 TFLOP/s dense half precision",
        "memory_bytes": "NVIDIA A100 data sheet: 80 GB HBM2e, 2.04 TB/s, NVLink 600 GB/s",
        "link_bytes_per_s": "assumed: 80 % of NVLink's 300 GB/s in each direction",
        "flops_per_s": "fitted to 40 published layouts of Megatron-DeepSpeed on A100, VIA-Research/vTrain data @f8dda84",
        "memory_bytes_per_s": "fitted to the same layouts",
        "kept_factor": "between 1 and the 1.13 that was fitted to three peaks of BLOOM's runs",
        "network_bytes_per_s": "assumed: 40 % of 8 x 200 Gbit/s InfiniBand, the servers of arXiv:2104.04473",
        "all": "assumed; host and latencies are of the order that the same layouts show",
    },
)

H100 = DeviceProfile(
    name="H100",
    per_server=8,
    memory_bytes=80e9,
    peak_flops_per_s=989e12,
    numbers=Numbers(
        flops_per_s=640e12,
        memory_bytes_per_s=2.2e12,
        link_bytes_per_s=360e9,
        network_bytes_per_s=160e9,
        message_bytes_per_s=20e9,
        dispatch_s=0.4e-3,
        layer_fixed_s=0.06e-3,
    ),
    software=Software(flash_attention=True),
    sources={
        "peak_flops_per_s": "NVIDIA H100 SXM data sheet: 989 TFLOP/s dense half precision",
        "memory_bytes": "NVIDIA H100 SXM data sheet: 80 GB HBM3, 3.35 TB/s, NVLink 900 GB/s",
        "link_bytes_per_s": "assumed: 80 % of NVLink's 450 GB/s in each direction",
        "network_bytes_per_s": "assumed: 40 % of 8 x 400 Gbit/s InfiniBand",
        "all": _ASSUMED,
    },
)

ASCEND_910 = DeviceProfile(
    name="Ascend 910",
    per_server=8,
    memory_bytes=32e9,
    peak_flops_per_s=256e12,
    numbers=Numbers(
        flops_per_s=166e12,
        memory_bytes_per_s=0.78e12,
        link_bytes_per_s=18e9,
        network_bytes_per_s=40e9,
        message_bytes_per_s=6e9,
    ),
    sources={
        "peak_flops_per_s": "Huawei: 256 TFLOP/s half precision",
        "memory_bytes": "Huawei: 32 GB HBM, 1.2 TB/s (not confirmed by a data sheet)",
        "link_bytes_per_s": "assumed: 60 % of HCCS with 240 Gbit/s; two groups of four devices, PCIe between them",
        "network_bytes_per_s": "assumed: 40 % of 8 x 100 Gbit/s Ethernet",
        "all": _ASSUMED,
    },
)

ASCEND_910B = DeviceProfile(
    name="Ascend 910B",
    per_server=8,
    memory_bytes=64e9,
    peak_flops_per_s=320e12,
    numbers=Numbers(
        flops_per_s=208e12,
        memory_bytes_per_s=1.0e12,
        link_bytes_per_s=110e9,
        network_bytes_per_s=80e9,
        message_bytes_per_s=10e9,
    ),
    software=Software(flash_attention=True),
    sources={
        "peak_flops_per_s": "vendors and dealers state 280 to 376 TFLOP/s half precision for its variants; 320 is between",
        "memory_bytes": "64 GB HBM2e; 1.6 TB/s is assumed",
        "link_bytes_per_s": "assumed: 30-60 % of HCCS between all eight devices",
        "network_bytes_per_s": "assumed: 40 % of 8 x 200 Gbit/s Ethernet",
        "all": _ASSUMED,
    },
)

PROFILES = (A100_80, H100, ASCEND_910, ASCEND_910B)
_KEYS = {"a10080": A100_80, "a100": A100_80, "h100": H100, "ascend910b": ASCEND_910B, "ascend910": ASCEND_910}
# Longer names first: "Ascend 910B" contains "Ascend 910".
_FAMILIES = (("910b", ASCEND_910B), ("910", ASCEND_910), ("h100", H100), ("a100", A100_80))


def profile_named(name: str) -> DeviceProfile:
    """Return the packaged profile of this name; case, blanks and dashes are ignored. Raises UnreadableError."""
    found = _KEYS.get(re.sub(r"[\s_-]|gb$", "", name.lower()))
    if found is None:
        known = ", ".join(f"`{profile.name}`" for profile in PROFILES)
        raise UnreadableError(
            f"{name!r} is neither a file nor a packaged device",
            hint=f"use {known}, or a file that `tlaunch plan fit` wrote",
        )
    return found


def profile_like(name: str) -> DeviceProfile | None:
    """Return the packaged profile for a device's name in a row, such as "A100 (DGX-A100)", or None."""
    lower = name.lower()
    return next((profile for key, profile in _FAMILIES if key in lower), None)


def starting_profile(name: str, per_server: int | None, memory_bytes: float | None = None) -> DeviceProfile:
    """Return the profile from which a fit starts: of a packaged device, or of the A100 for an unknown one."""
    base = profile_like(name) or A100_80
    return replace(
        base, name=name, per_server=per_server or base.per_server, memory_bytes=memory_bytes or base.memory_bytes
    )
