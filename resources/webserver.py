"""How a running Dagster webserver is asked to load the definitions again."""

import json
import urllib.error
import urllib.request

import dagster as dg

from marin_dagster.environment import read_environment

LOCATION = "marin"  # as in workspace.yaml
SECONDS = 120  # a reload starts a new process
RELOAD = """
mutation Reload($location: String!) {
  reloadRepositoryLocation(repositoryLocationName: $location) {
    __typename
    ... on WorkspaceLocationEntry { locationOrLoadError { ... on PythonError { message } } }
    ... on PythonError { message }
    ... on ReloadNotSupported { message }
    ... on RepositoryLocationNotFound { message }
    ... on UnauthorizedError { message }
  }
}
"""


class WebserverResource(dg.ConfigurableResource):
    """The webserver at `MARIN_DAGSTER_URL`, by default that of `dagster dev` on this machine."""

    url: str | None = None

    def reload(self, location: str = LOCATION) -> str | None:
        """Loads the definitions of a code location again; returns what is in the way, if anything.

        Nothing depends on it but what the UI shows, so that it never raises.
        """
        url = (self.url or read_environment().webserver).rstrip("/")
        body = json.dumps({"query": RELOAD, "variables": {"location": location}}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/graphql", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                answer = json.load(response)
            found = answer["data"]["reloadRepositoryLocation"]
            fault = found.get("message") or (found.get("locationOrLoadError") or {}).get("message")
        except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError) as error:
            fault = str(error) or type(error).__name__
        if not fault:
            return None
        return (
            f"the code location {location!r} was not loaded again at {url} ({fault}); set "
            "MARIN_DAGSTER_URL to the webserver, or click 'Reload definitions' there"
        )
