//! `--run-id`, and the variable behind it.

use outlast::membership::{RunId, RunIdError};
use outlast::settings;

/// What the user typed, or what `OUTLAST_RUN_ID` says. Whoever typed nothing is told where the value came from.
pub(super) fn run_id(text: &str) -> Result<RunId, String> {
    let from_environment = std::env::var(settings::RUN_ID).is_ok_and(|value| value == text);
    // Set to nothing says nothing.
    let text = if from_environment && text.is_empty() { "default" } else { text };
    text.parse().map_err(|error: RunIdError| {
        let remedy = if from_environment {
            format!("; it comes from the variable {}: correct it, or unset it", settings::RUN_ID)
        } else {
            String::new()
        };
        format!("{error}{remedy}")
    })
}
