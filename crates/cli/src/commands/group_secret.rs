//! Where the group's secret comes from, and how it reaches the others.
//!
//! A group is never without a secret. It comes from `--secret-file`, from the environment, or, for the first
//! member of a new group, from the operating system's random source; then it is written to a file that only
//! its user can read, and the announcement says where. Who joins an existing group must be given its secret:
//! a fresh one could not match, and the member would knock in vain forever.

use anyhow::Context as _;
use outlast::security::RunSecret;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The secret, and whether others have it already.
#[derive(Debug)]
pub(crate) struct GroupSecret {
    secret: RunSecret,
    fresh: bool,
}

/// How the secret reaches others.
#[derive(Debug)]
pub(crate) struct HandOver {
    file: Option<PathBuf>,
}

impl GroupSecret {
    pub(crate) fn find_or_generate(file: Option<&Path>, joins: bool) -> anyhow::Result<Self> {
        if let Some(path) = file {
            return Ok(Self { secret: RunSecret::from_file(path)?, fresh: false });
        }
        if let Some(secret) = RunSecret::from_environment()? {
            return Ok(Self { secret, fresh: false });
        }
        anyhow::ensure!(
            !joins,
            "joining a group needs its secret: set OUTLAST_SECRET or OUTLAST_SECRET_FILE, or give --secret-file \
             (the member that started the group printed where it wrote it)"
        );
        Ok(Self { secret: RunSecret::generate(), fresh: true })
    }

    pub(crate) fn secret(&self) -> &RunSecret {
        &self.secret
    }

    /// Whether it was made just now, so that nobody else has it.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Writes a fresh secret to a file of its own, named after its program and port, readable by this user only.
    pub(crate) fn hand_over(&self, program: &str, address: SocketAddr) -> anyhow::Result<HandOver> {
        if !self.fresh {
            return Ok(HandOver { file: None });
        }
        let path = private_directory()?.join(format!("{program}-{}.secret", address.port()));
        write_private(&path, &(self.secret.to_text() + "\n"))
            .with_context(|| format!("writing the group's secret to {}", path.display()))?;
        Ok(HandOver { file: Some(path) })
    }
}

impl HandOver {
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// What to tell a person.
    pub(crate) fn explanation(&self) -> String {
        match &self.file {
            Some(path) => format!(
                "new secret for this group in {} (only you can read it); on other machines give its text in \
                 OUTLAST_SECRET or copy the file",
                path.display()
            ),
            None => "others need the same secret as this process".to_owned(),
        }
    }
}

/// A directory that belongs to this user alone.
fn private_directory() -> anyhow::Result<PathBuf> {
    let path = match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(runtime) => PathBuf::from(runtime).join("outlast"),
        None => std::env::temp_dir().join(format!("outlast-{}", rustix::process::getuid().as_raw())),
    };
    let context = || format!("making the directory {} for the group's secret", path.display());
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(context);
        }
        _ => {}
    }
    // Somebody else may have made it first, in a directory where all may write: then it is not ours to use.
    let found = std::fs::symlink_metadata(&path).with_context(context)?;
    let ours =
        found.is_dir() && found.uid() == rustix::process::getuid().as_raw() && found.mode() & 0o777 == 0o700;
    anyhow::ensure!(
        ours,
        "{} is not a directory of your own with mode 700; remove it, or set OUTLAST_SECRET yourself \
         (`outlast secret new`)",
        path.display()
    );
    Ok(path)
}

/// Replaces what an earlier group on this port left behind. The mode is set before the first byte is written.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_written_for_this_user_only_and_replaces_an_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("group.secret");
        std::fs::write(&path, "old").unwrap();
        write_private(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }
}
