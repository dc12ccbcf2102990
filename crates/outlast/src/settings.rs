//! What the environment says: `OUTLAST_RUN_ID`, `OUTLAST_GROUP`, `OUTLAST_PORT`, `OUTLAST_AGENT`.
//!
//! A variable that is not set, or empty, says nothing. One that makes no sense is an error that names it: a peer that
//! took the default instead would train in another run than its launcher meant, and nobody would know why.

use outlast_proto::collective::Group;
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::membership::Preset;
use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// The variable that names the run.
pub const RUN_ID: &str = "OUTLAST_RUN_ID";
/// The variable that numbers the group.
pub const GROUP: &str = "OUTLAST_GROUP";
/// The variable that numbers the port.
pub const PORT: &str = "OUTLAST_PORT";
/// The variable that names the agent that started this process. Agents set it, people do not.
pub const AGENT: &str = "OUTLAST_AGENT";

/// A variable that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?}: {cause}; correct the variable, or unset it for the default ({default})")]
pub struct SettingError {
    variable: &'static str,
    value: String,
    cause: String,
    default: &'static str,
}

/// The run to take part in.
pub fn run_id() -> Result<Option<RunId>, SettingError> {
    parse(RUN_ID, std::env::var_os(RUN_ID), "the run \"default\"", |error: &_| format!("{error}"))
}

/// The run that was given, that of the environment, or `default`.
pub(crate) fn run_or_default(given: Option<RunId>) -> Result<RunId, SettingError> {
    match given {
        Some(run) => Ok(run),
        None => Ok(run_id()?.unwrap_or_else(|| "default".parse().expect("a valid run id"))),
    }
}

/// The group within the run.
pub fn group() -> Result<Option<Group>, SettingError> {
    parse(GROUP, std::env::var_os(GROUP), "group 0", |_: &_| {
        "groups are whole numbers from 0 to 4294967295".to_owned()
    })
}

/// The port to listen on.
pub fn port() -> Result<Option<u16>, SettingError> {
    parse(PORT, std::env::var_os(PORT), "a free port", |_: &_| {
        "ports are whole numbers from 0 to 65535".to_owned()
    })
}

/// The agent that is to be believed about the end of this process (rule 20a).
pub fn agent() -> Result<Option<PeerId>, SettingError> {
    parse(AGENT, std::env::var_os(AGENT), "no witness", |error: &_| format!("{error}"))
}

/// Refuses a time after which a session would end before its coordinator could be back.
pub(crate) fn check_control_lost_after(preset: Preset, time: Duration) -> Result<(), String> {
    let grace = preset.times().control_grace;
    if time > grace {
        return Ok(());
    }
    Err(format!(
        "control_lost_after of {time:?}: a coordinator that restarts has control_grace to be back, which is {grace:?} in \
         this preset; give more than that, or another preset"
    ))
}

fn parse<T: FromStr<Err: Display>>(
    variable: &'static str,
    value: Option<OsString>,
    default: &'static str,
    cause: impl Fn(&T::Err) -> String,
) -> Result<Option<T>, SettingError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let wrong = |value: String, cause| SettingError { variable, value, cause, default };
    let value = value
        .into_string()
        .map_err(|odd| wrong(odd.to_string_lossy().into_owned(), "it is not text in UTF-8".to_owned()))?;
    value.trim().parse().map(Some).map_err(|error| wrong(value.clone(), cause(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn a_variable_that_makes_no_sense_is_an_error_with_its_name_its_value_and_what_to_do() {
        let read = |value| parse::<u32>(GROUP, value, "group 0", |_| "a number".to_owned());
        assert_eq!(read(None), Ok(None));
        assert_eq!(read(Some(OsString::new())), Ok(None));
        assert_eq!(read(Some("7".into())), Ok(Some(7)));
        for (value, shown) in [("two", "\"two\""), ("-1", "\"-1\""), ("4294967296", "\"4294967296\"")] {
            let text = read(Some(value.into())).unwrap_err().to_string();
            let expected = format!("OUTLAST_GROUP={shown}: a number; correct the variable, or unset it");
            assert!(text.starts_with(&expected), "{text}");
        }
        let text = read(Some(OsString::from_vec(vec![0xff]))).unwrap_err().to_string();
        assert!(text.contains("UTF-8"), "{text}");
    }
}
