//! What the user typed: torchrun's words where torchrun has them.

use super::super::address::coordinators;
use super::super::members::duration;
use super::super::run_id::run_id;
use super::super::trust::TrustArgs;
use super::devices;
use super::standby::StandbyArgs;
use outlast::agent::{Budget, Elastic};
use outlast::membership::RunId;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  outlast run --standalone --nproc-per-node 4 train.py --epochs 3      # one machine, nothing else needed
  outlast run --nproc-per-node 4 -- python train.py                    # the same, by any command
  outlast run --standalone --nproc-per-node 2 -m my.module --lr 0.1    # as python -m my.module --lr 0.1
  outlast run --max-restarts 10/3600 --log-dir logs --tee 2 train.py   # files for all, stderr on the terminal too
  outlast run --coordinator 10.0.0.1:29400 --secret-file run.secret --nnodes 2:4 --nproc-per-node 8 train.py
  outlast run --coordinator a:29400,b:29400,c:29400 --standby --backend etcd:e:2379 --nnodes 3 train.py   # on a, b and c

A worker that dies is replaced alone and the others go on (--elastic inplace), or all are started again together
(--elastic restart). Ctrl-C and SIGTERM are passed on; who has not ended after --grace is killed, with everything
that it started.

Exit code: 0 if every worker ended with 0; else that of the worker whose failure ended the run, or 128 + its signal;
64 for a command line that makes no sense, 69 if no coordinator can be reached, 75 if too few nodes came.";

/// Start workers, watch them, and replace those that die.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Run on this machine alone, with a coordinator of its own
    #[arg(long, conflicts_with = "coordinator")]
    pub(super) standalone: bool,
    /// The coordinator, host:port, or several separated by commas; default: `OUTLAST_COORDINATOR`, else as --standalone
    #[arg(long, value_name = "ADDR", value_parser = coordinators, aliases = ["rdzv-endpoint", "rdzv_endpoint"])]
    pub(super) coordinator: Option<String>,
    #[command(flatten)]
    pub(super) standby: StandbyArgs,
    /// How many machines take part, or the fewest and the most, as in 2:4; more than one needs --coordinator
    #[arg(long, value_name = "MIN[:MAX]", default_value = "1")]
    pub(super) nnodes: Nodes,
    /// Workers on this machine: a number, `cpu` (one for each processor), `gpu` (one for each), or `auto` (gpu, else cpu)
    #[arg(long, value_name = "N|auto|cpu|gpu", default_value = "1", alias = "nproc_per_node")]
    pub(super) nproc_per_node: Count,
    /// The run's name
    #[arg(long, env = "OUTLAST_RUN_ID", default_value = "default", value_name = "ID", value_parser = run_id,
          aliases = ["rdzv-id", "rdzv_id"])]
    pub(super) run_id: RunId,
    /// How often each worker may be replaced: a number, or a number within so many seconds
    #[arg(long, value_name = "K[/SECONDS]", default_value = "3/600", alias = "max_restarts")]
    pub(super) max_restarts: Budget,
    /// What happens when a worker dies
    #[arg(long, value_enum, default_value = "inplace")]
    pub(super) elastic: ElasticName,
    /// How long workers have to stop when they are told to (as in 500ms, 60s, 2m)
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(super) grace: Duration,
    /// A file that holds the run secret; default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`, else a new secret
    #[arg(long, value_name = "FILE")]
    pub(super) secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) trust: TrustArgs,
    /// Also write what workers say to files: DIR/RUN/LIFE/RANK/stdout.log and stderr.log; LIFE counts restarts
    #[arg(long, value_name = "DIR", alias = "log_dir")]
    pub(super) log_dir: Option<PathBuf>,
    /// What is shown on the terminal, in torchrun's numbers: 0 nothing, 1 stdout, 2 stderr, 3 both; or for each worker of
    /// this machine, as in 0:3,1:0
    #[arg(short, long, value_name = "0..3", default_value = "3")]
    pub(super) tee: Shown,
    /// What is written to files and not shown (the opposite of --tee, as with torchrun)
    #[arg(short, long, value_name = "0..3", conflicts_with = "tee", requires = "log_dir")]
    pub(super) redirects: Option<Shown>,
    /// How others reach this machine; default: the address from which it reaches the coordinator
    #[arg(long, value_name = "HOST", alias = "local_addr")]
    pub(super) local_addr: Option<String>,
    /// Times for meeting other machines, in seconds, as torchrun names them: `join_timeout=600,last_call_timeout=30`
    #[arg(long, value_name = "KEY=SECONDS,..", default_value = "", alias = "rdzv_conf")]
    pub(super) rdzv_conf: Times,
    /// A name for what these workers do; they find it in `ROLE_NAME`
    #[arg(long, default_value = "default")]
    pub(super) role: String,
    /// COMMAND is a Python module, as in python -m
    #[arg(short, long)]
    pub(super) module: bool,
    /// COMMAND is a program, even if its name ends in .py
    #[arg(long, alias = "no_python", conflicts_with = "module")]
    pub(super) no_python: bool,
    /// Keep each worker on the processors of one NUMA node
    #[arg(long)]
    pub(super) numa: bool,
    /// Print every event and every line of the workers as one JSON object per line
    #[arg(long)]
    pub(super) json: bool,
    /// A program, or a script that ends in .py, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum ElasticName {
    /// Only the worker that died is replaced; the others go on
    Inplace,
    /// All are stopped and started together
    Restart,
}

impl From<ElasticName> for Elastic {
    fn from(name: ElasticName) -> Self {
        match name {
            ElasticName::Inplace => Self::Inplace,
            ElasticName::Restart => Self::Restart,
        }
    }
}

/// Fewest and most machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nodes {
    pub(super) min: usize,
    pub(super) max: usize,
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok(Self { min, max }),
            _ => Err("write how many machines, as in 2, or the fewest and the most, as in 2:4".to_owned()),
        }
    }
}

/// Times of a rendezvous that differ from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) join: Option<Duration>,
    pub(super) last_call: Option<Duration>,
    pub(super) close: Option<Duration>,
    pub(super) keep_alive_interval: Option<Duration>,
}

impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut times = Self::default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?}: write KEY=SECONDS"))?;
            let time = match key {
                "join_timeout" => &mut times.join,
                "last_call_timeout" => &mut times.last_call,
                "close_timeout" => &mut times.close,
                "keep_alive_interval" => &mut times.keep_alive_interval,
                // It is about how torchrun's store is read.
                "read_timeout" => continue,
                _ => {
                    return Err(format!(
                        "{key:?} is not known; use join_timeout, last_call_timeout, close_timeout or keep_alive_interval"
                    ));
                }
            };
            let seconds = value.parse::<f64>().ok().filter(|seconds| (0.0..=1e7).contains(seconds));
            let seconds = seconds.ok_or_else(|| format!("{key}={value}: write a number of seconds"))?;
            *time = Some(Duration::from_secs_f64(seconds));
        }
        Ok(times)
    }
}

/// How many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Exactly(usize),
    Processors,
    Accelerators,
    Auto,
}

/// More processes than that are a mistake in typing.
const WORKERS_MAX: usize = 4_096;

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Processors),
            "gpu" => Ok(Self::Accelerators),
            number => match number.parse() {
                Ok(count) if (1..=WORKERS_MAX).contains(&count) => Ok(Self::Exactly(count)),
                _ => Err(format!("write a number from 1 to {WORKERS_MAX}, or auto, cpu or gpu")),
            },
        }
    }
}

impl Count {
    /// The number on this machine.
    pub(super) fn number(self) -> Result<usize, String> {
        let processors = || std::thread::available_parallelism().map_or(1, Into::into);
        match self {
            Self::Exactly(count) => Ok(count),
            Self::Processors => Ok(processors()),
            Self::Auto => Ok(Some(devices::accelerators()).filter(|count| *count > 0).unwrap_or_else(processors)),
            Self::Accelerators => match devices::accelerators() {
                0 => Err("--nproc-per-node gpu: no accelerator was found (neither an NVIDIA nor an AMD driver lists \
                          one); write a number, cpu or auto"
                    .to_owned()),
                count => Ok(count),
            },
        }
    }
}

/// Which streams of which worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    all: u8,
    some: Vec<(usize, u8)>,
}

impl FromStr for Shown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write 0, 1, 2 or 3, or a number for each worker, as in 0:3,1:0".to_owned();
        let streams = |text: &str| text.parse().ok().filter(|streams| *streams <= 3).ok_or_else(wrong);
        if !text.contains(':') {
            return Ok(Self { all: streams(text)?, some: Vec::new() });
        }
        let some = text.split(',').map(|pair| {
            let (worker, which) = pair.split_once(':').ok_or_else(wrong)?;
            Ok((worker.parse().map_err(|_| wrong())?, streams(which)?))
        });
        Ok(Self { all: 0, some: some.collect::<Result<_, String>>()? })
    }
}

impl Shown {
    /// The streams that these are not.
    pub(super) fn others(&self) -> Self {
        let some = self.some.iter().map(|(worker, streams)| (*worker, 3 - streams)).collect();
        Self { all: 3 - self.all, some }
    }

    /// Whether a worker's stdout and stderr are meant.
    pub(super) fn of(&self, worker: usize) -> (bool, bool) {
        let streams =
            self.some.iter().find(|(other, _)| *other == worker).map_or(self.all, |(_, which)| *which);
        (streams & 1 != 0, streams & 2 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_a_number_or_the_fewest_and_the_most() {
        assert_eq!("3".parse(), Ok(Nodes { min: 3, max: 3 }));
        assert_eq!("2:4".parse(), Ok(Nodes { min: 2, max: 4 }));
        for odd in ["0", "4:2", "", ":", "2:", "a", "1:2:3", "-1"] {
            assert!(odd.parse::<Nodes>().is_err(), "{odd}");
        }
    }

    #[test]
    fn times_are_named_as_torchrun_names_them() {
        let times: Times = "join_timeout=60,last_call_timeout=0.5,read_timeout=9".parse().unwrap();
        assert_eq!(
            (times.join, times.last_call),
            (Some(Duration::from_mins(1)), Some(Duration::from_millis(500)))
        );
        assert_eq!("".parse(), Ok(Times::default()));
        for odd in ["join_timeout", "join_timeout=soon", "join_timeout=-1", "jointimeout=1"] {
            assert!(odd.parse::<Times>().is_err(), "{odd}");
        }
    }

    #[test]
    fn workers_are_a_number_or_what_the_machine_has() {
        assert_eq!("4".parse(), Ok(Count::Exactly(4)));
        assert_eq!("cpu".parse(), Ok(Count::Processors));
        for odd in ["0", "-1", "five", "4097", ""] {
            assert!(odd.parse::<Count>().is_err(), "{odd}");
        }
        assert!(Count::Processors.number().is_ok_and(|count| count >= 1));
    }

    #[test]
    fn streams_are_numbered_as_torchrun_does() {
        let shown = |text: &str, worker| text.parse::<Shown>().unwrap().of(worker);
        assert_eq!(
            ["0", "1", "2", "3"].map(|text| shown(text, 7)),
            [(false, false), (true, false), (false, true), (true, true)]
        );
        assert_eq!(
            [0, 1, 2].map(|worker| shown("0:3,1:2", worker)),
            [(true, true), (false, true), (false, false)]
        );
        for odd in ["4", "", "0:4", "a:1", "1:", "0:1,2"] {
            assert!(odd.parse::<Shown>().is_err(), "{odd}");
        }
    }
}
