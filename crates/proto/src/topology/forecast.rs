//! How long a collective will take on links that were measured.
//!
//! A ring's members send at the same time, so each of its 2(n - 1) steps takes as long as the slowest link needs for one
//! n-th of the data: the all-reduce of B bytes takes 2(n - 1)/n * B / rate. To that comes the way of the first byte, once
//! around for each half. What a processor needs is in the rates, because they were measured encrypted, with both
//! directions busy. What votes cost is not: next to anything that takes long enough to be planned it is nothing.

use super::Link;
use crate::time::Duration;

/// What a ring of measured links can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forecast {
    /// Members.
    pub members: u32,
    /// Bytes per second over the slowest link.
    pub rate: u64,
    /// The way once around.
    pub around: Duration,
}

impl Forecast {
    /// Of a ring with these links; none if it has none.
    pub fn of<'a>(links: impl IntoIterator<Item = &'a Link>) -> Option<Self> {
        let mut forecast = Self { members: 0, rate: u64::MAX, around: Duration::ZERO };
        for link in links {
            forecast.members += 1;
            forecast.rate = forecast.rate.min(link.rate.max(1));
            forecast.around += link.round_trip / 2;
        }
        (forecast.members > 1).then_some(forecast)
    }

    /// The time for an all-reduce of that many bytes, as they travel.
    pub fn all_reduce(&self, bytes: u64) -> Duration {
        let members = u128::from(self.members);
        let carried = u128::from(bytes) * 2 * (members - 1) / members;
        self.carrying(u64::try_from(carried).unwrap_or(u64::MAX), 2)
    }

    /// The time for what goes that many times around the ring and lets each member send so many bytes.
    pub fn carrying(&self, sent: u64, times: u32) -> Duration {
        let way = self.around * (self.members - 1) / self.members;
        Duration::from_secs_f64(sent as f64 / self.rate as f64) + times * way
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    #[test]
    fn the_slowest_link_decides_and_the_way_counts_twice() {
        let link =
            |rate, millis| Link { rate, round_trip: Duration::from_millis(millis), at: Instant::ORIGIN };
        let links = [link(100_000_000, 10), link(25_000_000, 30), link(50_000_000, 0), link(50_000_000, 0)];
        let forecast = Forecast::of(&links).unwrap();
        assert_eq!((forecast.members, forecast.rate), (4, 25_000_000));
        // 2 * 3/4 * 100 MB at 25 MB/s, and three quarters of 20 ms twice.
        let expected = Duration::from_secs(6) + Duration::from_millis(30);
        assert_eq!(forecast.all_reduce(100_000_000), expected);
        assert_eq!(forecast.carrying(75_000_000, 1) * 2, expected, "a reduce-scatter is one half of it");
        assert_eq!(Forecast::of(&links[..1]), None, "nobody to send to");
    }
}
