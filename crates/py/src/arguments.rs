//! Arguments as people write them, turned into the runtime's terms. Each refusal names the argument and what
//! would be right.

use crate::errors::invalid;
use crate::visit::Visit;
use outlast::communicator::Encryption;
use outlast::membership::{PeerId, Preset, RunId};
use outlast::security::{OwnCertificate, RunSecret};
use outlast::settings;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

/// Times beyond this are a mistake in a unit: three years.
const SECONDS_MAX: f64 = 1e8;

/// The longest piece of somebody's value that is repeated in a message.
const SHOWN_MAX: usize = 60;

/// A value as Python shows it, for messages; cut where it would fill a page.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> String {
    let text = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

/// One of the arguments that come together in a tuple: what `name` was given as, or what to give.
pub(crate) fn option<'py, T: FromPyObjectOwned<'py>>(
    given: &Bound<'py, PyTuple>,
    at: usize,
    name: &str,
    wanted: &str,
) -> PyResult<T> {
    taken(&given.get_item(at)?, name, wanted)
}

/// An argument as what it should be: what `name` was given as, or what to give.
pub(crate) fn taken<'py, T: FromPyObjectOwned<'py>>(
    value: &Bound<'py, PyAny>,
    name: &str,
    wanted: &str,
) -> PyResult<T> {
    value.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        let text = format!("{name}={}: give {wanted}", shown(value));
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            invalid(text)
        } else {
            PyTypeError::new_err(text)
        }
    })
}

/// A time limit in seconds; `None` stays `None`.
pub(crate) fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    if value > 0.0 && value <= SECONDS_MAX {
        return Ok(Some(Duration::from_secs_f64(value)));
    }
    if value > SECONDS_MAX {
        // Infinity among them: a wait without an end is what this library is there to prevent.
        let most = SECONDS_MAX as u64;
        return Err(invalid(format!(
            "{name}={value}: no call waits forever; give a number of seconds up to {most}, or None for the default"
        )));
    }
    Err(invalid(format!("{name}={value}: give a number of seconds above 0, or None for the default")))
}

/// A number of members, at least one.
pub(crate) fn members(name: &str, value: i64) -> PyResult<u32> {
    match u32::try_from(value) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(invalid(format!("{name}={value}: give a whole number of members, at least 1"))),
    }
}

/// The run that `OUTLAST_RUN_ID` names, if it is set.
#[pyfunction]
pub(crate) fn run_id_from_environment() -> PyResult<Option<String>> {
    let run = settings::run_id().map_err(|error| invalid(error.to_string()))?;
    Ok(run.map(|run| run.as_str().to_owned()))
}

/// The group that `OUTLAST_GROUP` numbers, if it is set.
#[pyfunction]
pub(crate) fn group_from_environment() -> PyResult<Option<u32>> {
    settings::group().map_err(|error| invalid(error.to_string()))
}

/// The port that `OUTLAST_PORT` numbers, if it is set.
#[pyfunction]
pub(crate) fn port_from_environment() -> PyResult<Option<u16>> {
    settings::port().map_err(|error| invalid(error.to_string()))
}

/// A group's number.
pub(crate) fn group(value: i64) -> PyResult<u32> {
    u32::try_from(value)
        .map_err(|_| invalid(format!("group={value}: groups are numbered from 0 to 2**32 - 1")))
}

/// Refuses what is no list of addresses. Whether they lead anywhere is found out by connecting.
pub(crate) fn coordinator(text: &str) -> PyResult<()> {
    outlast::coordinator::check_addresses(text)
        .map_err(|error| invalid(format!("coordinator={text:?}: {error}")))
}

/// A tag.
pub(crate) fn tag(value: i64) -> PyResult<u64> {
    u64::try_from(value).map_err(|_| invalid(format!("tag={value}: tags are whole numbers from 0 on")))
}

/// The kind of network.
pub(crate) fn preset(word: &str) -> PyResult<Preset> {
    match word {
        "local" => Ok(Preset::Local),
        "lan" => Ok(Preset::Lan),
        "wan" => Ok(Preset::Wan),
        _ => Err(invalid(format!("preset={word:?}: write \"local\", \"lan\" or \"wan\""))),
    }
}

/// Whether tensors are encrypted on their way.
pub(crate) fn encryption(word: &str) -> PyResult<Encryption> {
    match word {
        "on" => Ok(Encryption::On),
        "off" => Ok(Encryption::Off),
        _ => Err(invalid(format!("encryption={word:?}: write \"on\" or \"off\""))),
    }
}

/// The name of a run.
pub(crate) fn run_id(text: &str) -> PyResult<RunId> {
    text.parse().map_err(|error| invalid(format!("run_id: {error}")))
}

/// The paths of an authority's certificate, of this process's certificate and of its key.
pub(crate) type TlsFiles = (PathBuf, PathBuf, PathBuf);

/// A certificate of one's own authority.
pub(crate) fn tls((authority, chain, key): &TlsFiles) -> PyResult<OwnCertificate> {
    OwnCertificate::from_files(authority, chain, key).map_err(|error| invalid(format!("tls: {error}")))
}

/// A secret in its text form.
pub(crate) fn secret(text: &str) -> PyResult<RunSecret> {
    text.parse().map_err(|error| invalid(format!("secret: {error}")))
}

/// An address to listen on or to advertise: `host:port`. Whoever looks a name up may take long, and lets the interpreter go.
pub(crate) fn address(py: Python<'_>, visit: &Visit, name: &str, text: &str) -> PyResult<SocketAddr> {
    let found = visit.away(py, || text.to_socket_addrs().map(|mut found| found.next()));
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(invalid(format!("{name}={text:?} has no address"))),
        Err(error) => Err(invalid(format!("{name}={text:?}: write host:port ({error})"))),
    }
}

/// A peer's id in its text form: 32 hexadecimal digits.
pub(crate) fn peer_id(text: &str) -> Option<PeerId> {
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(PeerId::from_bytes(bytes))
}
