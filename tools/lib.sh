# Shared by the scripts in this folder; sourced, never run.
# Enters the root of the repository, so that every path below is relative to it.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# .tools holds what tools/setup built. The user's cargo comes last: a shell that CI started may not know it.
export PATH="$PWD/.tools/bin:$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

# Every build and check of the workspace uses the same flags, so that nothing is compiled twice.
workspace=(--workspace --all-features --locked)

# Tests that need root and network namespaces: see .config/nextest.toml, which says the same.
lab_tests='(package(outlast-lab) & kind(test)) | binary(/^lab_/) | test(/(^|::)lab_/)'
# Tests with real processes and real kills, which must have the processors for themselves.
real_tests='binary(/^real_/)'

say() { printf '%s\n' "$*"; }
fail() {
    printf '%s\n' "$*" >&2
    exit 1
}
