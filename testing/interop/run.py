#!/usr/bin/env python3
"""Runs every known client against the program.

`cargo xtask interop` builds the program and the Rust client, and calls this script.

See README.md for details.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True

import install  # noqa: E402
from api_cases import ApiCase, api_cases  # noqa: E402
from cases import SECRET, USER, Outcome, Runner, cases  # noqa: E402
from clients import modes  # noqa: E402
from egress import EgressCase, egress_cases  # noqa: E402
from migration import MigrationCase, migration_cases  # noqa: E402
from postgres import PostgresCase, postgres_cases  # noqa: E402
from tls_cases import TlsCase, tls_cases  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def main():
    options = arguments()
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    built = target / "debug"
    tools = install.Tools(target / "interop", built)
    if options.install:
        try:
            tools.install()
        except install.Failed as failed:
            print(f"interop: {failed}", file=sys.stderr)
            return 1
    every = [*cases(modes()), *tls_cases(), *migration_cases(), *api_cases(), *egress_cases(), *postgres_cases()]
    chosen = [case for case in every if all(word in str(case).split() for word in options.words)]
    if options.list:
        print(*chosen, sep="\n")
        return 0
    print(*tools.versions(), sep="\n")
    runnable, skipped, optional = sort_out(chosen, tools)
    with tempfile.TemporaryDirectory(prefix="interop-") as folder:
        program = options.program or built / "spliceway"
        needed = any(case.demands for case in runnable)
        runner = Runner(program, password_file(program, Path(folder)) if needed else None, tools)
        failed = run_all(program, runner, tools, runnable, options.jobs)
    missing_is_an_error = options.install or os.environ.get("CI") == "true"
    if missing_is_an_error:
        failed += skipped
        skipped = 0
    skipped += optional
    print(f"interop: {len(chosen) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not chosen else 0


def arguments():
    parser = argparse.ArgumentParser(prog="cargo xtask interop", description=__doc__)
    parser.add_argument("--install", action="store_true", help="install the missing clients; none may be missing then")
    parser.add_argument("--list", action="store_true", help="print the cases instead of running them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="concurrent cases")
    parser.add_argument("--program", type=Path, metavar="PATH", help="another build of the program")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only cases with all of these words, such as `curl ipv6`"
    )
    return parser.parse_args()


def sort_out(chosen, tools):
    """The cases whose clients are installed, and the numbers of skipped cases.

    The second number has cases that lack only a tool without a package. Prints each missing client
    once.
    """
    runnable, skipped, optional, said = [], 0, 0, set()
    for case in chosen:
        missing = [tool for tool in case.needs if tools.missing(tool)]
        if not missing:
            runnable.append(case)
            continue
        if install.UNPACKAGED.keys() >= set(missing):
            optional += 1
        else:
            skipped += 1
        if case.client not in said:
            said.add(case.client)
            reasons = [f"{tool} is not there: {tools.missing(tool)}" for tool in missing]
            print(f"skip  {case.client}: {', '.join(reasons)}")
    return runnable, skipped, optional


def password_file(program, folder):
    """Writes another user before the one under test, so that the program reads two lines."""
    hashes = [
        subprocess.run(
            [program, "hash-password"], input=f"{secret}\n", capture_output=True, text=True, check=True
        ).stdout.strip()
        for secret in ("not hers", SECRET)
    ]
    file = folder / "users"
    file.touch(mode=0o600)
    file.write_text(f"bob:{hashes[0]}\n{USER}:{hashes[1]}\n")
    return file


def run_all(program, runner, tools, runnable, jobs):
    """Prints a line for each case as it ends. Returns the number of failed cases."""
    started, failed = time.monotonic(), 0

    def run(case):
        if isinstance(case, (MigrationCase, EgressCase)):
            seconds, faults, log = case.run(program)
            return Outcome(case, seconds, faults, log, None)
        if isinstance(case, (ApiCase, PostgresCase)):
            return case.run(program, tools)
        return case.run(program) if isinstance(case, TlsCase) else runner.run(case)

    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(run, runnable):
            spliced = f"  {outcome.spliced:6.1%} spliced" if outcome.spliced is not None else ""
            word = "FAIL" if outcome.faults else "ok"
            print(f"{word:<6}{str(outcome.case):<52}{outcome.seconds:6.2f} s{spliced}", flush=True)
            if outcome.faults:
                failed += 1
                print(*(f"    {fault}" for fault in outcome.faults), outcome.log, sep="\n", flush=True)
    print(f"{len(runnable)} cases in {time.monotonic() - started:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
