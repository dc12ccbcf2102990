//! One member of a group, as Python holds it.

use crate::arguments;
use crate::errors::{invalid, of_membership};
use crate::manners::{self, LOOK_EVERY, check_process};
use crate::visit::Visit;
use outlast::fork::Creator;
use outlast::membership::{Event, Happening, Member, MemberInfo, MembershipError, TimedEvent};
use outlast::sync::{lock, owned};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long a question for events waits if it is not told.
const EVENTS: Duration = Duration::from_mins(1);

/// A member that answers for this process until it leaves.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Membership {
    member: Mutex<Option<Arc<outlast::Membership>>>,
    address: String,
    id: String,
    creator: Creator,
}

impl Membership {
    fn open(&self) -> PyResult<Arc<outlast::Membership>> {
        check_process(self.creator)?;
        let member = lock(&self.member).clone();
        member.ok_or_else(|| invalid("this member has left its group; make a new one".to_owned()))
    }
}

#[pymethods]
impl Membership {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they come by position from a documented constructor")]
    fn new(
        py: Python<'_>,
        listen: &str,
        join: Vec<String>,
        preset: &str,
        secret: Option<&str>,
        meta: Vec<u8>,
        run_id: &str,
        name: Option<String>,
        advertise: Option<&str>,
        accept_secret: Option<&str>,
        tls: Option<arguments::TlsFiles>,
    ) -> PyResult<Self> {
        let visit = Visit::begin(py);
        let mut builder = outlast::Membership::builder()
            .listen(arguments::address(py, &visit, "listen", listen)?)
            .join(join)
            .preset(arguments::preset(preset)?)
            .meta(meta)
            .run_id(arguments::run_id(run_id)?);
        if let Some(secret) = secret {
            builder = builder.secret(arguments::secret(secret)?);
        }
        if let Some(secret) = accept_secret {
            builder = builder.accept_secret(arguments::secret(secret)?);
        }
        if let Some(files) = tls {
            builder = builder.tls(arguments::tls(&files)?);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if let Some(address) = advertise {
            builder = builder.advertise(arguments::address(py, &visit, "advertise", address)?);
        }
        let member = visit.away(py, || builder.start()).map_err(|error| of_membership(py, &error))?;
        let (address, id) = (member.address().to_string(), member.id().to_string());
        let member = Mutex::new(Some(Arc::new(member)));
        Ok(Self { member, address, id, creator: Creator::this_process() })
    }

    #[getter]
    fn address(&self) -> PyResult<&str> {
        check_process(self.creator)?;
        Ok(&self.address)
    }

    #[getter]
    fn id(&self) -> PyResult<&str> {
        check_process(self.creator)?;
        Ok(&self.id)
    }

    /// Rows of the active list: id, name, address, meta, health.
    fn active<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let visit = Visit::begin(py);
        let member = self.open()?;
        let rows = visit.away(py, || member.active()).map_err(|error| of_membership(py, &error))?;
        rows.iter().map(|row| row_of(py, row)).collect()
    }

    /// Rows of the failed list.
    fn failed<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let visit = Visit::begin(py);
        let member = self.open()?;
        let rows = visit.away(py, || member.failed()).map_err(|error| of_membership(py, &error))?;
        rows.iter().map(|row| row_of(py, row)).collect()
    }

    /// What happened: the kind, who (or nothing), and what else the kind says.
    fn events<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let visit = Visit::begin(py);
        let member = self.open()?;
        // Unlike in other calls zero makes sense here: look, do not wait.
        let limit = match timeout {
            Some(0.0) => Duration::ZERO,
            other => arguments::seconds("timeout", other)?.unwrap_or(EVENTS),
        };
        let deadline = Instant::now() + limit;
        let main = manners::is_main_thread(py);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let slice = left.min(if main { LOOK_EVERY } else { Duration::from_secs(1) });
            let happened = visit.away(py, || member.events(slice));
            let happened = happened.map_err(|error| of_membership(py, &error))?;
            if !happened.is_empty() || left.is_zero() {
                return happened.iter().map(|event| event_of(py, event)).collect();
            }
            if main {
                py.check_signals()?;
            }
        }
    }

    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let visit = Visit::begin(py);
        check_process(self.creator)?;
        let member = lock(&self.member).take();
        let Some(member) = member else { return Ok(()) };
        match visit.away(py, || member.leave(GOODBYE)) {
            // It ends by itself soon; there is nothing that the program should do.
            Ok(()) | Err(MembershipError::GoodbyeTimeout(_)) => Ok(()),
            Err(error) => Err(of_membership(py, &error)),
        }
    }

    fn has_left(&self) -> bool {
        self.creator.check().is_ok() && lock(&self.member).is_none()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let member = owned(&mut self.member).take();
        let member = ManuallyDrop::new(member);
        if self.creator.check().is_ok() {
            drop(ManuallyDrop::into_inner(member));
        }
    }
}

fn info_of<'py>(py: Python<'py>, info: &MemberInfo, health: &str) -> PyResult<Bound<'py, PyTuple>> {
    let (id, address) = (info.id.to_string(), info.address.to_string());
    (id, &info.name, address, PyBytes::new(py, &info.meta), health).into_pyobject(py)
}

fn row_of<'py>(py: Python<'py>, member: &Member) -> PyResult<Bound<'py, PyTuple>> {
    info_of(py, &member.info, member.health.word())
}

fn event_of<'py>(py: Python<'py>, event: &TimedEvent) -> PyResult<Bound<'py, PyTuple>> {
    let about = |kind: &str, info: &MemberInfo, health: &str| {
        (kind, info_of(py, info, health)?, "", Vec::<String>::new()).into_pyobject(py)
    };
    let other = |kind: &str, text: String| (kind, py.None(), text, Vec::<String>::new()).into_pyobject(py);
    match &event.what {
        Happening::Event(Event::Joined(info)) => about("Joined", info, "alive"),
        Happening::Event(Event::Stalled(info)) => about("Stalled", info, "stalled"),
        Happening::Event(Event::Suspected(info)) => about("Suspected", info, "suspect"),
        Happening::Event(Event::Recovered(info)) => about("Recovered", info, "alive"),
        Happening::Event(Event::Left(info)) => about("Left", info, "left"),
        Happening::Event(Event::Died { info, reason, accusers }) => {
            let accusers: Vec<_> = accusers.iter().map(ToString::to_string).collect();
            ("Died", info_of(py, info, "dead")?, reason.to_string(), accusers).into_pyobject(py)
        }
        Happening::Event(Event::Rejoined { reason, since, .. }) => {
            // How long it was out, in seconds, takes the place of the accusers.
            let seconds = event.at.since(*since).as_secs_f64().to_string();
            ("Rejoined", py.None(), reason.to_string(), vec![seconds]).into_pyobject(py)
        }
        Happening::Lagged(lost) => other("Lagged", lost.to_string()),
        unknown => other("Lagged", format!("{unknown:?}")),
    }
}
