//! A lab: hosts, the switch between them, and the right to change both.

use crate::address;
use crate::counters::LinkCounters;
use crate::device;
use crate::error::LabError;
use crate::host::{self, Host};
use crate::limits;
use crate::namespace;
use crate::plan::Plan;
use crate::refusal::Refusal;
use crate::registry::{self, Card, HostCard, Ownership};
use crate::rule::{Change, Rule};
use crate::switch::Switch;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a lab is to look like.
#[derive(Clone, Debug)]
pub struct LabBuilder {
    label: String,
    exact: bool,
    served: bool,
    hosts: Vec<String>,
    rule: Rule,
    mtu: u32,
    seed: u64,
}

impl LabBuilder {
    /// The hosts' names.
    #[must_use]
    pub fn hosts<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.hosts = names.into_iter().map(Into::into).collect();
        self
    }

    /// The rule of every link at the start. The default is a perfect link.
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// The largest packet on every link, 1500 by default.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu, ..self }
    }

    /// The seed of the dice. The same seed loses the same frames of a link, counted from its first one.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Takes the label as the lab's name, instead of making it unique.
    #[must_use]
    pub fn exact_name(self) -> Self {
        Self { exact: true, ..self }
    }

    /// Marks the lab as one that will take commands.
    pub(crate) fn served(self) -> Self {
        Self { served: true, ..self }
    }

    /// Brings the lab up. Leftovers of labs whose owner was killed are removed first.
    pub fn start(self) -> Result<Lab, LabError> {
        registry::require_root()?;
        self.check()?;
        let name = if self.exact { self.label.clone() } else { unique(&self.label) };
        let ownership = registry::claim(&name)?;
        // From here on a failure must take down what is already there, so the owner exists before the hosts.
        let mut lab =
            Lab { name, mtu: self.mtu, hosts: Vec::new(), switch: None, ownership: Some(ownership) };
        lab.furnish(&self)?;
        Ok(lab)
    }

    fn check(&self) -> Result<(), LabError> {
        check_name("lab", &self.label, limits::LAB_NAME_BYTES_MAX)?;
        if self.hosts.is_empty() || self.hosts.len() > limits::HOSTS_MAX {
            return Err(LabError::HostCount { given: self.hosts.len(), max: limits::HOSTS_MAX });
        }
        for (index, host) in self.hosts.iter().enumerate() {
            check_name("host", host, limits::HOST_NAME_BYTES_MAX)?;
            if self.hosts[..index].contains(host) {
                return Err(LabError::HostTwice { host: host.clone() });
            }
        }
        if !(limits::MTU_MIN..=limits::MTU_MAX).contains(&self.mtu) {
            let remedy = "a packet has 576 to 65000 bytes";
            return Err(LabError::OutOfRange { what: "mtu", given: self.mtu.to_string(), remedy });
        }
        self.rule.check()
    }
}

/// A lab that is up. Dropping it ends every process in its hosts and removes everything it made.
#[derive(Debug)]
pub struct Lab {
    name: String,
    mtu: u32,
    hosts: Vec<Host>,
    /// Present from the end of `start` until the lab goes down.
    switch: Option<Switch>,
    ownership: Option<Ownership>,
}

impl Lab {
    /// A lab to be, whose name starts with `label`. Labs of concurrent tests never collide: the name is made
    /// unique, and so are its namespaces; addresses repeat, but no two labs are connected.
    #[must_use]
    pub fn builder(label: impl Into<String>) -> LabBuilder {
        LabBuilder {
            label: label.into(),
            exact: false,
            served: false,
            hosts: Vec::new(),
            rule: Rule::perfect(),
            mtu: 1_500,
            seed: 1,
        }
    }

    /// A lab with these hosts and perfect links.
    pub fn new<S: Into<String>>(
        label: impl Into<String>,
        hosts: impl IntoIterator<Item = S>,
    ) -> Result<Self, LabError> {
        Self::builder(label).hosts(hosts).start()
    }

    fn furnish(&mut self, plan: &LabBuilder) -> Result<(), LabError> {
        let hosts: Vec<HostCard> = plan
            .hosts
            .iter()
            .enumerate()
            .map(|(index, name)| HostCard { name: name.clone(), address: address::of(index) })
            .collect();
        let card = Card {
            name: self.name.clone(),
            pid: std::process::id(),
            mtu: plan.mtu,
            served: plan.served,
            hosts: hosts.clone(),
        };
        if let Some(ownership) = &self.ownership {
            ownership.publish(&card)?;
        }
        host::write_names(&self.name, &hosts)?;
        let mut devices = Vec::with_capacity(hosts.len());
        for card in &hosts {
            let furnish = || device::create(card.address, plan.mtu);
            devices.push(namespace::create(&self.name, &card.name, furnish)?);
            self.hosts.push(Host::attach(&self.name, card)?);
        }
        self.switch = Some(Switch::start(devices, Plan::new(hosts.len(), plan.rule), plan.seed)?);
        Ok(())
    }

    /// The lab's name, which is part of its namespaces' names: `olab-<lab>.<host>`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The largest packet on every link.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// All hosts, in the order in which they were named.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host named `name`.
    pub fn host(&self, name: &str) -> Result<&Host, LabError> {
        self.index(name).map(|index| &self.hosts[index])
    }

    /// The rule from one host to another.
    pub fn rule(&self, from: &str, to: &str) -> Result<Rule, LabError> {
        let (from, to) = self.pair(from, to)?;
        Ok(self.switch().plan().pair(from, to).rule)
    }

    /// Sets the rule from one host to another, one way.
    pub fn set(&self, from: &str, to: &str, rule: Rule) -> Result<(), LabError> {
        rule.check()?;
        let (from, to) = self.pair(from, to)?;
        self.switch().change(|plan| plan.pair_mut(from, to).rule = rule)
    }

    /// Sets the rule between two hosts, both ways.
    pub fn set_both(&self, one: &str, other: &str, rule: Rule) -> Result<(), LabError> {
        self.set(one, other, rule)?;
        self.set(other, one, rule)
    }

    /// Sets the rule of every link.
    pub fn set_all(&self, rule: Rule) -> Result<(), LabError> {
        rule.check()?;
        let pairs = self.pairs(None, None, false)?;
        self.switch().change(|plan| pairs.iter().for_each(|&(from, to)| plan.pair_mut(from, to).rule = rule))
    }

    /// Puts hosts behind an uplink that they share: what goes between them and all others passes it, each way by that
    /// rule, besides the rule of its own link. What goes between the hosts themselves does not.
    pub fn uplink<S: AsRef<str>>(
        &self,
        hosts: impl IntoIterator<Item = S>,
        rule: Rule,
    ) -> Result<(), LabError> {
        rule.check()?;
        let hosts: Vec<_> =
            hosts.into_iter().map(|host| self.index(host.as_ref())).collect::<Result<_, _>>()?;
        self.switch().change(|plan| plan.add_site(&hosts, rule))
    }

    /// Changes part of the rule of every link that `from` and `to` name; none stands for all hosts.
    pub fn change(
        &self,
        from: Option<&str>,
        to: Option<&str>,
        both: bool,
        change: &Change,
    ) -> Result<(), LabError> {
        let pairs = self.pairs(from, to, both)?;
        let plan = self.switch().plan();
        pairs.iter().try_for_each(|&(from, to)| plan.pair(from, to).rule.changed(change).check())?;
        self.switch().change(|plan| {
            for &(from, to) in &pairs {
                let pair = plan.pair_mut(from, to);
                pair.rule = pair.rule.changed(change);
            }
        })
    }

    /// Cuts the way from one host to another; the way back stays. What is on the way is lost too.
    pub fn cut(&self, from: &str, to: &str) -> Result<(), LabError> {
        self.set_cuts(Some(from), Some(to), false, true)
    }

    /// Cuts both ways between two hosts.
    pub fn cut_both(&self, one: &str, other: &str) -> Result<(), LabError> {
        self.set_cuts(Some(one), Some(other), true, true)
    }

    /// Cuts a host off from everybody.
    pub fn isolate(&self, host: &str) -> Result<(), LabError> {
        self.set_cuts(Some(host), None, true, true)
    }

    /// Heals the way from one host to another. What set out before is not delivered any more.
    pub fn heal(&self, from: &str, to: &str) -> Result<(), LabError> {
        self.set_cuts(Some(from), Some(to), false, false)
    }

    /// Heals both ways between two hosts.
    pub fn heal_both(&self, one: &str, other: &str) -> Result<(), LabError> {
        self.set_cuts(Some(one), Some(other), true, false)
    }

    /// Heals every way to and from a host.
    pub fn reconnect(&self, host: &str) -> Result<(), LabError> {
        self.set_cuts(Some(host), None, true, false)
    }

    /// Heals every cut.
    pub fn heal_all(&self) -> Result<(), LabError> {
        self.set_cuts(None, None, true, false)
    }

    /// Cuts or heals every way that `from` and `to` name; none stands for all hosts.
    pub fn set_cuts(
        &self,
        from: Option<&str>,
        to: Option<&str>,
        both: bool,
        cut: bool,
    ) -> Result<(), LabError> {
        let pairs = self.pairs(from, to, both)?;
        self.switch().change(|plan| pairs.iter().for_each(|&(from, to)| plan.set_cut(from, to, cut)))
    }

    /// Drops all UDP to and from a host, silently, or lets it pass again. TCP is not touched.
    pub fn block_udp(&self, host: &str, blocked: bool) -> Result<(), LabError> {
        let host = self.index(host)?;
        self.switch().change(|plan| plan.firewall_mut(host).udp_blocked = blocked)
    }

    /// Makes a host's firewall refuse what arrives, aloud, or (with none) accept it again.
    pub fn reject(&self, host: &str, refusal: Option<Refusal>) -> Result<(), LabError> {
        let host = self.index(host)?;
        self.switch().change(|plan| plan.firewall_mut(host).refusal = refusal)
    }

    /// Stops a host's processes; see [`Host::freeze`].
    pub fn freeze(&self, host: &str) -> Result<usize, LabError> {
        self.host(host)?.freeze()
    }

    /// Stops a whole host: its processes stand still and its kernel neither hears nor answers, as when a
    /// virtual machine is paused. What is sent to it meanwhile is lost.
    pub fn halt(&self, host: &str) -> Result<usize, LabError> {
        let index = self.index(host)?;
        self.switch().change(|plan| plan.firewall_mut(index).halted = true)?;
        self.hosts[index].freeze()
    }

    /// Ends [`Lab::freeze`] and [`Lab::halt`].
    pub fn thaw(&self, host: &str) -> Result<usize, LabError> {
        let index = self.index(host)?;
        self.switch().change(|plan| plan.firewall_mut(index).halted = false)?;
        Ok(self.hosts[index].thaw())
    }

    /// What happened to frames from one host to another since the lab came up.
    pub fn counters(&self, from: &str, to: &str) -> Result<LinkCounters, LabError> {
        let (from, to) = self.pair(from, to)?;
        Ok(self.switch().counters(from, to))
    }

    /// Takes the lab down, and says so if something could not be removed.
    pub fn close(mut self) -> Result<(), LabError> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), LabError> {
        // Processes first: a host without a card would make them fail in ways that no test means.
        let dissolved = self.ownership.take().map_or(Ok(()), Ownership::dissolve);
        self.switch = None;
        self.hosts.clear();
        dissolved
    }

    pub(crate) fn switch(&self) -> &Switch {
        // `start` hands out no lab without a switch, and only taking it down removes it.
        self.switch.as_ref().unwrap_or_else(|| unreachable!("a lab that is up has a switch"))
    }

    fn index(&self, name: &str) -> Result<usize, LabError> {
        self.hosts.iter().position(|host| host.name() == name).ok_or_else(|| LabError::NoHost {
            host: name.to_owned(),
            hosts: self.hosts.iter().map(|host| host.name().to_owned()).collect(),
        })
    }

    fn pair(&self, from: &str, to: &str) -> Result<(usize, usize), LabError> {
        if from == to {
            return Err(LabError::SameHost { host: from.to_owned() });
        }
        Ok((self.index(from)?, self.index(to)?))
    }

    /// Every ordered pair that `from` and `to` name, and with `both` the ways back.
    fn pairs(
        &self,
        from: Option<&str>,
        to: Option<&str>,
        both: bool,
    ) -> Result<Vec<(usize, usize)>, LabError> {
        if let (Some(from), Some(to)) = (from, to) {
            self.pair(from, to)?;
        }
        let (from, to) =
            (from.map(|name| self.index(name)).transpose()?, to.map(|name| self.index(name)).transpose()?);
        let matches = |end: Option<usize>, host| end.is_none_or(|end| end == host);
        let count = self.hosts.len();
        Ok((0..count)
            .flat_map(|one| (0..count).map(move |other| (one, other)))
            .filter(|&(one, other)| one != other)
            .filter(|&(one, other)| {
                matches(from, one) && matches(to, other) || both && matches(from, other) && matches(to, one)
            })
            .collect())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("outlast lab: '{}' was not taken down completely: {error}", self.name);
        }
    }
}

fn check_name(what: &'static str, given: &str, max: usize) -> Result<(), LabError> {
    let fits = (1..=max).contains(&given.len())
        && given.starts_with(|c: char| c.is_ascii_lowercase())
        && given.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if fits { Ok(()) } else { Err(LabError::BadName { what, given: given.to_owned(), max }) }
}

/// `label` and what no other lab of this machine has: the process, and a count within it.
fn unique(label: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{label}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Names for `count` hosts: a, b, c .. z, and with more than 26 of them h1, h2, ..
pub fn host_names(count: usize) -> Vec<String> {
    if count <= 26 {
        ('a'..='z').take(count).map(String::from).collect()
    } else {
        (1..=count).map(|number| format!("h{number}")).collect()
    }
}
