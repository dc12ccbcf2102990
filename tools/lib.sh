# Shared by the scripts in this folder; sourced, never run.
# Enters the root of the repository, so that every path below is relative to it.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# .tools holds what tools/setup built. The user's cargo comes last: a shell that CI started may not know it.
# Once: a path that grows with every script is another one to build scripts that look at it, and they run again.
if [[ :$PATH: != *":$PWD/.tools/bin:"* ]]; then
    export PATH="$PWD/.tools/bin:$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
fi

# CI builds once, from nothing: what makes the next build of the same tree faster only costs it time.
if [[ -n ${CI:-} ]]; then
    export CARGO_INCREMENTAL=0
    # Nobody attaches a debugger there, and eighty programs are linked sooner without line tables.
    export CARGO_PROFILE_DEV_DEBUG=0
fi

# Every check of the workspace uses the same flags, so that nothing is compiled twice.
workspace=(--workspace --all-features --locked)
# Tests are built in two parts. The machines are optimised for whoever runs them for long, as the simulator does; their own tests
# run for seconds, and optimising those takes minutes.
machines=(--package outlast-proto --all-features --locked --config profile.dev.package.outlast-proto.opt-level=0
    --config profile.dev.package.outlast-proto.codegen-units=16)
others=("${workspace[@]}" --exclude outlast-proto)

# Which tests run where; .config/nextest.toml says the same. nextest refuses a pattern that matches no binary at
# all, so each pattern names outlast_lab (the lab's unit tests, which always exist) and takes it out again.
#
# Tests that need root and network namespaces: the lab's own, and whatever is called lab_*.
lab_tests='((package(outlast-lab) | binary(/^(lab_|outlast_lab$)/)) & kind(test)) | test(/(^|::)lab_/)'
# Tests with real processes and real kills, which must have the processors for themselves.
real_tests='binary(/^(real_|outlast_lab$)/) & kind(test)'
# Tests in the simulator, which has a clock of its own.
simulated_tests='package(outlast-sim)'

say() { printf '%s\n' "$*"; }
fail() {
    printf '%s\n' "$*" >&2
    exit 1
}
