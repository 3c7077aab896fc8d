"""Checkpoints in object storage: against moto's S3 server on this machine, through the same client as in the cloud."""

import http.client
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from moto.server import ThreadedMotoServer

from tests.trainer import checkpoint_jobs as jobs
from tests.trainer import ranks

pytestmark = pytest.mark.ranks_import("s3fs")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The server's, which the environment gives to the ranks too."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(url: str, request: pytest.FixtureRequest) -> Any:
    """(boto3 client, name of a fresh bucket)"""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - the stand-in's
        region_name="us-east-1",
    )
    name = f"bucket-{abs(hash(request.node.name))}"
    client.create_bucket(Bucket=name)
    return client, name


def keys(bucket: Any) -> list[str]:
    client, name = bucket
    return sorted(item["Key"] for item in client.list_objects_v2(Bucket=name).get("Contents", []))


def test_a_node_with_an_empty_disk_goes_on_from_the_bucket(bucket: Any, tmp_path: Path) -> None:
    config = {"location": f"s3://{bucket[1]}/runs/one", "keep": 2}
    ranks.call(2, jobs.in_world, jobs.save, "fsdp", tmp_path / "first", config, (1, 2, 3))
    state = torch.load(tmp_path / "first" / "state.pt")
    steps = {key.split("/")[2] for key in keys(bucket) if "/step-" in key}
    assert steps == {"step-00000002", "step-00000003"}  # retention, there too
    assert f"runs/one/{max(steps)}/manifest.json" in keys(bucket)
    shutil.rmtree(tmp_path / "first")
    folders = [tmp_path / "a", tmp_path / "b"]  # two nodes
    for answer in ranks.call(2, jobs.in_world, jobs.resume_on_nodes, "fsdp", folders, "auto", config):
        assert answer is not None
        assert answer[0] == 3
        assert all(torch.equal(answer[1][name], value) for name, value in state.items())
    assert not [path for folder in folders for path in folder.rglob("*.distcp")]  # downloads don't stay
    # and as the beginning of another run
    url = f"{config['location']}/step-00000002"
    assert [
        answer[0] for answer in ranks.call(2, jobs.in_world, jobs.resume_on_nodes, "ddp", [tmp_path / "c"], url)
    ] == [2, 2]


def test_damage_in_the_bucket_is_passed_over_for_the_older_one(bucket: Any, tmp_path: Path) -> None:
    client, name = bucket
    config = {"location": f"s3://{name}", "keep": 4}
    ranks.call(2, jobs.in_world, jobs.save, "fsdp", tmp_path, config, (1, 2, 3, 4))
    client.delete_object(Bucket=name, Key="step-00000004/manifest.json")  # as if the last save had not ended
    client.delete_object(Bucket=name, Key="step-00000003/__1_0.distcp")
    key = "step-00000002/__0_0.distcp"
    content = client.get_object(Bucket=name, Key=key)["Body"].read()
    client.put_object(Bucket=name, Key=key, Body=content[:-1] + b"?")  # only its digest tells
    assert [
        answer[0] for answer in ranks.call(2, jobs.in_world, jobs.resume_on_nodes, "fsdp", [tmp_path], "auto", config)
    ] == [1, 1]


def test_an_upload_that_breaks_off_leaves_nothing_and_is_raised_on_all_ranks(bucket: Any, tmp_path: Path) -> None:
    client, name = bucket
    config = {"location": f"s3://{name}/run"}
    outcomes = ranks.outcomes(2, jobs.in_world, jobs.break_an_upload, tmp_path, config)
    assert [rank.error for rank in outcomes] == ["CheckpointError"] * 2
    assert "the connection broke" in outcomes[0].output
    assert not [key for key in keys(bucket) if "__1_" in key or "manifest" in key]
    assert not client.list_multipart_uploads(Bucket=name).get("Uploads")


def test_uploads_that_a_killed_run_left_are_given_up_at_the_next_start(bucket: Any, tmp_path: Path) -> None:
    client, name = bucket
    for key in ("run/step-00000001/__0_0.distcp", "another/step-00000001/__0_0.distcp"):
        client.create_multipart_upload(Bucket=name, Key=key)
    ranks.call(2, jobs.in_world, jobs.save, "ddp", tmp_path, {"location": f"s3://{name}/run"}, (1,))
    left = [upload["Key"] for upload in client.list_multipart_uploads(Bucket=name).get("Uploads", [])]
    assert left == ["another/step-00000001/__0_0.distcp"]


@pytest.mark.usefixtures("url")
def test_a_bucket_that_is_not_there_is_named_before_training(tmp_path: Path) -> None:
    outcomes = ranks.outcomes(2, jobs.in_world, jobs.require_room, tmp_path, {"location": "s3://no-such-bucket/run"})
    assert [rank.error for rank in outcomes] == ["CheckpointError"] * 2
    assert "s3://no-such-bucket/run" in outcomes[0].output


def test_a_bucket_of_another_run_is_not_emptied_by_starting_afresh(bucket: Any, tmp_path: Path) -> None:
    config = {"location": f"s3://{bucket[1]}/run"}
    ranks.call(2, jobs.in_world, jobs.save, "ddp", tmp_path, config, (1,))
    refused = ranks.outcomes(2, jobs.in_world, jobs.start_afresh, tmp_path, config)[1]
    assert refused.error == "CheckpointError"
    assert "new prefix" in refused.output


def test_a_run_that_is_killed_in_an_upload_goes_on_from_the_save_before(bucket: Any, tmp_path: Path) -> None:
    client, name = bucket
    config = {"location": f"s3://{name}/run"}
    (killed,) = ranks.outcomes(1, jobs.in_world, jobs.die_in_an_upload, tmp_path, config)
    assert killed.exit_code == -9, killed.output
    assert client.list_multipart_uploads(Bucket=name)["Uploads"]
    assert "run/step-00000002/.begun" in keys(bucket)
    (answer,) = ranks.call(1, jobs.in_world, jobs.resume_on_nodes, "single", [tmp_path], "auto", config)
    assert answer[0] == 1
    assert not [key for key in keys(bucket) if "step-00000002" in key]
    assert not client.list_multipart_uploads(Bucket=name).get("Uploads")


@contextmanager
def unreliable(url: str, faults: list[str], silent: str | None = None) -> Iterator[str]:
    """The address of a proxy before the server. It spends one fault on each file of a checkpoint that is sent: "500"
    is answered without the server knowing; "cut" closes the connection in the middle, "lost" after the server did it.
    A path's end in `silent` has 500 for an answer, always.
    """
    server_at = urlsplit(url).netloc

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            fault = faults.pop(0) if faults and self.command == "PUT" and ".distcp" in self.path else ""
            if silent and self.path.partition("?")[0].endswith(silent):
                fault = "500"
            if self.headers.get("Expect"):
                self.send_response_only(100)
                self.end_headers()
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size // 2 if fault == "cut" else size)
            self.close_connection = bool(fault)
            if fault == "500":
                self.send_response(500)
                self.send_header("Content-Length", "0")
                self.end_headers()
            if fault in ("500", "cut"):
                return
            behind = http.client.HTTPConnection(server_at)
            headers = {key: value for key, value in self.headers.items() if key.lower() not in ("expect", "connection")}
            behind.request(self.command, self.path, body, headers)
            answer = behind.getresponse()
            content = answer.read()
            if fault:
                return
            self.send_response_only(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(key, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
            self.send_header("Content-Length", str(length or 0))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        def log_message(self, format: str, *arguments: Any) -> None:
            del format, arguments

        def handle_expect_100(self) -> bool:
            return True  # handle_any does it

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_fails_now_and_then_costs_no_checkpoint(
    url: str, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"location": f"s3://{bucket[1]}/run"}
    faults = ["500", "cut", "lost"]
    with unreliable(url, faults) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
        ranks.call(2, jobs.in_world, jobs.save, "fsdp", tmp_path, config, (1,))
        assert not faults
        state = torch.load(tmp_path / "state.pt")
        for answer in ranks.call(2, jobs.in_world, jobs.resume_on_nodes, "fsdp", [tmp_path / "new"], "auto", config):
            assert answer[0] == 1
            assert all(torch.equal(answer[1][name], value) for name, value in state.items())


def test_a_file_that_is_answered_500_for_ever_is_named_on_all_ranks_and_no_older_checkpoint_is_taken(
    url: str, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the newest is whole isn't known: going on from the one before would throw its work away."""
    config = {"location": f"s3://{bucket[1]}/run"}
    ranks.call(2, jobs.in_world, jobs.save, "fsdp", tmp_path, config, (1, 2))
    complete = keys(bucket)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # s3fs tries five times anyway
    for job, silent, said in (
        ((jobs.save, "fsdp", tmp_path, config, (3,)), "step-00000003/__1_0.distcp", "cannot write the checkpoint of"),
        ((jobs.resume_on_nodes, "fsdp", [tmp_path], "auto", config), "step-00000002/__1_0.distcp", "cannot download"),
    ):
        with unreliable(url, [], silent) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
            ended = ranks.outcomes(2, jobs.in_world, *job)
        assert [rank.error for rank in ended] == ["CheckpointError" if "write" in said else "Unreachable"] * 2
        sentence = next(line for line in ended[0].output.splitlines()[::-1] if said in line)
        assert sentence in ended[1].output
        assert f"s3://{bucket[1]}/run/{silent}: " in sentence
        assert "not usable" not in ended[0].output
    assert keys(bucket) == complete
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    for answer in ranks.call(2, jobs.in_world, jobs.resume_on_nodes, "fsdp", [tmp_path], "auto", config):
        assert answer[0] == 2
