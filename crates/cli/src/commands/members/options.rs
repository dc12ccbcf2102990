//! What the user typed, and what it means.

use super::super::address::address;
use super::super::group_secret::HandOver;
use super::super::run_id::run_id;
use super::super::trust::TrustArgs;
use anyhow::Context as _;
use outlast::Membership;
use outlast::membership::{MembershipBuilder, PairPolicy, Preset, RunId};
use outlast::security::RunSecret;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Example: a group of three on one machine, each in its own terminal
  outlast members --listen 127.0.0.1:4000 --name a
  (it prints the command with which the others join, for instance:)
  OUTLAST_SECRET_FILE=/run/user/1000/outlast/4000.secret outlast members --join 127.0.0.1:4000 --name b

Stop one with kill -STOP: it becomes stalled, not dead. Kill one with kill -KILL: dead, known to all, within
a second.";

/// Be a member of a group, and watch who is alive.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to listen, TCP and UDP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:0", value_parser = address)]
    pub(super) listen: SocketAddr,
    /// The address that others should use, if it is not the one we listen on
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(super) advertise: Option<SocketAddr>,
    /// A member to join through, host:port; may be given several times
    #[arg(long, value_name = "ADDR")]
    pub(super) join: Vec<String>,
    /// Times for this kind of network
    #[arg(long, value_enum, default_value = "lan")]
    pub(super) preset: PresetName,
    /// A name for people; default: the host's name and the process id
    #[arg(long)]
    pub(super) name: Option<String>,
    /// A short text that every member sees beside this one
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(super) meta: String,
    /// The run whose members these are; members of different runs never meet
    #[arg(long, env = "OUTLAST_RUN_ID", default_value = "default", value_name = "ID", value_parser = run_id)]
    pub(super) run_id: RunId,
    /// A file that holds the run secret; default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`, else a new secret
    #[arg(long, value_name = "FILE")]
    pub(super) secret_file: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Give up on a stalled process after this long (as in 500ms, 60s, 2m)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) stall_budget: Option<Duration>,
    /// Declare a member dead after silence for this long, whoever testified
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) dead_after: Option<Duration>,
    /// How long silence must last that other members confirm
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) suspicion: Option<Duration>,
    /// One probe starts this often
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) probe_interval: Option<Duration>,
    /// After this long without an answer, a probe asks other members and the kernel
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) probe_timeout: Option<Duration>,
    /// What two members alone do about silence: wait for dead-after, or only for the suspicion time
    #[arg(long, value_enum, default_value = "patient")]
    pub(super) pair_policy: PairPolicyName,
    /// Print one JSON object per event
    #[arg(long)]
    pub(super) json: bool,
    /// Print lines instead of the live table, even in a terminal
    #[arg(long)]
    pub(super) plain: bool,
    /// Also print everything that is known, as one JSON object, this often
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) status_every: Option<Duration>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum PresetName {
    /// One machine
    Local,
    /// One site
    Lan,
    /// The internet
    Wan,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum PairPolicyName {
    /// Silence counts only after dead-after
    Patient,
    /// Silence counts after the suspicion time
    Trusting,
}

impl PresetName {
    /// What it stands for.
    pub(crate) fn preset(self) -> Preset {
        match self {
            Self::Local => Preset::Local,
            Self::Lan => Preset::Lan,
            Self::Wan => Preset::Wan,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Lan => "lan",
            Self::Wan => "wan",
        }
    }
}

impl Args {
    /// The member that the arguments describe.
    pub(super) fn builder(&self, secret: RunSecret) -> anyhow::Result<MembershipBuilder> {
        let mut builder = Membership::builder()
            .listen(self.listen)
            .join(self.join.iter().cloned())
            .preset(self.preset.preset())
            .run_id(self.run_id.clone())
            .secret(secret)
            .meta(self.meta.as_bytes())
            .configure(|config| {
                let set = |field: &mut Duration, value: Option<Duration>| *field = value.unwrap_or(*field);
                set(&mut config.stall_budget, self.stall_budget);
                set(&mut config.dead_after, self.dead_after);
                set(&mut config.suspicion_min, self.suspicion);
                set(&mut config.probe_interval, self.probe_interval);
                set(&mut config.probe_timeout, self.probe_timeout);
                config.pair_policy = match self.pair_policy {
                    PairPolicyName::Patient => PairPolicy::Patient,
                    PairPolicyName::Trusting => PairPolicy::Trusting,
                };
            });
        if let Some(name) = &self.name {
            builder = builder.name(name);
        }
        if let Some(address) = self.advertise {
            builder = builder.advertise(address);
        }
        if let Some(accepted) = self.trust.accepted()? {
            builder = builder.accept_secret(accepted);
        }
        if let Some(certificate) = self.trust.certificate()? {
            builder = builder.tls(certificate);
        }
        Ok(builder)
    }

    /// The command to type elsewhere, ready to be copied. Settings that all members should share are repeated.
    pub(super) fn join_command(&self, address: SocketAddr, hand_over: &HandOver) -> String {
        let mut words = Vec::new();
        words.extend(hand_over.file().map(|file| format!("OUTLAST_SECRET_FILE={}", file.display())));
        words.push("outlast members".to_owned());
        words.extend(self.secret_file.as_ref().map(|file| format!("--secret-file {}", file.display())));
        words.push(format!("--join {address}"));
        if address.ip().is_loopback() {
            // Whoever joins through a loopback address is on this machine and must be reachable there.
            words.push(format!("--listen {}", SocketAddr::new(address.ip(), 0)));
        }
        if self.run_id.as_str() != "default" {
            words.push(format!("--run-id {}", self.run_id));
        }
        if self.preset.word() != "lan" {
            words.push(format!("--preset {}", self.preset.word()));
        }
        let times = [
            ("stall-budget", self.stall_budget),
            ("dead-after", self.dead_after),
            ("suspicion", self.suspicion),
            ("probe-interval", self.probe_interval),
            ("probe-timeout", self.probe_timeout),
        ];
        words.extend(
            times
                .iter()
                .filter_map(|(name, time)| time.map(|time| format!("--{name} {}ms", time.as_millis()))),
        );
        words.join(" ")
    }
}

/// `500ms`, `60s`, `2m`, `1h`, or a plain number of seconds.
pub(crate) fn duration(text: &str) -> anyhow::Result<Duration> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().with_context(|| format!("{text:?} is not a time; write 500ms, 60s or 2m"))?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3_600.0,
        _ => anyhow::bail!("{unit:?} is not a unit of time; use ms, s, m or h"),
    };
    // Also keeps the sum of a few times far from overflow.
    anyhow::ensure!(seconds > 0.0 && seconds <= 86_400.0, "{text:?} is out of range; use 1ms to 24h");
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units_and_others_are_refused() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("60s").unwrap(), Duration::from_mins(1));
        assert_eq!(duration("1.5m").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("7").unwrap(), Duration::from_secs(7));
        for wrong in ["", "s", "0s", "-1s", "5 parsecs", "1e9s", "99999h", "..s"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
