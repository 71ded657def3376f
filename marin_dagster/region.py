"""Turns where this process computes and where a bucket lies into a refusal or a note."""

from typing import Any

from marin_dagster.recipe import StageError
from marin_dagster.storage import Storage, StorageError

OUTSIDE_EU = ("europe-west2", "europe-west6")  # London and Zurich are not in the multi-region EU
PAIRS = {
    "nam4": ("us-central1", "us-east1"),
    "eur4": ("europe-north1", "europe-west4"),
    "asia1": ("asia-northeast1", "asia-northeast2"),
}
_regions: dict[str, tuple[str, ...]] = {}  # by bucket: one look-up per process


def region_note(storage: Storage, compute: str | None, *, allow: bool) -> dict[str, Any] | None:
    """Returns what a record says of regions; None on a disk, or when `compute` is not known.

    Raises StageError when the bucket lies elsewhere, or is not to be found out, unless allowed.
    """
    if compute is None or storage.local or storage.prefix.startswith("memory://"):
        return None
    bucket = "/".join(storage.prefix.split("/")[:3])
    try:
        if bucket not in _regions:
            _regions[bucket] = storage.regions()
    except StorageError as error:
        if not allow:
            raise StageError(
                "bad_input",
                f"MARIN_REGION={compute}, but the region of {bucket} cannot be read: {error}; "
                "grant the right to read the bucket's location, unset MARIN_REGION, or set "
                "MARIN_CROSS_REGION=allow",
            ) from error
        return {"compute": compute, "bucket": None}
    regions = _regions[bucket]
    where = ", ".join(regions)
    if any(contains(region, compute) for region in regions):
        return {"compute": compute, "bucket": where}
    if not allow:
        raise StageError(
            "bad_input",
            f"this process computes in MARIN_REGION={compute}, and {bucket} lies in {where}: every "
            "byte would cross regions; run where the bucket is, use a bucket in "
            f"{compute}, or set MARIN_CROSS_REGION=allow",
        )
    note = f"crossing regions, as MARIN_CROSS_REGION=allow says: {compute} uses {bucket} in {where}"
    return {"compute": compute, "bucket": where, "allowed": True, "note": note}


def contains(bucket: str, compute: str) -> bool:
    """Whether a bucket's region, dual-region or multi-region holds the region of the computer."""
    bucket, compute = bucket.lower(), compute.lower()
    if bucket == "eu":
        return compute.startswith("europe-") and compute not in OUTSIDE_EU
    if bucket in ("us", "asia"):
        return compute.startswith(f"{bucket}-")
    return compute == bucket or compute in PAIRS.get(bucket, ())
