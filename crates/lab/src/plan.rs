//! What the lab wants the switch to do right now: one value that is replaced as a whole.
//!
//! The owner edits a copy and hands it over; the switch takes it up between two packets and says so. After a
//! change has returned, no packet is judged by the plan before it.

use crate::refusal::Refusal;
use crate::rule::Rule;

/// Every rule, cut and firewall of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    hosts: usize,
    pairs: Vec<Pair>,
    firewalls: Vec<Firewall>,
    /// The site that each host is in, if any.
    sites: Vec<Option<usize>>,
    /// What each site's uplink does to what leaves it, and to what comes in.
    uplinks: Vec<Rule>,
}

/// One direction between two hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) rule: Rule,
    /// Counts the cuts and the heals; odd while the link is cut. A packet remembers the count under which it
    /// set out, and one that has seen a cut never arrives, however soon the link was healed.
    pub(crate) cuts: u32,
}

impl Pair {
    pub(crate) fn is_cut(self) -> bool {
        self.cuts % 2 == 1
    }
}

/// What one host's own edge does, whoever the other side is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Firewall {
    pub(crate) udp_blocked: bool,
    pub(crate) refusal: Option<Refusal>,
    /// The whole host stands still: its kernel neither receives nor sends.
    pub(crate) halted: bool,
}

impl Plan {
    pub(crate) fn new(hosts: usize, rule: Rule) -> Self {
        Self {
            hosts,
            pairs: vec![Pair { rule, cuts: 0 }; hosts * hosts],
            firewalls: vec![Firewall::default(); hosts],
            sites: vec![None; hosts],
            uplinks: Vec::new(),
        }
    }

    pub(crate) fn hosts(&self) -> usize {
        self.hosts
    }

    pub(crate) fn pair(&self, from: usize, to: usize) -> &Pair {
        &self.pairs[from * self.hosts + to]
    }

    pub(crate) fn pair_mut(&mut self, from: usize, to: usize) -> &mut Pair {
        &mut self.pairs[from * self.hosts + to]
    }

    /// Cuts or heals one direction; a second cut of the same direction changes nothing.
    pub(crate) fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        let pair = self.pair_mut(from, to);
        if pair.is_cut() != cut {
            pair.cuts = pair.cuts.wrapping_add(1);
        }
    }

    /// Puts hosts behind an uplink that they share. Whoever was behind another one leaves it.
    pub(crate) fn add_site(&mut self, hosts: &[usize], uplink: Rule) {
        let site = self.uplinks.len();
        self.uplinks.push(uplink);
        hosts.iter().for_each(|host| self.sites[*host] = Some(site));
    }

    /// The hosts of each site, and what its uplink does.
    pub(crate) fn sites(&self) -> impl Iterator<Item = (impl Iterator<Item = usize>, Rule)> {
        let hosts = move |site| (0..self.hosts).filter(move |host| self.sites[*host] == Some(site));
        self.uplinks.iter().enumerate().map(move |(site, rule)| (hosts(site), *rule))
    }

    /// The uplinks on the way between two hosts, and what each does: the sender's, and the receiver's. None of them where
    /// both are in one site, or neither is in any.
    pub(crate) fn uplinks(&self, from: usize, to: usize) -> [Option<(usize, Rule)>; 2] {
        if self.sites[from] == self.sites[to] {
            return [None, None];
        }
        [from, to].map(|host| self.sites[host].map(|site| (site, self.uplinks[site])))
    }

    pub(crate) fn firewall(&self, host: usize) -> &Firewall {
        &self.firewalls[host]
    }

    pub(crate) fn firewall_mut(&mut self, host: usize) -> &mut Firewall {
        &mut self.firewalls[host]
    }
}
