"""A server of S3 for test_s3.py, run by the interpreter that has moto (tools/setup-moto).

Makes a bucket and a user, then checks signatures and rights. Prints {"endpoint", "id", "secret"} as one line of JSON,
and serves until its standard input ends.
"""
import json
import logging
import sys
import urllib.request

import boto3
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

RIGHTS = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    anybody = {"endpoint_url": endpoint, "region_name": "us-east-1", "aws_access_key_id": "x",
               "aws_secret_access_key": "x"}
    boto3.client("s3", **anybody).create_bucket(Bucket="checkpoints")
    iam = boto3.client("iam", **anybody)
    iam.create_user(UserName="pawl")
    iam.put_user_policy(UserName="pawl", PolicyName="all", PolicyDocument=json.dumps(RIGHTS))
    key = iam.create_access_key(UserName="pawl")["AccessKey"]
    checked = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
    urllib.request.urlopen(checked).close()
    print(json.dumps({"endpoint": endpoint, "id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
