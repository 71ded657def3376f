"""Memory as the kernel counts it."""

from pathlib import Path

from marin_dagster import memory


def test_what_is_free_is_bounded_by_machine_and_control_groups(monkeypatch, tmp_path):
    free = memory.available_memory()
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert free is not None
    assert 0 < free <= total
    monkeypatch.setattr(memory, "ROOT", str(tmp_path))
    for folder in (tmp_path, tmp_path / "memory"):  # as a container sees it, of either version
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text("1000\n")
        (folder / "memory.current").write_text("400\n")
        (folder / "memory.limit_in_bytes").write_text("1000\n")
        (folder / "memory.usage_in_bytes").write_text("400\n")
        (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
        (folder / "memory.oom_control").write_text("under_oom 0\noom_kill 2\n")
    assert memory.oom_kills() == 2
    assert memory.available_memory() == 600


def test_a_machine_with_an_accelerator_is_not_judged_by_its_own_memory(monkeypatch, tmp_path):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(memory, "ACCELERATORS", (f"{tmp_path}/nvidia[0-9]*",))
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert memory.available_memory() is None
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert memory.available_memory() is not None
