//! The `outlast` program as a binary of its own.

fn main() -> outlast_cli::ExitCode {
    outlast_cli::run(std::env::args_os())
}
