//! What small worlds share: time that jumps from one happening to the next.

use super::queue::Queue;
use outlast_proto::time::{Duration, Instant};

/// A world that is nothing but a queue of happenings, and what each of them does.
pub(crate) trait Stage {
    /// Something that happens at a moment.
    type Happening;

    /// How often it is asked whether all is done: the question may cost more than a happening.
    const ASKED_EVERY: Duration;

    /// The present, and what is to come.
    fn time(&mut self) -> (&mut Instant, &mut Queue<Self::Happening>);

    /// Lets it happen.
    fn let_happen(&mut self, happening: Self::Happening);

    /// Plays until `end`, or until all is `done`: true if so.
    fn play_until(&mut self, end: Instant, done: impl Fn(&Self) -> bool) -> bool {
        let mut asked = *self.time().0;
        loop {
            let (now, queue) = self.time();
            let Some((at, happening)) = queue.pop_until(end) else { break };
            *now = (*now).max(at);
            let now = *now;
            self.let_happen(happening);
            if now - asked > Self::ASKED_EVERY {
                asked = now;
                if done(self) {
                    return true;
                }
            }
        }
        *self.time().0 = end;
        done(self)
    }
}
