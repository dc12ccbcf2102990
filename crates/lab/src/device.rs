//! The network card of a host: a TUN device, made and configured from inside the host's namespace.
//!
//! Everything goes through the kernel's own calls, so no program needs to be installed. The descriptor that
//! comes back keeps working from any thread and any namespace; when it is closed, the device is gone.

use crate::address;
use crate::error::LabError;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType, socket};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// The card's name inside each host.
pub(crate) const NAME: &str = "eth0";

/// Packets that wait in the kernel for the switch. A burst counts as one.
const KERNEL_QUEUE: libc::c_int = 2_000;

/// Takes bursts of TCP over IPv4 and packets whose checksum is still open, so that the switch moves 64 KiB
/// with one call and never sums a payload (the kernel's `TUN_F_CSUM` and `TUN_F_TSO4`).
const OFFLOADS: libc::c_ulong = 0x01 | 0x02;

/// Makes the calling thread's namespace a host: loopback and a card with `address`. Returns the card's other
/// end. The thread must have left the machine's own network namespace.
pub(crate) fn create(address: Ipv4Addr, mtu: u32) -> Result<OwnedFd, LabError> {
    let device =
        rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
            .map_err(|errno| match errno {
                rustix::io::Errno::NOENT | rustix::io::Errno::NODEV => LabError::NoTun,
                other => LabError::System { action: "open /dev/net/tun".to_owned(), cause: other.into() },
            })?;
    let mut request = Request::new(NAME);
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.0.ifr_ifru.ifru_flags = flags as libc::c_short;
    request.send(&device, libc::TUNSETIFF as libc::Ioctl, "make a TUN device")?;
    // SAFETY: TUNSETOFFLOAD takes a number, not a pointer, and the descriptor is open.
    let offloaded = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETOFFLOAD as libc::Ioctl, OFFLOADS) };
    if offloaded < 0 {
        return Err(LabError::system("switch on the TUN device's offloads")(io::Error::last_os_error()));
    }

    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(LabError::errno("open a socket to configure the host's card"))?;
    let set = |name: &str, call, action: &str, fill: &dyn Fn(&mut libc::ifreq)| {
        let mut request = Request::new(name);
        fill(&mut request.0);
        request.send(&socket, call, action)
    };
    let mask = Ipv4Addr::from_bits(u32::MAX << (32 - address::PREFIX));
    set(NAME, libc::SIOCSIFADDR as libc::Ioctl, "set the host's address", &|request| {
        request.ifr_ifru.ifru_addr = socket_address(address);
    })?;
    set(NAME, libc::SIOCSIFNETMASK as libc::Ioctl, "set the host's netmask", &|request| {
        request.ifr_ifru.ifru_netmask = socket_address(mask);
    })?;
    set(NAME, libc::SIOCSIFMTU as libc::Ioctl, "set the card's packet size", &|request| {
        request.ifr_ifru.ifru_mtu = mtu.cast_signed();
    })?;
    set(NAME, libc::SIOCSIFTXQLEN as libc::Ioctl, "set the card's queue", &|request| {
        request.ifr_ifru.ifru_metric = KERNEL_QUEUE;
    })?;
    for name in ["lo", NAME] {
        set(name, libc::SIOCSIFFLAGS as libc::Ioctl, "switch the card on", &|request| {
            request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        })?;
    }
    Ok(device)
}

/// The kernel's structure for questions about one network card.
struct Request(libc::ifreq);

impl Request {
    fn new(name: &str) -> Self {
        // SAFETY: `ifreq` is plain data for which all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays zero: the kernel reads a C string.
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
            *to = from.cast_signed();
        }
        Self(request)
    }

    fn send(&mut self, fd: &OwnedFd, call: libc::Ioctl, action: &str) -> Result<(), LabError> {
        // SAFETY: every call in this file takes a pointer to an `ifreq`, which lives until the call returns.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), call, &raw mut self.0) };
        if result < 0 {
            return Err(LabError::system(action)(io::Error::last_os_error()));
        }
        Ok(())
    }
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: `sockaddr` is plain data for which all zeros is a valid value.
    let mut bytes: libc::sockaddr = unsafe { std::mem::zeroed() };
    bytes.sa_family = libc::AF_INET as libc::sa_family_t;
    // After the family come the port (two bytes) and the address (four), as in `sockaddr_in`.
    for (to, from) in bytes.sa_data[2..6].iter_mut().zip(address.octets()) {
        *to = from.cast_signed();
    }
    bytes
}
