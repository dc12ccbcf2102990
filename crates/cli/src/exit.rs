//! How the program ended, as a number that can be read back.
//!
//! The standard library's type of this name can only be returned from `main`. The Python package's command has
//! no such `main`: it hands the number to its interpreter.

/// The number that a process exits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// All is well.
    pub const SUCCESS: Self = Self(0);
    /// Something failed.
    pub const FAILURE: Self = Self(1);

    /// The number.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl From<u8> for ExitCode {
    fn from(number: u8) -> Self {
        Self(number)
    }
}

impl std::process::Termination for ExitCode {
    fn report(self) -> std::process::ExitCode {
        self.0.into()
    }
}
