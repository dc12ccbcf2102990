//! The switch: one thread that holds every host's TUN device and carries the packets between them.
//!
//! A host's kernel believes it has an ordinary network card. What it sends comes out of a file descriptor
//! here; the pair's rule decides what becomes of it; what survives is written, at its time, into the
//! receiver's descriptor. The kernel's own emulation (netem) is not in every kernel; TUN is.
//!
//! The loop: take up a new plan, deliver what is due, sleep until the next packet or the next due time, read
//! a bounded batch from each device that has something. A packet is judged twice, when it sets out and when
//! it arrives, so that a cut also takes what was on the way.
//!
//! Invariant: a packet that sets out after a change has returned is judged by that change. The thread blocks
//! nowhere but in its one `ppoll`, and holds no lock while it reads or writes.

use crate::address;
use crate::counters::{LinkCounters, Reason, Tally};
use crate::error::LabError;
use crate::limits::CHANGE_DEADLINE;
use crate::link::{Link, Piece, through};
use crate::packet::{PACKET_BYTES_MAX, Packet, UDP};
use crate::plan::Plan;
use crate::schedule::Schedule;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Packets read from one device before the next one has its turn.
const BATCH: usize = 64;

/// The owner's end of a running switch. Dropping it stops the thread and closes every device.
#[derive(Debug)]
pub(crate) struct Switch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    taken_up: Condvar,
    /// The orders's version, readable without its lock.
    version: AtomicU64,
    stop: AtomicBool,
    wake: OwnedFd,
    hosts: usize,
    tallies: Vec<Tally>,
}

/// Where the owner leaves a plan and the switch notes which one it follows.
#[derive(Debug)]
struct Orders {
    plan: Arc<Plan>,
    version: u64,
    followed: u64,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // Every critical section leaves the orders whole, so a panic elsewhere does not spoil it. (The helper for that is in
        // `outlast::sync`; the lab knows nothing of Outlast.)
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self, from: usize, to: usize) -> &Tally {
        &self.tallies[from * self.hosts + to]
    }

    fn ring(&self) {
        // The only failure is a counter that is full, and then the switch is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Switch {
    /// Starts to carry packets between `devices`, one per host, which must be non-blocking.
    pub(crate) fn start(devices: Vec<OwnedFd>, plan: Plan, seed: u64) -> Result<Self, LabError> {
        let hosts = devices.len();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(LabError::errno("make an event descriptor"))?;
        let plan = Arc::new(plan);
        let shared = Arc::new(Shared {
            orders: Mutex::new(Orders { plan: Arc::clone(&plan), version: 0, followed: 0 }),
            taken_up: Condvar::new(),
            version: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            wake,
            hosts,
            tallies: (0..hosts * hosts).map(|_| Tally::default()).collect(),
        });
        let carrier = Carrier {
            shared: Arc::clone(&shared),
            devices,
            plan,
            followed: 0,
            links: (0..hosts * hosts).map(|i| Link::new(seed, i / hosts, i % hosts)).collect(),
            uplinks: Vec::new(),
            seed,
            schedule: Schedule::default(),
            pieces: Vec::new(),
            origin: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("lab-switch".to_owned())
            .spawn(move || carrier.run())
            .map_err(LabError::system("start the switch's thread"))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Edits the plan, and returns once the switch follows it.
    pub(crate) fn change(&self, edit: impl FnOnce(&mut Plan)) -> Result<(), LabError> {
        let mut orders = self.shared.orders();
        let mut plan = Plan::clone(&orders.plan);
        edit(&mut plan);
        orders.plan = Arc::new(plan);
        orders.version += 1;
        let version = orders.version;
        self.shared.version.store(version, Ordering::Release);
        self.shared.ring();
        let (orders, waited) = self
            .shared
            .taken_up
            .wait_timeout_while(orders, CHANGE_DEADLINE, |orders| orders.followed < version)
            .unwrap_or_else(PoisonError::into_inner);
        drop(orders);
        if waited.timed_out() {
            let what = "the switch's taking up of a change".to_owned();
            return Err(LabError::Timeout { what, seconds: CHANGE_DEADLINE.as_secs() });
        }
        Ok(())
    }

    /// The plan that was handed over last.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.shared.orders().plan)
    }

    pub(crate) fn counters(&self, from: usize, to: usize) -> LinkCounters {
        self.shared.tally(from, to).read()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened; there is nothing to add to it here.
            let _ = thread.join();
        }
    }
}

/// The thread's own side.
struct Carrier {
    shared: Arc<Shared>,
    devices: Vec<OwnedFd>,
    plan: Arc<Plan>,
    followed: u64,
    links: Vec<Link>,
    /// Each site's way out and way in, as they come to be used.
    uplinks: Vec<[Link; 2]>,
    seed: u64,
    schedule: Schedule,
    /// Scratch space, empty between packets.
    pieces: Vec<Piece>,
    origin: Instant,
}

impl Carrier {
    fn run(mut self) {
        // The kernel may round a sleep up by 50 us to wake fewer times; a link of 100 us would notice.
        // A refusal only costs precision.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut buffer = vec![0u8; PACKET_BYTES_MAX];
        let mut ready: Vec<usize> = Vec::with_capacity(self.devices.len());
        while !self.shared.stop.load(Ordering::Acquire) {
            self.take_up_plan();
            self.deliver_due();
            if !self.wait(&mut ready) {
                return;
            }
            for host in ready.drain(..) {
                self.read_batch(host, &mut buffer);
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn take_up_plan(&mut self) {
        if self.shared.version.load(Ordering::Acquire) == self.followed {
            return;
        }
        let mut orders = self.shared.orders();
        self.plan = Arc::clone(&orders.plan);
        self.followed = orders.version;
        orders.followed = orders.version;
        drop(orders);
        self.shared.taken_up.notify_all();
    }

    /// Sleeps until a device has packets, a packet is due, or the owner rings. False if the machine refuses.
    fn wait(&self, ready: &mut Vec<usize>) -> bool {
        let timeout = self.schedule.next_due().map(|due| {
            let rest = due.saturating_sub(self.now());
            Timespec { tv_sec: rest.as_secs().cast_signed(), tv_nsec: rest.subsec_nanos().into() }
        });
        let mut polled: Vec<PollFd<'_>> =
            self.devices.iter().map(|device| PollFd::new(device, PollFlags::IN)).collect();
        polled.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                eprintln!("outlast lab: the switch stops, poll failed: {error}");
                return false;
            }
        }
        if polled.pop().is_some_and(|wake| !wake.revents().is_empty()) {
            let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8][..]);
        }
        ready.extend(
            polled.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(host, _)| host),
        );
        true
    }

    fn read_batch(&mut self, host: usize, buffer: &mut [u8]) {
        for _ in 0..BATCH {
            let Ok(length) = rustix::io::read(&self.devices[host], &mut *buffer) else { return };
            if let Some(packet) = Packet::parse(&buffer[..length]) {
                self.carry(host, &packet);
            }
        }
    }

    /// A packet sets out. What is not IPv4 to another host of the lab (IPv6 neighbour discovery, multicast)
    /// has nowhere to go, and neither has a packet with a forged source.
    fn carry(&mut self, from: usize, packet: &Packet<'_>) {
        let hosts = self.devices.len();
        let Some(to) = address::index(packet.destination(), hosts).filter(|to| *to != from) else { return };
        if packet.source() != address::of(from) {
            return;
        }
        let burst = packet.burst();
        let cuts = self.plan.pair(from, to).cuts;
        if let Some(reason) = self.stopped(from, to, cuts, packet.protocol()) {
            self.shared.tally(from, to).drop(reason, burst.count as u64);
            return;
        }
        let now = self.now();
        let mut pieces = std::mem::take(&mut self.pieces);
        let rule = self.plan.pair(from, to).rule;
        let [out, into] = self.plan.uplinks(from, to);
        for (site, _) in out.iter().chain(&into) {
            while self.uplinks.len() <= *site {
                let number = hosts + self.uplinks.len();
                self.uplinks.push([Link::new(self.seed, number, hosts), Link::new(self.seed, hosts, number)]);
            }
        }
        let own = &mut self.links[from * hosts + to];
        let dropped = match (out, into) {
            (None, None) => through([(own, rule)], now, burst, &mut pieces),
            (Some((site, uplink)), None) => {
                through([(&mut self.uplinks[site][0], uplink), (own, rule)], now, burst, &mut pieces)
            }
            (None, Some((site, uplink))) => {
                through([(own, rule), (&mut self.uplinks[site][1], uplink)], now, burst, &mut pieces)
            }
            (Some((one, first)), Some((other, last))) => {
                let [sender, receiver] = self
                    .uplinks
                    .get_disjoint_mut([one, other])
                    .unwrap_or_else(|_| unreachable!("two sites have two uplinks"));
                let lines = [(&mut sender[0], first), (own, rule), (&mut receiver[1], last)];
                through(lines, now, burst, &mut pieces)
            }
        };
        let tally = self.shared.tally(from, to);
        if dropped.lost > 0 {
            tally.drop(Reason::Lost, dropped.lost);
        }
        if dropped.overflowed > 0 {
            tally.drop(Reason::Overflowed, dropped.overflowed);
        }
        for piece in pieces.drain(..) {
            // The short way round the schedule, unless something in it is due before this packet.
            let free = self.schedule.next_due().is_none_or(|due| due > now);
            if free && piece.due <= now && piece.count == burst.count {
                self.deliver(from, to, cuts, packet);
                continue;
            }
            if !self.schedule.has_room(packet.bytes().len()) {
                self.shared.tally(from, to).drop(Reason::Overflowed, piece.count as u64);
                continue;
            }
            let bytes = packet.slice(piece.first, piece.count);
            self.schedule.push(piece.due, from, to, cuts, bytes);
        }
        self.pieces = pieces;
    }

    fn deliver_due(&mut self) {
        let now = self.now();
        while let Some(packet) = self.schedule.pop_due(now) {
            if let Some(parsed) = Packet::parse(&packet.bytes) {
                self.deliver(packet.from, packet.to, packet.cuts, &parsed);
            }
        }
    }

    /// A packet arrives: at the receiver's firewall, and behind it at the receiver.
    fn deliver(&mut self, from: usize, to: usize, cuts: u32, packet: &Packet<'_>) {
        let burst = packet.burst();
        let frames = burst.count as u64;
        if let Some(reason) = self.stopped(from, to, cuts, packet.protocol()) {
            self.shared.tally(from, to).drop(reason, frames);
            return;
        }
        if let Some(refusal) = self.plan.firewall(to).refusal.filter(|refusal| refusal.stops(packet)) {
            self.shared.tally(from, to).drop(Reason::Refused, frames);
            // The answer travels back by the other direction's rule. It is a reset or ICMP, neither of which
            // is ever answered, so this goes one level deep.
            if let Some(reply) = refusal.reply(packet)
                && let Some(reply) = Packet::parse(&reply)
            {
                self.carry(to, &reply);
            }
            return;
        }
        // A device refuses a packet only while it is being taken down.
        if rustix::io::write(&self.devices[to], packet.bytes()).is_ok() {
            let bytes = burst.full_bytes * (frames - 1) + burst.last_bytes;
            self.shared.tally(from, to).deliver(frames, bytes);
        }
    }

    /// Whether something stops packets of this protocol between these two now, silently.
    fn stopped(&self, from: usize, to: usize, cuts: u32, protocol: u8) -> Option<Reason> {
        let pair = self.plan.pair(from, to);
        let (sender, receiver) = (self.plan.firewall(from), self.plan.firewall(to));
        if pair.is_cut() || pair.cuts != cuts || sender.halted || receiver.halted {
            Some(Reason::Cut)
        } else if protocol == UDP && (sender.udp_blocked || receiver.udp_blocked) {
            Some(Reason::UdpBlocked)
        } else {
            None
        }
    }
}
