//! What goes wrong.

use std::time::Duration;

/// One thing that goes wrong. Victims are drawn when it strikes, from those who live.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process of that group (any if none) is killed; after the given time a new one takes its place.
    Kill {
        /// Whose group.
        group: Option<u32>,
        /// When a new one comes.
        respawn: Option<Duration>,
    },
    /// A process is stopped for a while; its kernel goes on.
    Stop(Duration),
    /// A control connection breaks, and new ones cannot be made for a while.
    CutControl(Duration),
    /// A host is cut off from everything.
    Isolate(Duration),
    /// A data link fails in one direction.
    CutLink(Duration),
    /// The coordinator is killed, and started again after a while.
    RestartCoordinator(Duration),
    /// The coordinator is cut off from everybody and lives on; another takes its address.
    Depose,
    /// A deposed coordinator has the address back for a while.
    Relapse(Duration),
    /// A new process comes.
    Newcomer {
        /// Its group.
        group: u32,
    },
    /// A peer says goodbye.
    Leave,
}

/// A bug that is planted to see a checker find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Now and then one peer is told another verdict than the rest.
    FlipVerdict,
    /// The coordinator believes that a peer has completed as soon as it has begun.
    ForgeComplete,
    /// An executor does not undo.
    SkipUndo,
    /// Peers do not notice that time passes.
    ForgetTimers,
    /// The health plane declares the living dead.
    AccuseTheLiving,
    /// Nobody is told to go on.
    DropProceed,
    /// A byte of a message is another when it arrives.
    SpoilByte,
    /// An executor that holds the result, and has yet to hand its last bytes to the system, hears no abort.
    DeafWhileFlushing,
    /// The health plane declares a living peer dead whose group nothing befell.
    AccuseBystander,
    /// Whoever is put out is not told, and its connection stays.
    KeepEvictionsSecret,
    /// What the coordinator writes down is lost.
    LoseFacts,
    /// What members remember of the run does not arrive.
    LoseMemories,
    /// Whoever comes back is not heard.
    DropResumes,
    /// A connection that closes is taken for a goodbye for good.
    TakeSilenceForGoodbye,
    /// An abort that ends a call is kept from one member, which goes on with the next attempt instead.
    HideAnAbort,
    /// A coordinator that was started again does not wait for those who were in.
    NoGrace,
    /// A link that is lost is still taken for the link.
    KeepLostLinks,
}
