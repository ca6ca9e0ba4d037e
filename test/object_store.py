"""A server of S3 for tests, which is moto: with the bucket `checkpoints` and a user whose signatures are checked."""
import json
import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class ObjectStore:
    """Runs until close(). Skips the test where moto can't be had."""

    def __init__(self):
        found = subprocess.run([ROOT / "tools" / "setup-moto"], capture_output=True, text=True)
        if found.returncode != 0:
            raise unittest.SkipTest(found.stderr.strip().splitlines()[-1])
        self._server = subprocess.Popen([found.stdout.strip(), "-B", ROOT / "test" / "moto_server.py"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "2"})
        account = json.loads(self._server.stdout.readline())
        self.secret = account["secret"]
        self.variables = {"AWS_ENDPOINT_URL_S3": account["endpoint"], "AWS_ACCESS_KEY_ID": account["id"],
                          "AWS_SECRET_ACCESS_KEY": account["secret"]}

    def close(self):
        self._server.stdin.close()
        self._server.wait(30)
        self._server.stdout.close()
