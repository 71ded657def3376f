"""The `dagster.yaml` of the guide: Dagster's compute logs really go to a bucket."""

import subprocess
import sys
from pathlib import Path

from marin_dagster.storage import Storage
from tests.integration.test_docs import FILES
from tests.servers import BUCKET, google_environment

ASSET = """
import dagster as dg

@dg.asset
def speaking() -> None:
    print("said by the asset")
"""


def test_the_compute_logs_of_the_guide_reach_the_bucket(google, tmp_path, monkeypatch):
    (block,) = [found for found in FILES if found.page == "docs/how-to/use-object-storage.md"]
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(block.text)
    (tmp_path / "speaker.py").write_text(ASSET)
    for name, value in {
        **google_environment(google),
        "MARIN_LOG_BUCKET": BUCKET,
        "DAGSTER_HOME": str(home),
        "GOOGLE_CLOUD_PROJECT": "test",
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    dagster = Path(sys.executable).with_name("dagster")
    words = ["asset", "materialize", "-f", "speaker.py", "--select", "speaking"]
    done = subprocess.run([dagster, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    storage = Storage(f"gs://{BUCKET}/dagster-logs")
    outputs = [entry.path for entry in storage.walk("storage") if entry.path.endswith(".out")]
    assert any(b"said by the asset" in storage.read(f"storage/{path}") for path in outputs)


def test_loading_the_definitions_imports_no_client_of_a_bucket():
    code = (
        "import sys, marin_dagster.definitions;"
        "print([m for m in ('dagster_gcp', 'google.cloud.storage', 'gcsfs', 'boto3', 's3fs')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
