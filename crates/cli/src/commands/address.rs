//! Addresses as people write them: `127.0.0.1:7000`, `[::1]:7000`, `localhost:7000`.

use outlast::coordinator::check_addresses;
use std::net::{SocketAddr, ToSocketAddrs as _};

/// An address to listen on or to advertise. A name is looked up; the first address that it has counts, one of IPv4 if
/// there is such, because that is what `0.0.0.0` means to the others.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let found: Vec<_> = text
        .to_socket_addrs()
        .map_err(|error| format!("write host:port, as in localhost:7000 or 0.0.0.0:0 ({error})"))?
        .collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| "the name has no address".to_owned())
}

/// The variable that names the coordinator.
const COORDINATOR: &str = "OUTLAST_COORDINATOR";

/// Where coordinators are to be reached, as the user typed it or as the variable says. Whether they are there is found out
/// later; what cannot be an address is refused at once.
pub(crate) fn coordinators(text: &str) -> Result<String, String> {
    let from_environment = std::env::var(COORDINATOR).is_ok_and(|value| value == text);
    // Set to nothing says nothing.
    if from_environment && text.is_empty() {
        return Ok(format!("127.0.0.1:{}", outlast::coordinator::DEFAULT_PORT));
    }
    let remedy = if from_environment {
        format!("; it comes from the variable {COORDINATOR}: correct it, or unset it")
    } else {
        String::new()
    };
    check_addresses(text).map(|()| text.to_owned()).map_err(|error| format!("{error}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_addresses() {
        assert_eq!(address("127.0.0.1:7000"), Ok("127.0.0.1:7000".parse().unwrap()));
        assert_eq!(address("localhost:7000"), Ok("127.0.0.1:7000".parse().unwrap()));
        assert_eq!(address("[::1]:7"), Ok("[::1]:7".parse().unwrap()));
        for odd in ["localhost", "7000", "localhost:http:7", "localhost:70000"] {
            let error = address(odd).unwrap_err();
            assert!(error.starts_with("write host:port, as in localhost:7000"), "{odd}: {error}");
        }
    }
}
