"""An S3 of our own: moto's server in another process, on a port of this machine."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

# It ends when its input does, so that nothing is left behind even if the tests are killed.
_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""
KEY, SECRET = "AKIAOURTESTKEY00", "our/secret+of+the+tests"
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Bucket:
    """A bucket, and what fsspec wants to know to reach it."""

    name: str
    endpoint: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        client = {"endpoint_url": self.endpoint, "region_name": "us-east-1"}
        return {"key": KEY, "secret": SECRET, "client_kwargs": client}

    @property
    def delta_options(self) -> dict[str, str]:
        """The same for writing with deltalake."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same for whoever looks there."""
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")
        found = {name: self.delta_options[name] for name in names}
        return {**found, "AWS_DEFAULT_REGION": "us-east-1"}

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1",
            aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        )  # fmt: skip

    def files(self) -> Any:
        """As fsspec sees it."""
        import s3fs

        return s3fs.S3FileSystem(**self.options, use_listings_cache=False)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a running server."""
    command = [sys.executable, "-c", _SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as server:
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


@pytest.fixture
def bucket(s3_endpoint: str) -> Bucket:
    """A new, empty bucket."""
    made = Bucket(f"bucket-{next(_NUMBERS)}", s3_endpoint)
    made.client().create_bucket(Bucket=made.name)
    return made
