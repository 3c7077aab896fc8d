"""Requests as botocore's models read them, and refusals in each protocol's own form."""

from __future__ import annotations

import io
import json
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape

from moto.core.model import ServiceModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request
from moto.core.routing import get_service_router
from moto.core.utils import get_service_model

from tests.stand_ins.aws.state import AwsError, Call

MODEL_NAMES = {"servicequotas": "service-quotas", "elasticfilesystem": "efs", "tagging": "resourcegroupstaggingapi"}


def read_call(environ: dict[str, Any]) -> Call:
    """Which operation of which service, with its parameters. Puts the body back for whoever comes next.

    Raises AwsError when the request isn't signed or names a service or an operation that botocore's models don't have.
    """
    body = _body(environ)
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
    service, region = _signed_for(environ)
    request = Request({**environ, "wsgi.input": io.BytesIO(body)})
    try:
        model = get_service_model(service)
    except Exception as error:
        raise AwsError("InvalidAction", f"the stand-in knows no service {service!r}") from error
    operation, uri_params = _operation(service, model, request)
    return Call(
        service=service,
        operation=operation,
        region=region,
        params=_parameters(model, operation, request, body, uri_params),
    )


def _body(environ: dict[str, Any]) -> bytes:
    length = environ.get("CONTENT_LENGTH")
    if length:
        return bytes(environ["wsgi.input"].read(int(length)))
    return bytes(environ["wsgi.input"].read()) if environ.get("wsgi.input_terminated") else b""


def _signed_for(environ: dict[str, Any]) -> tuple[str, str]:
    try:
        scope = environ["HTTP_AUTHORIZATION"].split("Credential=")[1].split(",")[0]
        _, _, region, service, _ = scope.split("/")
    except (KeyError, IndexError, ValueError) as error:
        raise AwsError("MissingAuthenticationToken", "the request is not signed", status=403) from error
    return MODEL_NAMES.get(service, service), region


def _operation(service: str, model: ServiceModel, request: Request) -> tuple[str, dict[str, Any]]:
    uri_params: dict[str, Any] = {}
    name = request.values.get("Action")
    if name is None and "X-Amz-Target" in request.headers:
        name = request.headers["X-Amz-Target"].split(".")[-1]
    if name is None:
        try:
            operation, uri_params = get_service_router(service).match(request)
        except Exception as error:
            raise AwsError("InvalidAction", f"{service} has no {request.method} {request.path}") from error
        name = operation.name
    if name not in model.operation_names:
        raise AwsError("InvalidAction", f"The action {name} is not valid for this web service.")
    return name, uri_params


def _parameters(
    model: ServiceModel, operation: str, request: Request, body: bytes, uri_params: dict[str, Any]
) -> dict[str, Any]:
    if model.protocol == "rest-xml":  # S3: bodies are objects
        return {**request.args.to_dict(), **uri_params}
    if model.protocol == "json":
        return dict(json.loads(body or b"{}"))
    if model.protocol == "rest-json":
        return {**(json.loads(body) if body else {}), **request.args.to_dict(), **uri_params}
    parser = PROTOCOL_PARSERS[model.protocol](model.operation_model(operation), map_type=dict)
    parsed = parser.parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": body,
            "url_path": request.path,
            "url_params": uri_params,
        }
    )
    return dict(parsed or {})


def refusal(service: str, error: AwsError) -> tuple[str, list[tuple[str, str]], bytes]:
    """Status line, headers and body of `error` in the service's protocol."""
    code, message, request_id = escape(error.code), escape(error.message), str(uuid4())
    status = f"{error.status} {'Bad Request' if error.status < 500 else 'Internal Server Error'}"
    if service == "ec2":
        body = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>"
        )
    elif service == "s3":
        body = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>{request_id}</RequestId></Error>"
    elif service in ("iam", "sts"):
        body = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    else:
        text = json.dumps({"__type": error.code, "message": error.message, "Message": error.message})
        headers = [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-errortype", error.code)]
        return status, headers, text.encode()
    return status, [("Content-Type", "text/xml")], body.encode()
