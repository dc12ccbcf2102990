//! What plain TCP carries around the ring: one stream from each member to the next, all at once.
//!
//! A ring of all-reduces is as fast as its slowest link while every member sends and receives at full speed. So
//! that is what is measured here, with nothing in it but a loop around `read` and one around `write`. The figure
//! is the slowest stream's.

use anyhow::{Context as _, bail};
use outlast::Communicator;
use outlast::communicator::{Call, ReduceOp};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long streams run..
const SECONDS: Duration = Duration::from_secs(4);
/// ..and how much of that is not counted: TCP starts slowly.
const WARM_UP: Duration = Duration::from_secs(1);
const CHUNK: usize = 256 << 10;
/// A stream on which nothing moves for so long has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bits per second of the slowest stream. Every member must call it.
pub(super) fn around_the_ring(comm: &Communicator, here: IpAddr) -> anyhow::Result<f64> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let IpAddr::V4(address) = here else { bail!("a lab speaks IPv4, not {here}") };
    let listener = TcpListener::bind((here, 0)).context("cannot listen for a plain stream")?;
    let mut places = vec![0_i64; 2 * world];
    places[2 * rank] = i64::from(address.to_bits());
    places[2 * rank + 1] = i64::from(listener.local_addr()?.port());
    comm.all_reduce(&mut places, &Call::sum())?;
    let next = (rank + 1) % world;
    let address = u32::try_from(places[2 * next]).context("a member told no address")?;
    let port = u16::try_from(places[2 * next + 1]).context("a member told no port")?;
    let to = SocketAddr::from((address.to_be_bytes(), port));
    let mut outgoing = TcpStream::connect_timeout(&to, PATIENCE).context("cannot open a plain stream")?;
    let (mut incoming, _) = listener.accept()?;
    outgoing.set_write_timeout(Some(PATIENCE))?;
    incoming.set_read_timeout(Some(PATIENCE))?;
    comm.barrier(&Call::sum())?;
    let began = Instant::now();
    let (bytes, seconds) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || -> std::io::Result<()> {
            let chunk = vec![0; CHUNK];
            while began.elapsed() < SECONDS {
                outgoing.write_all(&chunk)?;
            }
            Ok(())
        });
        let counted = count(&mut incoming, began);
        writer.join().map_err(|_| anyhow::anyhow!("a plain stream's writer panicked"))??;
        counted
    })?;
    let mut rate = [bytes as f64 * 8.0 / seconds];
    comm.all_reduce(&mut rate, &Call::new(ReduceOp::Min))?;
    Ok(rate[0])
}

/// Reads until the other end is done; what came between the warm-up and the end, and how long that took.
fn count(incoming: &mut TcpStream, began: Instant) -> anyhow::Result<(u64, f64)> {
    let mut buffer = vec![0; CHUNK];
    let (mut bytes, mut since, mut until) = (0, None, began);
    loop {
        let length = incoming.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        let now = Instant::now();
        match since {
            None if now.duration_since(began) >= WARM_UP => since = Some(now),
            Some(_) if now.duration_since(began) < SECONDS => {
                bytes += length as u64;
                until = now;
            }
            _ => {}
        }
    }
    let since = since.context("a plain stream carried nothing")?;
    Ok((bytes, until.duration_since(since).as_secs_f64().max(1e-6)))
}
