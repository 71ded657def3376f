import pytest

from assets import partitions


def test_more_targets_than_the_documented_maximum_are_refused(monkeypatch):
    monkeypatch.setattr(partitions, "MAX_TARGETS", 3)
    with pytest.raises(ValueError, match=r"artifacts, more than the 3 that Dagster can show"):
        partitions.targets()
