"""Turns the name of a device into the FLOP/s it can reach, or into None when that is not known."""

from collections.abc import Sequence

# Dense bfloat16 matmul FLOP/s by JAX's `device_kind`; figures with structured sparsity are halved.
# NVIDIA: data sheets of A100 (2021), H100 (2023), H200, L4, L40S, B200 and GB200 NVL72 (2024).
# Google: cloud.google.com/tpu/docs, pages "TPU v4", "v5e", "v5p", "v6e" and "TPU7x".
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA B200": 2_250e12,
    "NVIDIA GB200": 2_500e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 2_307e12,
}


def peak_flops(device_kinds: Sequence[str]) -> float | None:
    """FLOP/s of all these devices together; None when one of them is not in the table."""
    if not device_kinds or any(kind not in PEAKS for kind in device_kinds):
        return None
    return sum(PEAKS[kind] for kind in device_kinds)


def flops_utilization(
    flops_per_token: float, tokens_per_second: float, device_kinds: Sequence[str]
) -> float | None:
    """MFU: the FLOPs that the model needs over those that all devices could do; None if unknown.

    `tokens_per_second` are those of the whole step, over all devices and micro-batches
    (Chowdhery et al. 2022, appendix B). Show None as n/a.
    """
    peak = peak_flops(device_kinds)
    return None if peak is None else flops_per_token * tokens_per_second / peak
