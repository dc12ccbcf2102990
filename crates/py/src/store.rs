//! A member of the store, as Python holds it.

use crate::arguments;
use crate::errors::{invalid, of_store};
use crate::manners::{self, check_process};
use crate::visit::Visit;
use outlast::fork::Creator;
use outlast::store::{StoreError, Within};
use outlast::sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A store's handle. Keys and values are bytes here; the class above it takes text too.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Store {
    store: Mutex<Option<Arc<outlast::Store>>>,
    creator: Creator,
}

impl Store {
    fn open(&self) -> PyResult<Arc<outlast::Store>> {
        check_process(self.creator)?;
        let store = lock(&self.store).clone();
        store.ok_or_else(|| invalid("this member has left the store; join again to use it".to_owned()))
    }

    /// Does something with the store, within that many seconds or its default, while the interpreter is let go.
    fn call<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        work: impl FnOnce(Within<'_>) -> Result<R, StoreError> + Send,
    ) -> PyResult<R> {
        let visit = Visit::begin(py);
        let limit = limit(timeout)?;
        let store = self.open()?;
        let limit = limit.unwrap_or(store.timeout());
        let result = manners::blocking(py, &visit, None, || work(store.within(limit)))?;
        result.map_err(|error| of_store(py, &error))
    }

    fn close(&self) -> Option<Arc<outlast::Store>> {
        lock(&self.store).take()
    }
}

fn limit(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    arguments::seconds("timeout", timeout)
}

/// Which of how many members of a store without a coordinator.
fn place(rank: &Bound<'_, PyAny>, world_size: &Bound<'_, PyAny>) -> PyResult<(u32, u32)> {
    let count = "a whole number of members, at least 1";
    let world_size = arguments::members("world_size", arguments::taken(world_size, "world_size", count)?)?;
    let wanted = format!("a whole number from 0 to {}, below world_size", world_size - 1);
    let number: i64 = arguments::taken(rank, "rank", &wanted)?;
    match u32::try_from(number) {
        Ok(rank) if rank < world_size => Ok((rank, world_size)),
        _ => Err(invalid(format!("rank={number}: give {wanted}"))),
    }
}

#[pymethods]
impl Store {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they come by position from a documented constructor")]
    fn new(
        py: Python<'_>,
        coordinator: Option<String>,
        run_id: Option<&str>,
        bootstrap: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>, String)>,
        secret: Option<&str>,
        timeout: Option<f64>,
        name: Option<String>,
        listen: Option<&str>,
        advertise: Option<&str>,
        preset: &str,
        direct: bool,
        shutdown_on_exit: bool,
        accept_secret: Option<&str>,
        tls: Option<arguments::TlsFiles>,
    ) -> PyResult<Self> {
        let visit = Visit::begin(py);
        let mut builder = match (&bootstrap, &coordinator) {
            (Some((rank, world_size, key)), Some(address)) => {
                let (rank, world_size) = place(rank, world_size)?;
                outlast::Store::bootstrap(address, rank, world_size, key)
            }
            _ => outlast::Store::builder(),
        };
        builder = builder.preset(arguments::preset(preset)?);
        if let (None, Some(address)) = (&bootstrap, coordinator) {
            builder = builder.coordinator(address);
        }
        if let Some(run) = run_id {
            builder = builder.run_id(arguments::run_id(run)?);
        }
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
        if let Some(address) = listen {
            builder = builder.listen(arguments::address(py, &visit, "listen", address)?);
        }
        if let Some(address) = advertise {
            builder = builder.advertise(arguments::address(py, &visit, "advertise", address)?);
        }
        if let Some(timeout) = limit(timeout)? {
            builder = builder.timeout(timeout);
        }
        let builder = builder.configure(|config| config.direct = direct).shutdown_on_exit(shutdown_on_exit);
        let store =
            manners::blocking(py, &visit, None, || builder.join())?.map_err(|error| of_store(py, &error))?;
        Ok(Self { store: Mutex::new(Some(Arc::new(store))), creator: Creator::this_process() })
    }

    fn set(&self, py: Python<'_>, key: &[u8], value: Vec<u8>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, |store| store.set(key, value))
    }

    fn get<'py>(&self, py: Python<'py>, key: &[u8], timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, timeout, |store| store.get(key)).map(|value| PyBytes::new(py, &value))
    }

    fn wait(&self, py: Python<'_>, keys: Vec<Vec<u8>>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, |store| store.wait(&keys))
    }

    fn check(&self, py: Python<'_>, keys: Vec<Vec<u8>>, timeout: Option<f64>) -> PyResult<bool> {
        self.call(py, timeout, |store| store.check(&keys))
    }

    fn add(
        &self,
        py: Python<'_>,
        key: &[u8],
        amount: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<i64> {
        let amount = arguments::taken(amount, "amount", "a whole number from -2**63 to 2**63 - 1")?;
        self.call(py, timeout, |store| store.add(key, amount))
    }

    fn compare_set<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        expected: Vec<u8>,
        desired: Vec<u8>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.call(py, timeout, |store| store.compare_set(key, expected, desired))?;
        Ok(PyBytes::new(py, &value))
    }

    fn append(&self, py: Python<'_>, key: &[u8], value: Vec<u8>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, |store| store.append(key, value))
    }

    fn delete_key(&self, py: Python<'_>, key: &[u8], timeout: Option<f64>) -> PyResult<bool> {
        self.call(py, timeout, |store| store.delete_key(key))
    }

    fn num_keys(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        self.call(py, timeout, |store| store.num_keys())
    }

    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Vec<u8>>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let values = self.call(py, timeout, |store| store.multi_get(&keys))?;
        Ok(values.iter().map(|value| PyBytes::new(py, value)).collect())
    }

    fn multi_set(
        &self,
        py: Python<'_>,
        keys: Vec<Vec<u8>>,
        values: Vec<Vec<u8>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.call(py, timeout, |store| store.multi_set(keys.into_iter().zip(values)))
    }

    fn queue_push(&self, py: Python<'_>, key: &[u8], value: Vec<u8>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, |store| store.queue_push(key, value))
    }

    /// Nothing if it does not wait and the queue is empty.
    fn queue_pop<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        block: bool,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let popped = self.call(py, timeout, |store| {
            if block { store.queue_pop(key).map(Some) } else { store.queue_try_pop(key) }
        })?;
        Ok(popped.map(|value| PyBytes::new(py, &value)))
    }

    fn queue_len(&self, py: Python<'_>, key: &[u8], timeout: Option<f64>) -> PyResult<u64> {
        self.call(py, timeout, |store| store.queue_len(key))
    }

    fn keys<'py>(
        &self,
        py: Python<'py>,
        prefix: &[u8],
        timeout: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let keys = self.call(py, timeout, |store| store.keys(prefix))?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
    }

    /// Epoch, and of every member rank, name and address; nothing while this member joins anew.
    #[expect(clippy::type_complexity, reason = "a plain tuple for the class above")]
    fn view(&self) -> PyResult<Option<(u64, Vec<(u32, String, String)>)>> {
        let view = self.open()?.view();
        let row = |member: &outlast_proto::wire::store::StoreMember| {
            (member.rank, member.name.clone(), member.address.to_string())
        };
        Ok(view.map(|view| (view.epoch, view.members.iter().map(row).collect())))
    }

    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.creator)?;
        let visit = Visit::begin(py);
        if let Some(store) = self.close() {
            let left = manners::parting(py, &visit, || {
                let left = store.leave();
                drop(store);
                left
            })?;
            left.map_err(|error| of_store(py, &error))?;
        }
        Ok(())
    }

    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let visit = Visit::begin(py);
        let store = self.open()?;
        manners::parting(py, &visit, || store.shutdown())?.map_err(|error| of_store(py, &error))
    }

    fn is_open(&self) -> PyResult<bool> {
        check_process(self.creator)?;
        Ok(lock(&self.store).is_some())
    }
}

impl Drop for Store {
    /// As in Rust: dropped without a word it ends the store for all. In a forked child it is left alone.
    fn drop(&mut self) {
        let store = self.close();
        if self.creator.check().is_err() {
            std::mem::forget(store);
            return;
        }
        if let Some(store) = store {
            // Whoever waits in a call of it must be able to come back meanwhile.
            Python::try_attach(|py| py.detach(|| drop(store)));
        }
    }
}
