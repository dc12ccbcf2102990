//! Results on their way up: the frozen records of `outlast.records`, filled in by position.

use outlast::communicator::{
    Event, Happened, Lost, Peer, Receipt, SeenGroup, Slowed, SyncReport, TopologyChange, TopologyReport,
};
use outlast::membership::{MemberInfo, PeerId};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyModule, PyString, PyTuple};
use std::time::Duration;

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static RECORDS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = RECORDS.get_or_try_init(py, || py.import("outlast.records").map(Bound::unbind))?;
    module.bind(py).getattr(name)
}

/// Ids as the tuple of texts that people see. The same group contributes again and again, so the last one is
/// kept.
#[derive(Default)]
pub(crate) struct Contributors(Option<(Vec<PeerId>, Py<PyTuple>)>);

impl Contributors {
    fn of<'py>(&mut self, py: Python<'py>, peers: &[PeerId]) -> PyResult<Bound<'py, PyTuple>> {
        if let Some((known, tuple)) = &self.0
            && known == peers
        {
            return Ok(tuple.bind(py).clone());
        }
        let tuple = PyTuple::new(py, peers.iter().map(PeerId::to_string))?;
        self.0 = Some((peers.to_vec(), tuple.clone().unbind()));
        Ok(tuple)
    }
}

/// The class of receipts, its bare constructor, and the names of its fields in their order.
struct ReceiptClass {
    class: Py<PyAny>,
    bare: Py<PyAny>,
    fields: Vec<Py<PyString>>,
}

fn receipt_class(py: Python<'_>) -> PyResult<&'static ReceiptClass> {
    static RECEIPT: PyOnceLock<ReceiptClass> = PyOnceLock::new();
    RECEIPT.get_or_try_init(py, || {
        let class = class(py, "Receipt")?;
        let bare = py.import("builtins")?.getattr("object")?.getattr("__new__")?.unbind();
        let fields = class.getattr("__slots__")?.extract::<Vec<String>>()?;
        let fields = fields.iter().map(|name| PyString::intern(py, name).unbind()).collect();
        Ok(ReceiptClass { class: class.unbind(), bare, fields })
    })
}

/// A receipt. Made for every collective, so it is filled in directly: a frozen record's own constructor goes
/// through Python for each field.
pub(crate) fn receipt(py: Python<'_>, receipt: &Receipt, known: &mut Contributors) -> PyResult<Py<PyAny>> {
    let ReceiptClass { class, bare, fields } = receipt_class(py)?;
    let object = |value: Bound<'_, PyAny>| value.unbind();
    let number = |value: u64| value.into_pyobject(py).map(|value| value.into_any().unbind());
    let values = [
        number(receipt.epoch)?,
        number(receipt.tag)?,
        number(receipt.seq)?,
        number(receipt.rank as u64)?,
        number(receipt.world_size as u64)?,
        object(known.of(py, &receipt.contributors)?.into_any()),
        lost(py, &receipt.lost)?,
        number(receipt.attempts.into())?,
        number(receipt.pending.into())?,
        object(receipt.algorithm.into_pyobject(py)?.into_any()),
        number(receipt.bytes_sent)?,
        number(receipt.bytes_received)?,
        object(receipt.seconds.into_pyobject(py)?.into_any()),
        object(receipt.predicted_seconds.into_pyobject(py)?.into_any()),
        object(receipt.hash.map(|hash| format!("{hash:032x}")).into_pyobject(py)?.into_any()),
    ];
    assert_eq!(fields.len(), values.len(), "outlast.records.Receipt has the fields that are filled in here");
    let made = bare.call1(py, (class,))?;
    for (name, value) in fields.iter().zip(&values) {
        // SAFETY: all three are live objects, and the interpreter is at hand. The generic setter writes the slot;
        // the class's own would refuse, because receipts are frozen.
        let set = unsafe { ffi::PyObject_GenericSetAttr(made.as_ptr(), name.as_ptr(), value.as_ptr()) };
        if set != 0 {
            return Err(PyErr::fetch(py));
        }
    }
    Ok(made)
}

/// Who was lost while a call was under way; mostly nobody.
fn lost(py: Python<'_>, lost: &[Lost]) -> PyResult<Py<PyAny>> {
    let one = |lost: &Lost| {
        let (peer, reason) = (lost.peer.to_string(), lost.reason.to_string());
        class(py, "Lost")?.call1((peer, &lost.name, reason))
    };
    let all = lost.iter().map(one).collect::<PyResult<Vec<_>>>()?;
    Ok(PyTuple::new(py, all)?.into_any().unbind())
}

/// What happened, as the row that `outlast.events` makes an event of: the kind, its time, a member, a text, two numbers.
pub(crate) fn happened<'py>(py: Python<'py>, happened: &Happened) -> PyResult<Bound<'py, PyTuple>> {
    let at = happened.at.duration_since(std::time::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let member = |info: &MemberInfo, health: &str| {
        let (id, address) = (info.id.to_string(), info.address.to_string());
        (id, &info.name, address, PyBytes::new(py, &info.meta), health).into_pyobject(py)
    };
    let none = || py.None().into_bound(py);
    let (kind, about, text, numbers) = match &happened.what {
        Event::Joined(info) => ("Joined", member(info, "alive")?.into_any(), String::new(), (0, 0)),
        Event::Stalled(info) => ("Stalled", member(info, "stalled")?.into_any(), String::new(), (0, 0)),
        Event::Recovered(info) => ("Recovered", member(info, "alive")?.into_any(), String::new(), (0, 0)),
        Event::Lost(lost) => {
            let who = (lost.peer.to_string(), &lost.name).into_pyobject(py)?;
            ("Lost", who.into_any(), lost.reason.to_string(), (0, 0))
        }
        Event::EpochChanged(epoch, world) => ("EpochChanged", none(), String::new(), (*epoch, *world as u64)),
        Event::LinkSlowed(Slowed { from, to, before, rate, .. }) => {
            let ends = (from.id.to_string(), &from.name, to.id.to_string(), &to.name).into_pyobject(py)?;
            ("LinkSlowed", ends.into_any(), String::new(), (*before, *rate))
        }
        Event::SlowStep(slow) => {
            let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let words = (&slow.call, slow.diagnosis.word()).into_pyobject(py)?;
            let times = (microseconds(slow.took), microseconds(slow.usual));
            ("SlowStep", words.into_any(), slow.diagnosis.to_string(), times)
        }
        Event::CoordinatorLost => ("CoordinatorLost", none(), String::new(), (0, 0)),
        Event::CoordinatorBack => ("CoordinatorBack", none(), String::new(), (0, 0)),
        Event::Healing(have, all) => ("Healing", none(), String::new(), (*have, *all)),
        Event::Lagged(count) => ("Lagged", none(), String::new(), (*count, 0)),
        _ => ("Lagged", none(), String::new(), (0, 0)),
    };
    (kind, at, about, text, numbers).into_pyobject(py)
}

/// What a vote for newcomers changed.
pub(crate) fn topology_change(py: Python<'_>, change: &TopologyChange) -> PyResult<Py<PyAny>> {
    let joined = PyTuple::new(py, change.joined.iter().map(PeerId::to_string))?;
    let left = PyDict::new(py);
    for (peer, reason) in &change.left {
        left.set_item(peer.to_string(), reason.to_string())?;
    }
    class(py, "TopologyChange")?.call1((change.epoch, joined, left)).map(Bound::unbind)
}

/// What a vote for a better ring came to.
pub(crate) fn topology_report(py: Python<'_>, report: &TopologyReport) -> PyResult<Py<PyAny>> {
    let fields = (
        PyTuple::new(py, report.ring.iter().map(PeerId::to_string))?,
        report.predicted,
        report.improved,
        report.measured_pairs,
        report.seconds,
        report.moonshot,
        report.before,
    );
    class(py, "TopologyReport")?.call1(fields).map(Bound::unbind)
}

/// What a sync found and did.
pub(crate) fn sync_report(py: Python<'_>, report: &SyncReport) -> PyResult<Py<PyAny>> {
    let donors = PyDict::new(py);
    for (peer, leaves) in &report.donors {
        donors.set_item(peer.to_string(), leaves)?;
    }
    let replaced = PyDict::new(py);
    for (peer, why) in &report.replaced {
        replaced.set_item(peer.to_string(), why)?;
    }
    let healed = PyDict::new(py);
    for (peer, keys) in &report.healed {
        healed.set_item(peer.to_string(), PyTuple::new(py, keys)?)?;
    }
    let diverged = PyTuple::new(py, report.diverged.iter().map(PeerId::to_string))?;
    let fields = (
        report.revision,
        PyBytes::new(py, &report.extra),
        report.sent,
        report.received,
        report.leaves,
        donors,
        PyTuple::new(py, &report.differed)?,
        report.seconds,
        healed,
        diverged,
        replaced,
    );
    class(py, "SyncReport")?.call1(fields).map(Bound::unbind)
}

/// The members of the group; `health` are the same members as the health plane sees them now.
pub(crate) fn peers(py: Python<'_>, seen: &SeenGroup, health: &[Peer]) -> PyResult<Vec<Py<PyAny>>> {
    let class = class(py, "Peer")?;
    let word = |id: PeerId| health.iter().find(|peer| peer.id == id).map_or("unknown", |peer| peer.health);
    let peer = |peer: &Peer| {
        let (id, address) = (peer.id.to_string(), peer.address.to_string());
        class.call1((id, peer.rank, peer.group, &peer.name, address, word(peer.id))).map(Bound::unbind)
    };
    seen.peers.iter().map(peer).collect()
}
