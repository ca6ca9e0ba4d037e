"""measured.py COMMAND...: runs a test, adopts whatever it leaves behind, and tells the processor time of all of them.

A job's keepers have no parent that waits for them, so nobody else counts what they and their trainers use. The
seconds are written where GTEST_OUTPUT names a folder, to PAWL_TEST_NAME.cpu there (tools/test shows them). Ends as the
test does.
"""
import ctypes
import os
import resource
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    test = os.fork()
    if test == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(test, number))
    pid = status = None
    while pid != test:
        pid, status = os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = os.environ.get("GTEST_OUTPUT", "").removeprefix("xml:")
    if folder:
        with open(os.path.join(folder, os.environ["PAWL_TEST_NAME"] + ".cpu"), "w", encoding="utf-8") as file:
            file.write(f"{used.ru_utime + used.ru_stime:.1f}\n")
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
