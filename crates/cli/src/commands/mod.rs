//! Each command is a file with `Args` (what the user typed) and `run(args) -> anyhow::Result<ExitCode>`.

mod address;
pub(crate) mod bench;
pub(crate) mod coordinator;
pub(crate) mod debug;
mod etcd;
mod group_secret;
mod json;
pub(crate) mod lab;
pub(crate) mod members;
pub(crate) mod run;
mod run_id;
pub(crate) mod secret;
pub(crate) mod status;
mod stop;
pub(crate) mod store;
mod trust;
