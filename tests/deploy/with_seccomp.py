#!/usr/bin/env python3
"""Runs a command under a seccomp profile of the form that container runtimes read.

usage: with_seccomp.py PROFILE [--without NAME,...] COMMAND...   Needs Debian's python3-seccomp.
"""
import json
import os
import sys

import seccomp


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        profile = json.load(f)
    command, without = sys.argv[2:], set()
    if command[0] == "--without":
        without, command = set(command[1].split(",")), command[2:]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    rules = seccomp.SyscallFilter(seccomp.ERRNO(1))
    for group in profile["syscalls"]:
        assert group["action"] == "SCMP_ACT_ALLOW"
        for name in set(group["names"]) - without:
            try:
                rules.add_rule(seccomp.ALLOW, name)
            except RuntimeError:
                pass  # newer than this libseccomp
    rules.load()
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
