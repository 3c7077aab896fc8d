"""The stand-in for AWS: moto's server with what it lacks, and faults on order. Tests only; see client.py for its use.

    python -m tests.stand_ins.aws.server        prints its port on 127.0.0.1, ends when its standard input is closed

Every request is read with botocore's model of the service, noted, refused if a test or a rule of AWS's wants that,
then executed by moto, one at a time. What moto can't do is answered with 400 InvalidAction, never 500 (which clients
would retry). It accepts any signature and any credentials; there is one account, and IAM policies restrict nobody.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

# Before moto is imported: it reads these then.
os.environ.setdefault("MOTO_AMIS_PATH", str(Path(__file__).with_name("images.json")))
os.environ.setdefault("MOTO_ENABLE_AMI_VALIDATION", "true")
os.environ.setdefault("MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION", "true")

from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.stand_ins.aws import additions, inventory, launch, rules, visibility
from tests.stand_ins.aws.requests import read_call, refusal
from tests.stand_ins.aws.state import STATE, AwsError, Call

Answer = tuple[str, list[tuple[str, str]], bytes]
HOST = "127.0.0.1"


class Front:
    """WSGI: our control paths, and everything else to moto by way of the rules."""

    def __init__(self, moto: Callable[..., Iterable[bytes]]) -> None:
        self._moto = moto
        self._one_at_a_time = threading.RLock()  # moto's stores are plain dicts

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["PATH_INFO"].startswith("/_stand_in/"):
            status, headers, body = self._control(environ)
        else:
            status, headers, body = self._aws(environ)
        headers = [(name, value) for name, value in headers if name.lower() not in ("content-length", "connection")]
        if environ["REQUEST_METHOD"] != "HEAD":
            headers.append(("Content-Length", str(len(body))))
        start_response(status, headers)
        return [body]

    # -- AWS --------------------------------------------------------------------------------------------------------

    def _aws(self, environ: dict[str, Any]) -> Answer:
        service = "ec2" if b"Action" in environ.get("QUERY_STRING", "").encode() else "s3"
        entry: dict[str, Any] = {}
        try:
            call = read_call(environ)
            service = call.service
            entry = STATE.note(call, time.time())
            if not STATE.hang_if_planned(call, entry["number"], "before"):
                raise AwsError("RequestDropped", "the test dropped this call before it was executed")
            STATE.refuse_if_planned(call)
            with self._one_at_a_time:
                answer = self._execute(call, environ)
            entry["outcome"] = answer[0].split()[0]
            STATE.hang_if_planned(call, entry["number"], "after")
        except AwsError as error:
            entry["outcome"] = error.code
            return refusal(service, error)
        return answer

    def _execute(self, call: Call, environ: dict[str, Any]) -> Answer:
        rules.check(call)
        visibility.before(call)
        direct = additions.answer(call)
        answer = direct or self._ask_moto(call, environ)
        if answer[0].startswith("2"):
            return visibility.after(call, answer)
        return answer

    def _ask_moto(self, call: Call, environ: dict[str, Any]) -> Answer:
        started: list[Any] = []
        try:
            chunks = self._moto(environ, lambda status, headers, *_: started.extend([status, list(headers)]))
            body = b"".join(chunks)
        except NotImplementedError as error:
            raise AwsError("InvalidAction", f"the stand-in does not implement {call.operation}: {error}") from error
        except AwsError:
            raise
        except Exception as error:  # a fault of moto's or ours: not a 500, which would be retried
            raise AwsError("StandInFault", f"{call.operation}: {type(error).__name__}: {error}") from error
        if started[0].startswith("5") and b"<html" in body[:300].lower():
            raise AwsError("StandInFault", f"{call.operation}: {body[:300]!r}")
        return started[0], started[1], body

    # -- control ----------------------------------------------------------------------------------------------------

    def _control(self, environ: dict[str, Any]) -> Answer:
        what = environ["PATH_INFO"].removeprefix("/_stand_in/")
        query = {key: values[0] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
        length = int(environ.get("CONTENT_LENGTH") or 0)
        wish = json.loads(environ["wsgi.input"].read(length) or b"{}")
        try:
            result = self._controls(what, query, wish)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return "400 Bad Request", [], json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
        return "200 OK", [("Content-Type", "application/json")], json.dumps(result, default=str).encode()

    def _controls(self, what: str, query: dict[str, str], wish: dict[str, Any]) -> Any:
        match what:
            case "faults":
                STATE.apply(wish)
                return {}
            case "state":
                with self._one_at_a_time:
                    return {**STATE.to_json(), "resources": inventory.everything()}
            case "calls":
                return STATE.calls
            case "hanging":
                return STATE.wait_until_hanging(query["operation"], float(query["timeout_s"]))
            case "release":
                return STATE.release(execute=bool(wish["execute"]))
            case "guest_shutdown":
                with self._one_at_a_time:
                    return launch.shut_down_from_inside(wish["instance_id"])
            case "interrupt":
                with self._one_at_a_time:
                    return launch.end(wish["instance_id"], wish["reason"])
            case "reset":
                with self._one_at_a_time:
                    STATE.reset()
                    BackendDict.reset()
                    reset_model_data()
                    return {}
        raise KeyError(what)


def main() -> None:
    """Serve until standard input is closed, which also happens when whoever started us is killed."""
    additions.install()
    launch.install()
    front = Front(DomainDispatcherApplication(create_backend_app))
    server = make_server(HOST, 0, front, threaded=True, request_handler=_Quiet)
    server.daemon_threads = True  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    STATE.reset()
    server.shutdown()
    # Threads of callers that are gone may still be in moto: nothing of theirs is worth waiting for.
    os._exit(0)


class _Quiet(MotoRequestHandler):
    def log(self, *_: Any) -> None:
        """Nothing: the call log is STATE.calls."""


if __name__ == "__main__":
    main()
