"""Google's APIs over HTTP: credentials, endpoints, retries, pages, operations. One client a project.

Plain REST and not google-api-python-client, whose transport can't be shared by the threads that launch a gang, and
which has no description of the Cloud Quotas API. What is sent is checked in the tests, against Google's discovery
document.
"""

from __future__ import annotations

import functools
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol

from infra.errors import AccessError, ProviderError
from infra.gang_record import provider_of, request_of
from infra.providers.base import Deployment
from infra.providers.gcp import faults
from infra.spec import read_config

Service = Literal["compute", "quotas", "billing", "filestore", "storage", "iam"]

# The variables of Google's own Terraform provider, or made as it makes them; each ends with the version.
ENDPOINTS: dict[Service, tuple[str, str]] = {
    "compute": ("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", "https://compute.googleapis.com/compute/v1/"),
    "quotas": ("GOOGLE_CLOUD_QUOTAS_CUSTOM_ENDPOINT", "https://cloudquotas.googleapis.com/v1/"),
    "billing": ("GOOGLE_CLOUD_BILLING_CUSTOM_ENDPOINT", "https://cloudbilling.googleapis.com/v1/"),
    "filestore": ("GOOGLE_FILESTORE_CUSTOM_ENDPOINT", "https://file.googleapis.com/v1/"),
    "storage": ("GOOGLE_STORAGE_CUSTOM_ENDPOINT", "https://storage.googleapis.com/storage/v1/"),
    "iam": ("GOOGLE_IAM_CUSTOM_ENDPOINT", "https://iam.googleapis.com/v1/"),
}
PROJECT_VARIABLES = ("GOOGLE_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_CALL_S = 60.0
PATIENCE_S = 180.0
_LONGEST_WAIT_S = 30.0
_ANSWERS_TO_REPEAT = frozenset({408, 429, 500, 502, 503, 504})
OPERATION_S = 900.0


class Answer(Protocol):
    status_code: int

    def json(self) -> Any: ...
    @property
    def text(self) -> str: ...


class Session(Protocol):
    """What sends: google.auth's AuthorizedSession, which also renews the token."""

    def request(self, method: str, url: str, *, params: Mapping[str, str], json: object, timeout: float) -> Answer: ...


class Client:
    """Calls on behalf of one project. May be shared by threads."""

    def __init__(
        self,
        project: str,
        session: Session,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience_s`: for how long a call is repeated while Google is busy or can't be reached."""
        self.project = project
        self._patience_s = patience_s
        self.sleep, self.clock = sleep, clock
        self._session = session

    def get(
        self, path: str, *, doing: str, service: Service = "compute", parameters: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Raises faults.NotFound, AccessError, ProviderError; so do the others."""
        return self._ask("GET", path, doing=doing, service=service, parameters=parameters or {}, body=None)

    def insert(self, path: str, body: object, *, doing: str, request_id: str) -> dict[str, Any]:
        """A Compute operation. `request_id`: a UUID; the same again gives the operation of then."""
        parameters = {"requestId": request_id}
        return self._ask("POST", path, doing=doing, service="compute", parameters=parameters, body=body)

    def delete(
        self, path: str, *, doing: str, service: Service = "compute", parameters: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """An operation, but for Storage and IAM, which answer when it is done."""
        asked = {"requestId": str(uuid.uuid4())} if service == "compute" else parameters or {}
        return self._ask("DELETE", path, doing=doing, service=service, parameters=asked, body=None)

    def pages(
        self,
        path: str,
        key: str,
        *,
        doing: str,
        service: Service = "compute",
        parameters: Mapping[str, str] | None = None,
    ) -> Iterator[Any]:
        """What is under `key` of every page, one by one: items, or (scope, items) of an aggregated list."""
        asked = dict(parameters or {})
        while True:
            page = self.get(path, doing=doing, service=service, parameters=asked)
            # An answer that says nothing about itself isn't an empty list. The APIs on protocol buffers leave out
            # what is empty, so `{}` is theirs for "none"; Compute and Storage always say their kind.
            if service in ("compute", "storage") and not str(page.get("kind", "")).startswith(f"{service}#"):
                raise _malformed(doing, page)
            if unreachable := page.get("unreachables") or page.get("unreachable"):
                raise ProviderError(f"{doing}: Google can't reach {', '.join(unreachable)} now: run it again later")
            found = page.get(key, {} if "aggregated/" in path else [])
            if not isinstance(found, list | dict):
                raise _malformed(doing, page)
            yield from found.items() if isinstance(found, dict) else found
            if not page.get("nextPageToken"):
                return
            asked["pageToken"] = str(page["nextPageToken"])

    def aggregated(self, kind: str, *, doing: str, which: str = "") -> Iterator[dict[str, Any]]:
        """Every resource of a kind in the project, in all zones or regions. `which`: a filter in Google's words."""
        path = f"projects/{self.project}/aggregated/{kind}"
        for scope, content in self.pages(path, "items", doing=doing, parameters={"filter": which} if which else {}):
            warning = content.get("warning", {})
            if warning.get("code") not in (None, "NO_RESULTS_ON_PAGE"):
                raise ProviderError(f"{doing}: Google couldn't tell about {scope} ({warning}): run it again later")
            yield from content.get(kind, [])

    def wait(self, operation: Mapping[str, Any], *, doing: str, deadline_s: float = OPERATION_S) -> None:
        """Until a Compute operation is done; raises what it failed with."""
        end = self.clock() + deadline_s
        pause, path = 0.5, _operation_path(operation, doing)
        while operation.get("status") != "DONE":
            if self.clock() >= end:
                raise ProviderError(
                    f"{doing}: Google didn't end operation {operation.get('name')} within {deadline_s:.0f} s: "
                    "look at it in the console, then run the same command again"
                )
            self.sleep(pause)
            pause = min(pause * 1.5, 5.0)
            operation = self.get(path, doing=doing)
            if operation.get("status") not in ("PENDING", "RUNNING", "DONE"):
                raise _malformed(doing, operation)
        error = operation.get("error")
        if error:
            errors = error.get("errors", []) if isinstance(error, Mapping) else []
            raise faults.fault(faults.read_operation(errors), status=0, doing=doing)

    def wait_for_file(self, operation: Mapping[str, Any], *, doing: str, deadline_s: float = OPERATION_S) -> None:
        """Until an operation of Filestore is done."""
        end = self.clock() + deadline_s
        while not operation.get("done"):
            if "name" not in operation:
                raise _malformed(doing, operation)
            if self.clock() >= end:
                raise ProviderError(f"{doing}: not done within {deadline_s:.0f} s: run the same command again")
            self.sleep(3.0)
            operation = self.get(str(operation["name"]), doing=doing, service="filestore")
        if error := operation.get("error"):
            raise faults.fault(faults.read({"error": error}), status=0, doing=doing)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        doing: str,
        service: Service,
        parameters: Mapping[str, str],
        body: object,
    ) -> dict[str, Any]:
        """The answer to one call, asked again while Google is busy or the line breaks."""
        url = _endpoint(service) + path
        end = self.clock() + self._patience_s
        attempt = 0
        while True:
            answer, trouble = self._once(method, url, doing=doing, parameters=parameters, body=body)
            if answer is not None:
                content = _content(answer)
                said = faults.read(content)
                if answer.status_code < 300:
                    if answer.status_code == 204 or (method == "DELETE" and not answer.text):
                        return {}
                    if not isinstance(content, dict):
                        raise _malformed(doing, answer.text)
                    return content
                busy = answer.status_code in _ANSWERS_TO_REPEAT or faults.is_throttling(answer.status_code, said)
                if not busy:
                    raise faults.fault(said, status=answer.status_code, doing=doing)
                trouble = f"HTTP {answer.status_code}, {said.message}"
            attempt += 1
            wait = min(_LONGEST_WAIT_S, 2.0**attempt / 2) * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
            if self.clock() + wait >= end:
                raise ProviderError(
                    f"{doing}: no usable answer from Google within {self._patience_s:.0f} s ({trouble[:200]}): "
                    "wait some minutes and run the same command again"
                )
            self.sleep(wait)

    def _once(
        self, method: str, url: str, *, doing: str, parameters: Mapping[str, str], body: object
    ) -> tuple[Answer | None, str]:
        """The answer, or what broke on the way to one."""
        import requests
        from google.auth.exceptions import RefreshError, TransportError

        try:
            return self._session.request(method, url, params=parameters, json=body, timeout=_CALL_S), ""
        except RefreshError as error:
            raise AccessError(
                f"{doing}: the credentials have expired or were withdrawn ({error.args[0] if error.args else error}): "
                "run `gcloud auth application-default login`, then the same command again"
            ) from None
        except (requests.RequestException, TransportError) as error:
            return None, str(error)


def connect(deployment: Deployment) -> Client:
    """With the user's own credentials, in the stack's project. Raises AccessError when one of the two isn't there."""
    return client_of(project_of(deployment))


@functools.cache
def client_of(project: str, *, patience_s: float = PATIENCE_S) -> Client:
    import google.auth.transport.requests

    session = google.auth.transport.requests.AuthorizedSession(_credentials()[0])
    return Client(project, session, patience_s=patience_s)


def project_of(deployment: Deployment) -> str:
    """Where everything goes: gcp:project of the stack file, as pulumi_gcp reads it too, else of the environment."""
    found = read_config(deployment.stack_file).get("gcp:project")
    found = found or next((os.environ[name] for name in PROJECT_VARIABLES if os.environ.get(name)), None)
    found = found or _credentials()[1]
    if not found:
        raise AccessError(
            "no Google Cloud project is named: write `gcp:project: my-project` under config in "
            f"stacks/{deployment.stack_file.name}, or set GOOGLE_CLOUD_PROJECT"
        )
    recorded = request_of(deployment.gang_folder).get("wish", {}).get("project")
    if provider_of(deployment.gang_folder) == "gcp" and recorded not in (None, found):
        raise ProviderError(
            f"stack {deployment.stack} has been in Google Cloud project {recorded}, and {found} is named now: name "
            f"{recorded} again, run `make destroy STACK={deployment.stack}`, and change it then"
        )
    return str(found)


@functools.cache
def _credentials() -> tuple[Any, str | None]:
    """And the project that they belong to. A bare access token goes first, as in Google's Terraform provider."""
    import google.auth
    import google.auth.exceptions
    import google.oauth2.credentials

    token = os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
    if token:
        return google.oauth2.credentials.Credentials(token), None  # type: ignore[no-untyped-call]
    try:
        credentials, project = google.auth.default(scopes=[_SCOPE])
    except google.auth.exceptions.DefaultCredentialsError as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise AccessError(
            f"there are no usable Google Cloud credentials ({why}): run `gcloud auth application-default login`, or "
            "set GOOGLE_APPLICATION_CREDENTIALS to a key file"
        ) from None
    return credentials, project


def _endpoint(service: Service) -> str:
    variable, usual = ENDPOINTS[service]
    return os.environ.get(variable, usual).rstrip("/") + "/"


def _content(answer: Answer) -> object:
    try:
        return answer.json()
    except ValueError:
        return answer.text


def _operation_path(operation: Mapping[str, Any], doing: str) -> str:
    """From its own link, which names project and zone, region or neither."""
    link = str(operation.get("selfLink", ""))
    if operation.get("kind") != "compute#operation" or "/projects/" not in link:
        raise _malformed(doing, operation)
    return "projects/" + link.partition("/projects/")[2]


def _malformed(doing: str, content: object) -> ProviderError:
    return ProviderError(
        f"{doing}: Google's answer can't be used ({str(content)[:120]!r}), so it tells nothing: run it again"
    )
