"""Runs one process of a job on a host of a TPU VM, and tells a bucket how it goes.

The start-up script of the host carries this file: it needs Python 3.8 and nothing else. In the
folder of the job's logs it writes `start.N`, `NNNN.log`, `stacks.N` and, last, `exit.N`, for
process N; it obeys the object `order`. A host that is started again does not start the job again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

STEP_SECONDS = 0.5  # of looking at the process and at the metadata server, which is this host
ORDER_SECONDS = 2.0  # of asking the bucket for orders
LOG_SECONDS = 10.0  # between uploads of the log, and a second for each MB more
STACKS_SECONDS = 1.0  # for the process to write them
LAST_SECONDS = 120.0  # of trying to write the last objects
CALL_SECONDS = 20.0
BOUNDARY = uuid.uuid4().hex.encode()  # of the parts of an upload
ENDED = 128 + signal.SIGTERM  # the exit status of a process that a host's restart has ended


class Metadata:
    """What the host's own server says of it."""

    def __init__(self):
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._root = f"http://{host}/computeMetadata/v1/instance"

    def read(self, path):
        request = urllib.request.Request(
            f"{self._root}/{path}", headers={"Metadata-Flavor": "Google"}
        )
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
            return answer.read().decode()

    def process(self):
        return int(self.read("attributes/agent-worker-number"))

    def first_host(self):
        """The address of process 0: endpoints are addresses, or triples that end with one."""
        return self.read("attributes/worker-network-endpoints").split(",")[0].split(":")[-1]

    def preempted(self):
        try:
            return self.read("preempted").strip() == "TRUE"
        except OSError:
            return False

    def token(self):
        return json.loads(self.read("service-accounts/default/token"))["access_token"]


class Folder:
    """Objects below gs://bucket/path."""

    def __init__(self, url, metadata):
        self._bucket, _, self._path = url[len("gs://") :].partition("/")
        self._root = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
        self._metadata = metadata

    def read(self, name):
        """The content, or None when there is no such object."""
        try:
            return self._call(f"storage/v1/b/{self._bucket}/o/{self._quoted(name)}?alt=media")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def write(self, name, data):
        self._upload(name, data, "")

    def create(self, name, data):
        """Writes a new object; False, and nothing written, when it is there."""
        try:
            self._upload(name, data, "&ifGenerationMatch=0")
        except urllib.error.HTTPError as error:
            if error.code == 412:
                return False
            raise
        return True

    def _upload(self, name, data, condition):
        about = json.dumps({"name": f"{self._path}/{name}"}).encode()
        parts = [
            b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (BOUNDARY, kind, content)
            for kind, content in ((b"application/json", about), (b"text/plain", data))
        ]
        path = f"upload/storage/v1/b/{self._bucket}/o?uploadType=multipart{condition}"
        self._call(path, b"".join(parts) + b"--%s--" % BOUNDARY)

    def _quoted(self, name):
        return urllib.parse.quote(f"{self._path}/{name}", safe="")

    def _call(self, path, data=None):
        headers = {"Authorization": f"Bearer {self._metadata.token()}"}
        if data is not None:
            headers["Content-Type"] = f"multipart/related; boundary={BOUNDARY.decode()}"
        request = urllib.request.Request(f"{self._root}/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
            return answer.read()


class Host:
    """The one process of this host. `told` is set by SIGTERM, which the end of the host sends."""

    def __init__(self, job, metadata):
        self._job = job
        self._metadata = metadata
        self._folder = Folder(job["logs"], metadata)
        self._number = metadata.process()
        self._log = f"{job['scratch']}/{self._number:04d}.log"
        self._uploaded = (0, time.monotonic())  # bytes, and when
        self._order, self._asked = None, 0.0
        self._kill_at = float("inf")
        self.told = False

    def run(self):
        started = patiently(lambda: self._folder.create(f"start.{self._number}", b""))
        if not started:
            self._write_exit(ENDED, "the host was started again")
            return
        with open(self._log, "wb") as log:
            worker = subprocess.Popen(
                ["bash", "-c", self._job["script"]],
                env=dict(os.environ, **self._variables()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while worker.poll() is None:
            time.sleep(STEP_SECONDS)
            self._watch(worker)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)  # whatever it has left behind
        patiently(self._upload)
        code = worker.returncode
        self._write_exit(code if code >= 0 else 128 - code, "")

    def _variables(self):
        found = dict(self._job["environment"])
        found["MARIN_PROCESS"] = str(self._number)
        found["MARIN_PROCESSES"] = str(self._job["processes"])
        if self._job["processes"] > 1:
            found["MARIN_COORDINATOR"] = f"{self._metadata.first_host()}:{self._job['port']}"
        return found

    def _watch(self, worker):
        """Looks at everything once; what cannot be reached is looked at again soon."""
        now = time.monotonic()
        if now > self._kill_at:
            os.killpg(worker.pid, signal.SIGKILL)
        elif (self.told or self._metadata.preempted()) and self._kill_at == float("inf"):
            self._stop(worker, self._job["grace_seconds"])
        with contextlib.suppress(OSError):
            if now - self._asked > ORDER_SECONDS:
                self._asked = now
                self._obey(worker)
            size, uploaded = self._uploaded
            if now - uploaded > LOG_SECONDS + size / 2**20 and os.path.getsize(self._log) != size:
                self._upload()

    def _obey(self, worker):
        text = self._folder.read("order")
        if text is None or text == self._order:
            return
        order = json.loads(text)
        if order["do"] == "stop":
            self._stop(worker, order["grace_seconds"])
        if order["do"] == "stacks":
            worker.send_signal(signal.SIGUSR1)
            time.sleep(STACKS_SECONDS)
            self._upload()
            self._folder.write(f"stacks.{self._number}", order["id"].encode())
        self._order = text

    def _stop(self, worker, seconds):
        worker.send_signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _upload(self):
        with open(self._log, "rb") as log:
            data = log.read()
        self._folder.write(f"{self._number:04d}.log", data)
        self._uploaded = len(data), time.monotonic()

    def _write_exit(self, status, words):
        found = {"status": status, "seconds": time.time(), "node": os.uname().nodename}
        content = json.dumps(dict(found, words=words)).encode()
        patiently(lambda: self._folder.create(f"exit.{self._number}", content))


def patiently(call):
    """Calls until it works, for two minutes at most."""
    deadline = time.monotonic() + LAST_SECONDS
    while True:
        try:
            return call()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(STEP_SECONDS)


def main(path):
    with open(path) as file:
        job = json.load(file)
    os.unlink(path)
    metadata = Metadata()
    host = patiently(lambda: Host(dict(job, scratch=os.path.dirname(path)), metadata))

    def tell(number, frame):
        host.told = True

    signal.signal(signal.SIGTERM, tell)
    host.run()


if __name__ == "__main__":
    main(sys.argv[1])
