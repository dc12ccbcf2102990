//! How many calls wait in a store, as its coordinator is told.

use outlast::Coordinator;
use outlast::coordinator::ask_status;
use std::time::{Duration, Instant};

/// Waits until so many calls wait for keys.
pub(crate) fn until_waiting(coordinator: &Coordinator, count: u64, patience: Duration) {
    let (run, deadline) = ("default".parse().expect("a run id"), Instant::now() + patience);
    let address = coordinator.address().to_string();
    loop {
        let status = ask_status(&address, coordinator.secret(), &run, patience).expect("a status");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let there = status["store"]["members"].as_array().into_iter().flatten();
        if there.filter_map(|member| member["waits"].as_u64()).sum::<u64>() == count {
            return;
        }
        assert!(Instant::now() < deadline, "{count} calls were to wait: {}", status["store"]);
        std::thread::sleep(Duration::from_millis(5));
    }
}
